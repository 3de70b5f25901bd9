"""The modules of a hooked model: blocks, their weights and hook points, and those of all layers.

Weights are processed as TransformerLens does it, and products of two of them are factored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError, check_flag
from minibert.layers.config import Config
from minibert.layers.layer import LayerPass
from minibert.layers.linear import Linear, ReadOnly, Weight, counting, read_only
from minibert.layers.parts import Norm
from minibert.model import Model
from minibert.quantities import Float
from minibert.transformer_lens.hook_points import HookPoint
from minibert.transformer_lens.points import (
    Points,
    before_layers,
    behind_layers,
    inside,
    layer_edits,
    layer_points,
    listening,
)


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


def _refactor_factored_attn_matrices(model: Model) -> None:
    """W_Q and W_K share the singular values of W_Q·W_Kᵀ evenly, and W_O becomes a rotation.

    Of W_V·W_O = U·diag(S)·Vᵀ, W_V is U·diag(S) and W_O is Vᵀ. The biases are one more row.
    """
    _fold_value_biases(model)
    for layer in model.body.layers:
        part = layer.attention
        query, key = (
            torch.cat([weight, cast(Tensor, bias)[:, None]], 1)
            for weight, bias in ((part.W_Q, part.b_Q), (part.W_K, part.b_K))
        )
        even = FactoredMatrix(query, key.mT).make_even()
        left, values, right = FactoredMatrix(part.W_V, part.W_O).svd()
        for name, rows in (("Q", even.A), ("K", even.B.mT)):
            getattr(part, f"W_{name}").copy_(rows[:, :-1])
            getattr(part, f"b_{name}").copy_(rows[:, -1])
        part.W_V.copy_(left * values[..., None, :])
        part.W_O.copy_(right.mT)


PROCESSING: dict[str, Callable[[Model], None]] = {
    "fold_ln": _fold_ln,
    "center_writing_weights": _center_writing_weights,
    "center_unembed": _center_unembed,
    "fold_value_biases": _fold_value_biases,
    "refactor_factored_attn_matrices": _refactor_factored_attn_matrices,
}
"""What TransformerLens does to weights, in this order, where predictions stay as they are."""


def steps_of(config: Config, asked: Mapping[str, object]) -> list[str]:
    """The names of the steps that are done: those asked for; not said means where they can be.

    The last of them is done only where it is asked for. Raises CheckpointError for one that would
    change what the model predicts.
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
    factored = "refactor_factored_attn_matrices"
    if config.rotary is not None or config.query_key_norm != "none":
        unfit[factored] = "queries and keys are turned or normed before their product"
    if config.n_kv_heads != config.n_heads or config.d_head > config.d_model:
        unfit[factored] = "the heads share keys and values, or are wider than the stream"
    asked = {factored: False} | {name: flag for name, flag in asked.items() if flag is not None}
    for name, wanted in asked.items():
        if name in PROCESSING:
            check_flag(name, wanted, CheckpointError)
        if wanted and name in unfit:
            raise CheckpointError(
                f"{name}=True on {config.model_type}: {unfit[name]}. Leave it out, or pass "
                f"{name}=False."
            )
    return [name for name in PROCESSING if asked.get(name, True) and name not in unfit]


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
        # Orthogonal factors of A and B leave a matrix of mdim x mdim to decompose; in these steps
        # the vectors have the signs that TransformerLens' have.
        left, of_left, over = torch.linalg.svd(self.A, full_matrices=False)
        under, of_right, right = torch.linalg.svd(self.B, full_matrices=False)
        middle = of_left[..., :, None] * (over @ under) * of_right[..., None, :]
        u, s, vh = torch.linalg.svd(middle, full_matrices=False)
        return left @ u, s, right.mT @ vh.mT

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """(U, S, V) with U·diag(S)·Vᵀ this matrix; min(mdim, ldim, rdim) singular values."""
        return self._svd

    # Left singular vectors as columns, singular values from the largest, right singular vectors;
    # Vh is not the transposed one in TransformerLens either.
    U = property(lambda self: self._svd[0])
    S = property(lambda self: self._svd[1])
    Vh = V = property(lambda self: self._svd[2])

    @property
    def BA(self) -> Tensor:  # noqa: N802
        """The product in the other order. Raises TraceError where the matrix is not square."""
        if self.ldim != self.rdim:
            raise TraceError(f"A matrix of {self.ldim} x {self.rdim}; expected a square one.")
        return self.B @ self.A

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues that can differ from 0: those of B·A, complex."""
        return torch.linalg.eigvals(self.BA)

    def make_even(self) -> "FactoredMatrix":
        """This matrix, factored as U·diag(S)^½ times diag(S)^½·Vᵀ."""
        root = self.S.sqrt()
        return FactoredMatrix(self.U * root[..., None, :], root[..., :, None] * self.V.mT)

    def get_corner(self, k: int = 3) -> Tensor:
        """The first k of every axis, multiplied out."""
        return self[tuple(slice(k) for _ in range(self.ndim))].AB

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


def shared_by_heads(part: Any, name: str) -> Tensor | None:
    """A weight of a part as (kv_head, ...), to be written, where several heads share each."""
    if name not in ("W_K", "W_V", "b_K", "b_V") or part.of.attention.group == 1:
        return None
    found: Tensor | None = getattr(part.of.attention, name)
    return None if isinstance(found, ReadOnly) else found


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


# torch's own attributes, behind those of `Shown`.
_GRAD, _REQUIRES = cast(Any, Tensor).grad, cast(Any, Tensor).requires_grad


class Shown(Weight):
    """A weight in TransformerLens' shape: a leaf in the memory of `whole`, a parameter of ours.

    Writes, the gradient and requires_grad are those of `whole`, so an optimizer may hold either.
    """

    whole: nn.Parameter

    @classmethod
    def of(cls, view: Tensor, whole: nn.Parameter) -> "Shown":
        """The leaf of a view of `whole`."""
        with torch.inference_mode(False):
            made = cls(view.detach())
            made.register_post_accumulate_grad_hook(_to_whole)
        made.whole = whole
        return made

    @property
    def data(self) -> Tensor:
        """The numbers, in the memory of `whole`."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        """Move `whole` to new memory with a copy of the values; what was `data` stays as it was.

        Raises CheckpointError for values of another shape, dtype or device, and where the model
        was moved or its weight replaced since this leaf was read.
        """
        whole = self.whole
        if self.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            raise CheckpointError(
                "This weight was read before the model was moved or its weight was replaced, so "
                "it is not the model's any more. Read it from the model again, then assign .data."
            )
        wanted, got = ((tuple(t.shape), t.dtype, t.device) for t in (self, values))
        if got != wanted:
            raise CheckpointError(
                "The .data of this weight was assigned {} in {} on {}; expected {} in {} on {}, "
                "which model.to changes.".format(*got, *wanted)
            )
        with torch.inference_mode(False):
            memory = whole.detach().clone()
            start = self.storage_offset() - whole.storage_offset()
            laid = memory.as_strided(self.shape, self.stride(), start).copy_(values.detach())
            whole.data = memory
            Tensor.data.__set__(self, laid)  # type: ignore[attr-defined]

    @property
    def grad(self) -> Tensor | None:
        """The gradient of `whole` in this shape, in the same memory."""
        whole = self.whole
        if whole.grad is None:
            return None
        if whole.grad.stride() != whole.stride():
            whole.grad = torch.zeros_like(whole).copy_(whole.grad)
        start = self.storage_offset() - whole.storage_offset() + whole.grad.storage_offset()
        return whole.grad.detach().as_strided(self.shape, self.stride(), start)

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        self.whole.grad = None if gradient is None else torch.zeros_like(self.whole)
        if gradient is not None:
            cast(Tensor, self.grad).copy_(gradient)

    @property
    def requires_grad(self) -> bool:
        """Whether `whole` has a gradient, as it was when this leaf was last read."""
        return bool(_REQUIRES.__get__(self))

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.whole.requires_grad_(wanted)
        _REQUIRES.__set__(self, wanted)

    def requires_grad_(self, requires_grad: bool = True) -> "Shown":
        """Whether `whole` has a gradient from now on."""
        self.requires_grad = requires_grad
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Parameter:
        return nn.Parameter(self.detach().clone(), self.requires_grad)


def _to_whole(weight: Tensor) -> None:
    """Add to the gradient of `whole` what a number computed from this leaf alone has given it."""
    own = _GRAD.__get__(weight)
    _GRAD.__set__(weight, None)
    if weight.requires_grad:
        weight.grad = own if weight.grad is None else weight.grad + own


class WithWeights(nn.Module):
    """A module whose weights, and those of the parts below, have TransformerLens' names."""

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Only what can be trained, by name; weights that are tied to one another once."""
        seen: set[int] = set()
        for name, found in self._named_weights(prefix, recurse):
            whole = id(getattr(found, "whole", found))
            if isinstance(found, nn.Parameter) and not (remove_duplicate and whole in seen):
                seen.add(whole)
                yield name, found

    def state_dict(self, *args: object, prefix: str = "", **kwargs: object) -> dict[str, Any]:  # type: ignore[override]
        """Every weight by name, zeros for biases that the model does not have."""
        return {name: found.detach() for name, found in self._named_weights(prefix.rstrip("."))}

    def _named_weights(self, prefix: str, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        for place, part in self.named_modules(prefix=prefix) if recurse else [(prefix, self)]:
            for name in vars(part).get("weights", ()):
                if isinstance(found := getattr(part, name), Tensor):
                    yield f"{place}.{name}" if place else name, found


class Part(Circuits, WithWeights):
    """A part of the tree: its hook points, its weights by name, and the module of ours it shows.

    Weights are leaves in the memory of the model's parameters: writing into one changes the model.
    Those that heads share, and biases that the model does not have, are copies, which cannot be
    written. `run` is what a call of the part computes.
    """

    def __init__(self, of: object, weights: Weights, run: Callable[..., Tensor]) -> None:
        super().__init__()
        # Beside the tree, which knows parts and hook points alone.
        vars(self).update(of=of, weights=weights, run=run, leaves={})

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("weights", ()):
            return self._leaf(name, self.weights[name](self.of))
        return super().__getattr__(name)

    def _leaf(self, name: str, found: Tensor | None) -> Tensor | None:
        whole = getattr(found, "_base", None)
        if found is None or isinstance(found, ReadOnly | nn.Parameter):
            return found
        if not isinstance(whole, nn.Parameter):
            return cast(Tensor, counting(found.view_as(found)))
        leaf = self.leaves.get(name)
        # The model's parameter may have been replaced, moved or converted since.
        if leaf is None or leaf.whole is not whole or not leaf.is_set_to(found):
            leaf = self.leaves[name] = Shown.of(found, whole)
        _REQUIRES.__set__(leaf, whole.requires_grad)
        return leaf

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("weights", ()):
            raise CheckpointError(
                f"{name} shows a weight of the model and cannot be replaced; write into it: "
                f"{name}.data[:] = ..."
            )
        super().__setattr__(name, value)

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """What the part makes of its input, through its hook points."""
        return self.run(self, *given, **named)

    def point(self, name: str, x: Tensor) -> Tensor:
        """x through a hook point of this part, where it has one of that name."""
        point = self._modules.get(name)
        return x if point is None else point(x)


class Embed(Part):
    """Tokens to the rows of W_E."""


class PosEmbed(Part):
    """Tokens to the rows of W_pos where they stand."""


class LayerNorm(Part):
    """A norm, its weight and bias included where they were not folded."""


class Attention(Part):
    """(query_input, key_input, value_input) after their norm to what attention adds."""


class MLP(Part):
    """The stream after its norm to what the MLP adds."""


class TransformerBlock(Part):
    """The stream before a layer to that after it."""


class Unembed(Part):
    """The last hidden state to logits, before a soft cap."""


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


def _normed(part: Part, x: Tensor) -> Tensor:
    """What a norm makes of x, through hook_scale and hook_normalized."""
    with part.of.register_forward_hook(inside(part.of, part.hook_scale, part.hook_normalized)):
        return part.of(x)


def _block(root: Any, layer: int, part: Part, resid_pre: Tensor) -> Tensor:
    """The stream after a layer, of the stream before it."""
    return cast(Tensor, root(resid_pre, start_at_layer=layer, stop_at_layer=layer + 1))


def _attended(
    root: Any, layer: int, part: Part, query_input: Tensor, key_input: Tensor, value_input: Tensor
) -> Tensor:
    """What attention adds to the stream, of what its queries, keys and values read."""
    model, points = root.model, root.hook_dict
    attention, turned = model.body.layers[layer].attention, model.config.rotary is not None
    known = {
        f"{name}_unrotated" if turned and name != "value" else name: attention.project(name, given)
        for name, given in (("query", query_input), ("key", key_input), ("value", value_input))
    }
    evaluation = root.evaluation(query_input)
    edits = layer_edits(points, model.config, evaluation)(layer)
    edits.pop("attn_out", None)
    with listening(points, model.body):
        at = LayerPass(model.body.layers[layer], layer, evaluation, known=known, edits=edits)
        return at.attn_out


def _norm_part(norm: Any, folded: bool) -> Part:
    """A norm. Its w and b are there unless they were folded into the weights after it."""
    names = {"w": "weight", "b": "bias"}
    there = (
        {}
        if folded
        else {n: own for n, own in names.items() if getattr(norm, own, None) is not None}
    )
    return LayerNorm(norm, {n: attrgetter(own) for n, own in there.items()}, _normed)


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
    root.embed = Embed(body, WEIGHTS["embed"], lambda part, tokens: part.W_E[tokens])
    if body.position is not None:
        root.pos_embed = PosEmbed(body, WEIGHTS["pos_embed"], _positions)
    _add_points(root, before_layers(config))
    root.blocks = nn.ModuleList()
    for index, layer in enumerate(body.layers):
        block = TransformerBlock(layer, {}, partial(_block, root, index))
        for name, point in layer_points(config).items():
            part = name.rpartition(".")[0]
            if part == "attn" and part not in block._modules:
                block.attn = Attention(layer, WEIGHTS["attn"], partial(_attended, root, index))
            elif part and part not in block._modules:
                block.add_module(part, _part(layer, part, point.norm, folded))
            _add_points(block, {name: point})
        root.blocks.append(block)
    root.ln_final = nn.Identity()
    if body.final_norm is not None:
        root.ln_final = _norm_part(body.final_norm, folded)
    root.unembed = Unembed(model.head, WEIGHTS["unembed"], _unembedded)
    _add_points(root, behind_layers(config))


def _part(layer: object, name: str, norm: str, folded: bool) -> Part:
    if norm:
        return _norm_part(getattr(layer, norm), folded and not norm.endswith("output_norm"))
    return MLP(layer, WEIGHTS["mlp"], _mlp)


def _add_points(root: nn.Module, points: Points) -> None:
    for name, point in points.items():
        part, _, own = name.rpartition(".")
        root.get_submodule(part).add_module(own, HookPoint(by_head=point.by_head))


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
