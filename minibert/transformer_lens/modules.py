"""The modules of a hooked model: blocks, their weights and hook points, and those of all layers.

Weights are processed as TransformerLens does it, and products of two of them are factored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError, check_flag
from minibert.layers.config import Config
from minibert.layers.linear import Linear, counting, read_only
from minibert.layers.parts import Norm
from minibert.model import Model
from minibert.quantities import Float
from minibert.transformer_lens.hook_points import HookPoint
from minibert.transformer_lens.points import Points, before_layers, behind_layers, layer_points


def _fold_ln(model: Model) -> None:
    """The weight and bias of each norm go into the linear layers that read it."""
    for layer in model.body.layers:
        attention, mlp = layer.attention, layer.mlp
        _fold(layer.attention_norm, attention.query, attention.key, attention.value)
        if mlp is not None:
            _fold(layer.mlp_norm, mlp.up, mlp.gate)
    _fold(model.body.final_norm, _decoder(model))


def _fold(norm: Norm | None, *linears: Linear | None) -> None:
    """What a LayerNorm gives has mean 0, so the mean of a row of the weights can be taken away."""
    if norm is None:
        return
    for linear in linears:
        if linear is None:
            continue
        if norm.bias is not None:
            _bias_of(linear).add_(linear.weight @ norm.bias)
        linear.weight.mul_(norm.scale)
        if norm.centres:
            linear.weight.sub_(linear.weight.mean(1, keepdim=True))
    norm.weight.fill_(0.0 if norm.plus_one else 1.0)
    if norm.bias is not None:
        norm.bias.zero_()


def _center_writing_weights(model: Model) -> None:
    """What is written into the stream has mean 0 over d_model."""
    for table in (model.body.word, model.body.added_positions):
        if table is not None:
            table.weight.sub_(table.weight.mean(1, keepdim=True))
    for layer in model.body.layers:
        _center(layer.attention.output)
        if layer.mlp is not None:
            _center(layer.mlp.down)


def _center_unembed(model: Model) -> None:
    """W_U and b_U have mean 0 over the vocabulary."""
    _center(_decoder(model))


def _center(linear: Linear) -> None:
    linear.weight.sub_(linear.weight.mean(0))
    _bias_of(linear).sub_(_bias_of(linear).mean())


def _fold_value_biases(model: Model) -> None:
    """b_V goes into b_O, since the rows of attention sum to 1."""
    for layer in model.body.layers:
        attention = layer.attention
        of_heads = _bias_of(attention.value).unflatten(0, (-1, attention.d_head))
        of_heads = of_heads.repeat_interleave(attention.group, 0)
        _bias_of(attention.output).add_(attention.output.weight @ of_heads.flatten())
        _bias_of(attention.value).zero_()


PROCESSING: dict[str, Callable[[Model], None]] = {
    "fold_ln": _fold_ln,
    "center_writing_weights": _center_writing_weights,
    "center_unembed": _center_unembed,
    "fold_value_biases": _fold_value_biases,
}
"""What TransformerLens does to weights, in this order, where predictions stay as they are."""


def steps_of(config: Config, asked: Mapping[str, object]) -> list[str]:
    """The names of the steps that are done: those asked for; not said means where they can be.

    Raises CheckpointError for one that would change what the model predicts.
    """
    unfit = {}
    if config.norm == "rms":
        unfit["center_writing_weights"] = "an RMSNorm does not take the mean away"
    if config.norm_place not in ("before", "both"):
        unfit["fold_ln"] = "no norm stands in front of a linear layer"
    if config.norm_place == "none":
        unfit["center_writing_weights"] = "no norm takes the mean away"
    if config.logit_soft_cap is not None:
        unfit["center_unembed"] = "the logits go through a soft cap, which is not linear"
    if config.norm_place not in ("before", "none"):
        unfit["fold_value_biases"] = "a norm follows W_O"
    for name, wanted in asked.items():
        if wanted is not None:
            check_flag(name, wanted, CheckpointError)
        if wanted and name in unfit:
            raise CheckpointError(
                f"{name}=True on {config.model_type}: {unfit[name]}. Leave it out, or pass "
                f"{name}=False."
            )
    return [name for name in PROCESSING if asked.get(name, True) is not False and name not in unfit]


@torch.no_grad()
def processed(model: Model, steps: Iterable[str]) -> Model:
    """A copy of the model with these steps of `PROCESSING`; the model itself is left as it is."""
    copy = _copy(model)
    for name in steps:
        PROCESSING[name](copy)
    return copy


def _copy(model: Model) -> Model:
    """Copy the model with its own untied weights, and with a bias wherever one may be needed."""
    config = replace(model.config, tied=False, query_bias=True, output_bias=True, mlp_bias=True)
    with torch.device("meta"):
        copy = Model(config, tokenizer=model.tokenizer, name=model.name)
        size, width = _decoder(model).weight.shape
        cast(nn.Module, copy.head).decoder = Linear(width, size, bias=True)
    # A tied weight has two names there.
    known = dict(model.named_parameters(remove_duplicate=False))
    word = model.body.word.weight
    copy.to_empty(device=word.device).to(word.dtype)
    for name, parameter in copy.named_parameters():
        if name in known:
            parameter.copy_(known[name])
        else:
            parameter.zero_()
    copy.impl = model.impl
    return copy


def _bias_of(linear: Linear) -> Tensor:
    assert linear.bias is not None, "a model is copied with every bias before it is processed"
    return linear.bias


def _decoder(model: Model) -> Linear:
    return cast(Linear, cast(nn.Module, model.head).decoder)


class FactoredMatrix:
    """The matrix A·B of shape (..., ldim, rdim), of rank mdim at most, which is not multiplied out.

    Raises TraceError for factors that cannot be multiplied.
    """

    def __init__(
        self,
        A: Float[Tensor, "*left ldim mdim"],  # noqa: N803, TransformerLens' names
        B: Float[Tensor, "*right mdim rdim"],  # noqa: N803
    ) -> None:
        if A.dim() < 2 or B.dim() < 2 or A.shape[-1] != B.shape[-2]:
            raise TraceError(
                f"FactoredMatrix of {tuple(A.shape)} and {tuple(B.shape)}; expected (..., ldim, "
                "mdim) and (..., mdim, rdim)."
            )
        leading = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        self.ldim, self.mdim, self.rdim = A.shape[-2], A.shape[-1], B.shape[-1]
        self.A = A.broadcast_to(*leading, self.ldim, self.mdim)
        self.B = B.broadcast_to(*leading, self.mdim, self.rdim)
        self.shape = torch.Size((*leading, self.ldim, self.rdim))
        self.ndim = len(self.shape)

    @property
    def AB(self) -> Tensor:  # noqa: N802
        """The product, multiplied out."""
        return self.A @ self.B

    @property
    def T(self) -> "FactoredMatrix":  # noqa: N802
        """The transposed matrix."""
        return FactoredMatrix(self.B.mT, self.A.mT)

    def __matmul__(self, other: Any) -> Any:
        """The product with a matrix, factored; with a vector, a vector."""
        if isinstance(other, FactoredMatrix):
            return (self @ other.A) @ other.B
        if other.dim() < 2:
            return (self.A @ (self.B @ other[..., None])).squeeze(-1)
        # The narrowest pair of factors.
        if self.rdim > self.mdim:
            return FactoredMatrix(self.A, self.B @ other)
        return FactoredMatrix(self.AB, other)

    def __rmatmul__(self, other: Any) -> Any:
        """The product of a matrix or a vector with this one."""
        if other.dim() < 2:
            return ((other[..., None, :] @ self.A) @ self.B).squeeze(-2)
        if self.ldim > self.mdim:
            return FactoredMatrix(other @ self.A, self.B)
        return FactoredMatrix(other, self.AB)

    def __mul__(self, scalar: Tensor | float) -> "FactoredMatrix":
        """This matrix times a number. Raises TraceError for more than one."""
        if isinstance(scalar, Tensor) and scalar.numel() != 1:
            raise TraceError(f"* takes a number, not {tuple(scalar.shape)}; for matrices write @.")
        return FactoredMatrix(self.A * scalar, self.B)

    __rmul__ = __mul__

    @cached_property
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        # Orthogonal factors of A and Bᵀ leave a matrix of mdim x mdim to decompose.
        left, over = torch.linalg.qr(self.A)
        right, under = torch.linalg.qr(self.B.mT)
        u, s, vh = torch.linalg.svd(over @ under.mT, full_matrices=False)
        return left @ u, s, right @ vh.mT

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """(U, S, V) with U·diag(S)·Vᵀ this matrix; min(mdim, ldim, rdim) singular values."""
        return self._svd

    # Left singular vectors as columns, singular values from the largest, right singular vectors;
    # Vh is not the transposed one in TransformerLens either.
    U = property(lambda self: self._svd[0])
    S = property(lambda self: self._svd[1])
    Vh = V = property(lambda self: self._svd[2])

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues that can differ from 0: those of B·A, complex."""
        if self.ldim != self.rdim:
            raise TraceError(
                f"Eigenvalues of a matrix of {self.ldim} x {self.rdim}; expected a square one."
            )
        return torch.linalg.eigvals(self.B @ self.A)

    def norm(self) -> Tensor:
        """The Frobenius norm."""
        return self.S.square().sum(-1).sqrt()

    def __getitem__(self, index: object) -> "FactoredMatrix":
        """Index the product's axes in order; an int for one of the last two keeps the axis."""
        index = index if isinstance(index, tuple) else (index,)
        leading = self.ndim - 2
        real = [place for place, each in enumerate(index) if each is not None]
        if len(real) > self.ndim:
            raise TraceError(f"{len(real)} indices for a matrix with {self.ndim} axes.")
        cut = real[leading] if len(real) > leading else len(index)
        before, last = index[:cut], [_kept(each) for each in index[cut:]]
        rows, columns = (*last, slice(None), slice(None))[:2]
        return FactoredMatrix(self.A[before][..., rows, :], self.B[before][..., :, columns])

    def __repr__(self) -> str:
        return f"FactoredMatrix: Shape({self.shape}), Hidden Dim({self.mdim})"


def _kept(index: object) -> Any:
    """An index that keeps its axis."""
    if not isinstance(index, int):
        return index
    return slice(index, index + 1 if index != -1 else None)


#: How a weight is read from a layer or a model.
Read = Callable[[object], Tensor]
Weights = dict[str, Read]


def _by_head(name: str) -> Read:
    """A weight or bias of query, key or value, as every head reads it."""

    def read(layer: Any) -> Tensor:
        attention = layer.attention
        rows = getattr(attention, name)
        if rows is None:
            weight = getattr(attention, name.replace("b_", "W_"))
            rows = _zeros(weight).expand(weight.shape[0], -1)
        if name[-1] == "Q" or attention.group == 1:
            return rows
        return read_only(rows.repeat_interleave(attention.group, 0), f"{name} repeated by head")

    return read


def _or_zeros(bias: str, weight: str) -> Read:
    """The bias, by where it is; zeros where there is none, as in TransformerLens."""

    def read(of: object) -> Tensor:
        found: Tensor | None = attrgetter(bias)(of)
        return _zeros(attrgetter(weight)(of)) if found is None else found

    return read


def _zeros(weight: Tensor) -> Tensor:
    return read_only(weight.new_zeros(weight.shape[-1]), "a bias that the model does not have")


WEIGHTS: dict[str, Weights] = {
    # (d_vocab, d_model), (n_ctx, d_model), (d_model, d_vocab)
    "embed": {"W_E": attrgetter("W_E")},
    "pos_embed": {"W_pos": attrgetter("position.weight")},
    "unembed": {"W_U": attrgetter("W_U"), "b_U": _or_zeros("b_U", "W_U")},
    # W_Q, W_K, W_V (head, d_model, d_head), W_O (head, d_head, d_model), b_O (d_model)
    "attn": {
        "W_Q": _by_head("W_Q"),
        "W_O": attrgetter("attention.W_O"),
        "b_Q": _by_head("b_Q"),
        "b_O": _or_zeros("attention.b_O", "attention.W_O"),
        "W_K": _by_head("W_K"),
        "W_V": _by_head("W_V"),
        "b_K": _by_head("b_K"),
        "b_V": _by_head("b_V"),
    },
    # W_in and W_gate (d_model, d_mlp), W_out (d_mlp, d_model). W_gate is None without a gate.
    "mlp": {
        "W_in": attrgetter("mlp.W_in"),
        "b_in": _or_zeros("mlp.b_in", "mlp.W_in"),
        "W_out": attrgetter("mlp.W_out"),
        "b_out": _or_zeros("mlp.b_out", "mlp.W_out"),
        "W_gate": attrgetter("mlp.W_gate"),
    },
}
"""The weights of each part by TransformerLens' names, read from the module that the part shows."""


class Circuits:
    """The products of two weights of each head, factored, of a part with these weights."""

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    OV = property(lambda self: FactoredMatrix(self.W_V, self.W_O), doc="W_V·W_O of each head.")
    QK = property(lambda self: FactoredMatrix(self.W_Q, self.W_K.mT), doc="W_Q·W_Kᵀ of each head.")


class Part(Circuits, nn.Module):
    """A part of the tree: its hook points, its weights by name, and the module of ours it shows.

    Weights are views of the model's: writing into one changes the model. Of weights that heads
    share, and biases that the model does not have, they are copies, which cannot be written.
    `run` is what a call of the part computes.
    """

    def __init__(
        self, of: object, weights: Weights, run: Callable[["Part", Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        # Beside the tree, which knows parts and hook points alone.
        vars(self).update(of=of, weights=weights, run=run)

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("weights", ()):
            found = self.weights[name](self.of)
            return None if found is None else counting(found.view_as(found))
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("weights", ()):
            raise CheckpointError(
                f"{name} shows a weight of the model and cannot be replaced; write into it: "
                f"{name}.data[:] = ..."
            )
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """What an embedding, a norm, an MLP or the unembedding makes of x. TraceError of others."""
        if self.run is None:
            raise TraceError(
                f"{getattr(self, 'name', 'This part')} cannot be called by itself; call the model "
                "with stop_at_layer=, or use hooks."
            )
        return self.run(self, x)

    def point(self, name: str, x: Tensor) -> Tensor:
        """x through a hook point of this part, where it has one of that name."""
        point = self._modules.get(name)
        return x if point is None else point(x)


def _positions(part: Part, tokens: Tensor) -> Tensor:
    return part.W_pos[: tokens.shape[-1]].expand(*tokens.shape, -1)


def _mlp(part: Part, x: Tensor) -> Tensor:
    """What the MLP makes of its input (after the norm), through its hook points."""
    mlp, point = part.of.mlp, part.point
    if mlp.gate is None:
        return mlp.down(point("hook_post", mlp.post(point("hook_pre", mlp.up(x)))))
    gate = point("hook_pre", mlp.gate(x))
    return mlp.down(point("hook_post", mlp.post(point("hook_pre_linear", mlp.up(x)), gate)))


def _unembedded(part: Part, x: Tensor) -> Tensor:
    """(batch, position, d_vocab) before a soft cap, through hook_in and hook_out."""
    return part.point("hook_out", part.of.decoder(part.point("hook_in", x)))


def _norm_part(norm: Any, folded: bool) -> Part:
    """A norm. Its w and b are there unless they were folded into the weights after it."""
    names = {"w": "weight", "b": "bias"}
    there = (
        {}
        if folded
        else {n: own for n, own in names.items() if getattr(norm, own, None) is not None}
    )
    return Part(norm, {n: attrgetter(own) for n, own in there.items()}, lambda part, x: norm(x))


def folded_norms(model: Model) -> Iterator[nn.Parameter]:
    """The weights and biases of the norms whose scale is in the weights behind them."""
    norms: list[Norm | None] = [model.body.final_norm]
    for layer in model.body.layers:
        norms += [layer.attention_norm, layer.mlp_norm]
    for norm in norms:
        if norm is not None:
            yield from norm.parameters()


def build_tree(root: nn.Module, model: Model, *, folded: bool) -> None:
    """Put the parts of the model below `root`, and in them a hook point of each of its names."""
    body, config = model.body, model.config
    root.embed = Part(body, WEIGHTS["embed"], lambda part, tokens: part.W_E[tokens])
    if body.position is not None:
        root.pos_embed = Part(body, WEIGHTS["pos_embed"], _positions)
    _add_points(root, before_layers(config))
    root.blocks = nn.ModuleList()
    for layer in body.layers:
        block = Part(layer, {})
        for name, point in layer_points(config).items():
            part = name.rpartition(".")[0]
            if part and part not in block._modules:
                block.add_module(part, _part(layer, part, point.norm, folded))
            _add_points(block, {name: point})
        root.blocks.append(block)
    root.ln_final = nn.Identity()
    if body.final_norm is not None:
        root.ln_final = _norm_part(body.final_norm, folded)
    root.unembed = Part(model.head, WEIGHTS["unembed"], _unembedded)
    _add_points(root, behind_layers(config))


def _part(layer: object, name: str, norm: str, folded: bool) -> Part:
    if norm:
        return _norm_part(getattr(layer, norm), folded and not norm.endswith("output_norm"))
    return Part(layer, WEIGHTS[name], _mlp if name == "mlp" else None)


def _add_points(root: nn.Module, points: Points) -> None:
    for name, point in points.items():
        part, _, own = name.rpartition(".")
        root.get_submodule(part).add_module(own, HookPoint(by_head=point.by_head))


def named_weights(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight below, by TransformerLens' names and in its shapes."""
    for name, part in root.named_modules():
        if isinstance(part, Part):
            found = ((each, getattr(part, each)) for each in part.weights)
            yield from ((f"{name}.{each}", x) for each, x in found if isinstance(x, Tensor))


def stacked(root: Any, name: str) -> Tensor | None:
    """A weight by its name alone: of the embeddings as it is, of the layers (layer, ...), a copy.

    Raises AttributeError for a name that is not a weight of this model.
    """
    for part, weights in WEIGHTS.items():
        if name in weights and part in ("attn", "mlp"):
            each = [getattr(getattr(block, part), name) for block in root.blocks]
            return (
                None if each[0] is None else read_only(torch.stack(each), f"{name} of all layers")
            )
        if name in weights and part in root._modules:
            return getattr(root._modules[part], name)
    raise AttributeError(name)
