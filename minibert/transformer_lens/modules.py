"""The modules of a hooked model: blocks, their weights and hook points, and those of all layers."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError
from minibert.layers.parts import Attention as OwnAttention
from minibert.layers.parts import Layer
from minibert.layers.weight_views import read_only
from minibert.model import Model
from minibert.quantities import Float
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hooks import HookPoint
from minibert.transformer_lens.points import (
    INPUT_SWITCHES,
    Point,
    before_layers,
    behind_layers,
    layer_points,
)
from minibert.transformer_lens.weights import FactoredMatrix, composition_scores

Weights = dict[str, Callable[[Any], Tensor | None]]


def _bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    """The bias; zeros where there is none, as in TransformerLens."""
    if bias is not None:
        return bias
    return read_only(weight.new_zeros(weight.shape[-1]), "a bias that the model does not have")


def _by_head(name: str) -> Callable[[Layer], Tensor]:
    """A weight or bias of attention as every head reads it."""

    def read(layer: Layer) -> Tensor:
        attention: OwnAttention = layer.attention
        rows = getattr(attention, name)
        if rows is None:
            rows = _bias(None, getattr(attention, name.replace("b_", "W_")))
            rows = rows.expand(attention.n_heads if name == "b_Q" else attention.n_kv_heads, -1)
        shared = name[-1] != "Q" and attention.group > 1
        if not shared:
            return rows
        return read_only(rows.repeat_interleave(attention.group, 0), f"{name} repeated by head")

    return read


class Part(nn.Module):
    """A part of the tree: its hook points, its weights by name, and the module of ours it shows.

    Weights are views of the model's: writing into one changes the model. Of weights that heads
    share, and biases that the model does not have, they are copies, which cannot be written.
    """

    weights: ClassVar[Weights] = {}
    of: Any

    def __init__(self, of: Any, weights: Weights | None = None) -> None:
        super().__init__()
        # Beside the tree, which knows parts and hook points alone.
        self.__dict__["of"] = of
        self.__dict__["shown"] = self.weights if weights is None else weights

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("shown", ()):
            found = self.shown[name](self.of)
            return None if found is None else found.view_as(found)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.weights:
            raise CheckpointError(
                f"{name} shows a weight of the model and cannot be replaced; write into it: "
                f"{name}.data[:] = ..."
            )
        super().__setattr__(name, value)

    def forward(self, *inputs: Any) -> Any:
        """Refused: TraceError."""
        raise TraceError(
            f"{getattr(self, 'name', type(self).__name__)} cannot be called by itself; call the "
            "model with start_at_layer= and stop_at_layer=, or use hooks."
        )

    def _point(self, name: str, x: Tensor) -> Tensor:
        point = self._modules.get(name)
        return x if point is None else point(x)


class Embed(Part):
    """The table of words: W_E (d_vocab, d_model)."""

    weights: ClassVar[Weights] = {"W_E": lambda body: body.W_E}

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the tokens."""
        return self.W_E[tokens]


class PosEmbed(Part):
    """The table of positions: W_pos (n_ctx, d_model)."""

    weights: ClassVar[Weights] = {"W_pos": lambda body: body.position.weight}

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the positions of these tokens, for each sentence."""
        return self.W_pos[: tokens.shape[-1]].expand(*tokens.shape, -1)


class Attention(Part):
    """Attention of a layer. Heads that share keys and values have the same W_K and W_V.

    W_Q, W_K and W_V (head, d_model, d_head), W_O (head, d_head, d_model); b_Q, b_K and b_V
    (head, d_head), b_O (d_model). OV is W_V·W_O of each head, QK is W_Q·W_Kᵀ.
    """

    weights: ClassVar[Weights] = {
        "W_Q": _by_head("W_Q"),
        "W_O": lambda layer: layer.attention.W_O,
        "b_Q": _by_head("b_Q"),
        "b_O": lambda layer: _bias(layer.attention.b_O, layer.attention.W_O),
        "W_K": _by_head("W_K"),
        "W_V": _by_head("W_V"),
        "b_K": _by_head("b_K"),
        "b_V": _by_head("b_V"),
    }

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802
        """W_V·W_O of each head."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802
        """W_Q·W_Kᵀ of each head."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)


class Mlp(Part):
    """The MLP of a layer: W_in and W_gate (d_model, d_mlp), W_out (d_mlp, d_model), b_in, b_out.

    W_gate is None where there is no gate, and then in no list of weights.
    """

    weights: ClassVar[Weights] = {
        "W_in": lambda layer: layer.mlp.W_in,
        "b_in": lambda layer: _bias(layer.mlp.b_in, layer.mlp.W_in),
        "W_out": lambda layer: layer.mlp.W_out,
        "b_out": lambda layer: _bias(layer.mlp.b_out, layer.mlp.W_out),
        "W_gate": lambda layer: layer.mlp.W_gate,
    }

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP makes of its input (after the norm), through its hook points."""
        mlp = self.of.mlp
        if mlp.gate is None:
            return mlp.down(self._point("hook_post", mlp.post(self._point("hook_pre", mlp.pre(x)))))
        gate = self._point("hook_pre", mlp.gate_of(x))
        up = self._point("hook_pre_linear", mlp.pre(x))
        return mlp.down(self._point("hook_post", mlp.post(up, gate)))


class NormPart(Part):
    """A norm. Its w and b are there unless they were folded into the weights behind it."""

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x."""
        return self.of(x)


def _norm_part(norm: nn.Module, folded: bool) -> NormPart:
    ours = {} if folded else {"w": "weight", "b": "bias"}
    return NormPart(
        norm,
        {
            name: attrgetter(own)
            for name, own in ours.items()
            if getattr(norm, own, None) is not None
        },
    )


class Unembed(Part):
    """From the stream after the last norm to logits: W_U (d_model, d_vocab), b_U (d_vocab)."""

    weights: ClassVar[Weights] = {
        "W_U": lambda head: head.W_U,
        "b_U": lambda head: _bias(head.b_U, head.W_U),
    }

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, d_vocab) before a soft cap, through hook_in and hook_out."""
        return self._point("hook_out", self.of.decoder(self._point("hook_in", x)))


def build_tree(root: nn.Module, model: Model, *, folded: bool) -> None:
    """Put the parts of the model below `root`, and in them a hook point of each of its names."""
    body, config = model.body, model.config
    root.embed = Embed(body)
    if body.position is not None:
        root.pos_embed = PosEmbed(body)
    _add_points(root, before_layers(config))
    root.blocks = nn.ModuleList()
    for number, layer in enumerate(body.layers):
        block = Part(layer)
        for name, point in _with_inputs(layer_points(config, number)).items():
            part = name.rpartition(".")[0]
            if part and part not in block._modules:
                block.add_module(part, _part(layer, part, point.norm, folded))
            _add_points(block, {name: point})
        root.blocks.append(block)
    root.ln_final = _norm_part(cast(nn.Module, body.final_norm), folded)
    root.unembed = Unembed(model.head)
    _add_points(root, behind_layers(config))


def _part(layer: Layer, name: str, norm: str, folded: bool) -> Part:
    if not norm:
        return {"attn": Attention, "mlp": Mlp}[name](layer)
    return _norm_part(getattr(layer, norm), folded and not norm.endswith("output_norm"))


def _with_inputs(points: dict[str, Point[Any]]) -> dict[str, Point[Any]]:
    """The points of a block, with those of its inputs where they stand in the data."""
    names = list(points)
    heads = names.index("hook_resid_pre") + 1
    mlp = next(n for n, name in enumerate(names) if name.startswith(("ln2.", "mlp.")))
    of_heads = INPUT_SWITCHES["use_attn_in"] + INPUT_SWITCHES["use_split_qkv_input"]
    of_mlp = INPUT_SWITCHES["use_hook_mlp_in"]
    order = [*names[:heads], *of_heads, *names[heads:mlp], *of_mlp, *names[mlp:]]
    made = {name: Point(_unread, by_head=name in of_heads) for name in (*of_heads, *of_mlp)}
    return {name: points[name] if name in points else made[name] for name in order}


def _unread(at: object) -> Tensor:
    raise NotImplementedError("a trace has no inputs of heads and MLPs by these names")


def _add_points(root: nn.Module, points: dict[str, Point[Any]]) -> None:
    for name, point in points.items():
        part, _, own = name.rpartition(".")
        root.get_submodule(part).add_module(own, HookPoint(by_head=point.by_head))


class StackedMethods:
    """W_Q, W_K, W_V, W_O, W_in, W_gate, W_out and their biases, (layer, ...), and W_E to b_U.

    Those of all layers are copies, which cannot be written. QK and OV are products of each layer
    and head; W_E_pos is both tables, one below the other.
    """

    cfg: HookedTransformerConfig
    blocks: nn.ModuleList

    def __getattr__(self, name: str) -> Any:
        for part in ("embed", "pos_embed", "unembed"):
            if name in getattr(self._parts.get(part), "weights", ()):
                return getattr(self._parts[part], name)
        for part, kind in (("attn", Attention), ("mlp", Mlp)):
            if name in kind.weights:
                each = [getattr(getattr(block, part), name) for block in self.blocks]
                if each[0] is None:
                    return None
                return read_only(torch.stack(each), f"{name} of all layers")
        return super().__getattr__(name)  # type: ignore[misc]

    @property
    def _parts(self) -> dict[str, nn.Module]:
        return self.__dict__.get("_modules", {})

    @property
    def W_E_pos(self) -> Tensor:  # noqa: N802
        """Both tables, one below the other."""
        return read_only(torch.cat([self.W_E, self.W_pos]), "W_E and W_pos in one")

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802
        """W_Q·W_Kᵀ of each layer and head."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802
        """W_V·W_O of each layer and head."""
        return FactoredMatrix(self.W_V, self.W_O)

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """The sum of b_O and b_out of the layers before `layer`.

        With mlp_input=True b_O of `layer` too; with include_mlp_biases=False b_O alone.
        """
        n_layers = self.cfg.n_layers
        if not 0 <= layer <= n_layers or (mlp_input and layer == n_layers):
            raise TraceError(f"layer={layer}, mlp_input={mlp_input}: there are {n_layers} layers.")
        total = torch.zeros(self.cfg.d_model, device=self.cfg.device, dtype=self.cfg.dtype)
        total = total + self.b_O[: layer + mlp_input].sum(0)
        return total + self.b_out[:layer].sum(0) if include_mlp_biases else total

    def all_composition_scores(self, mode: str) -> Float[Tensor, "layer head layer head"]:
        """How much each head reads of what each earlier head writes, by "Q", "K" or "V".

        ‖W_OV·M‖ / (‖W_OV‖·‖M‖), M the reading head's QK (of K its transpose) or OV; 0 where the
        reader does not come later. Source: Elhage et al. 2021.
        """
        readers = {"Q": lambda: self.QK, "K": lambda: self.QK.T, "V": lambda: self.OV}
        if mode not in readers:
            raise TraceError(f"mode={mode!r:.80}: expected Q, K or V.")
        scores = composition_scores(self.OV, readers[mode]())
        layers = torch.arange(self.cfg.n_layers, device=scores.device)
        later = layers[:, None, None, None] < layers[:, None]
        return torch.where(later, scores, 0.0)

    def all_head_labels(self) -> list[str]:
        """ "L0H0", "L0H1" and so on."""
        heads = range(self.cfg.n_heads)
        return [f"L{layer}H{head}" for layer in range(self.cfg.n_layers) for head in heads]
