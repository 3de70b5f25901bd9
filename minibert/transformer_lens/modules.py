"""The modules of a hooked model: blocks, their weights and hook points, and those of all layers."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError
from minibert.layers.weight_views import read_only
from minibert.model import Model
from minibert.transformer_lens.hook_points import HookPoint
from minibert.transformer_lens.points import Points, before_layers, behind_layers, layer_points
from minibert.transformer_lens.weights import FactoredMatrix

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


class Part(nn.Module):
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
            return None if found is None else found.view_as(found)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("weights", ()):
            raise CheckpointError(
                f"{name} shows a weight of the model and cannot be replaced; write into it: "
                f"{name}.data[:] = ..."
            )
        super().__setattr__(name, value)

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802
        """W_V·W_O of each head of attention."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802
        """W_Q·W_Kᵀ of each head of attention."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

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
    """A norm. Its w and b are there unless they were folded into the weights behind it."""
    names = {"w": "weight", "b": "bias"}
    there = (
        {}
        if folded
        else {n: own for n, own in names.items() if getattr(norm, own, None) is not None}
    )
    return Part(norm, {n: attrgetter(own) for n, own in there.items()}, lambda part, x: norm(x))


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
