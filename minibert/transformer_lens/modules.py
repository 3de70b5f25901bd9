"""The modules of a hooked model: blocks, their weights and hook points, and those of all layers."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError
from minibert.layers.linear import Linear
from minibert.layers.norms import Norm
from minibert.layers.parts import Layer
from minibert.model import Model
from minibert.quantities import Float
from minibert.transformer_lens.config import INPUT_SWITCHES, HookedTransformerConfig
from minibert.transformer_lens.hooks import HookPoint
from minibert.transformer_lens.names import point_names
from minibert.transformer_lens.weights import FactoredMatrix, composition_scores


class Part(nn.Module):
    """A part of the tree: its hook points, its weights by name, and the module of ours it shows."""

    weights: tuple[str, ...] = ()
    of: Any

    def __init__(self, of: Any) -> None:
        super().__init__()
        # Beside the tree, which knows parts and hook points alone.
        self.__dict__["of"] = of

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).weights:
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


def _by_head(weight: Tensor, d_head: int) -> Tensor:
    """Rows of a linear layer as (head, d_head, ...)."""
    return weight.unflatten(0, (-1, d_head))


def _bias(linear: Linear) -> Tensor:
    """The bias; zeros where there is none, as in TransformerLens."""
    bias = linear.offset
    return linear.weight.new_zeros(linear.weight.shape[0]) if bias is None else bias.view_as(bias)


class Embed(Part):
    """The table of words."""

    weights = ("W_E",)

    @property
    def W_E(self) -> Tensor:  # noqa: N802
        """(d_vocab, d_model)."""
        return _view(self.of.W_E)

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the tokens."""
        return self.W_E[tokens]


class PosEmbed(Part):
    """The table of positions."""

    weights = ("W_pos",)

    @property
    def W_pos(self) -> Tensor:  # noqa: N802
        """(n_ctx, d_model)."""
        return _view(self.of.position.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the positions of these tokens, for each sentence."""
        return self.W_pos[: tokens.shape[-1]].expand(*tokens.shape, -1)


class Attention(Part):
    """Attention of a layer. Heads that share keys and values have the same W_K and W_V."""

    weights = ("W_Q", "W_O", "b_Q", "b_O", "W_K", "W_V", "b_K", "b_V")

    def _stacked(self, name: str) -> Tensor:
        attention = self.of.attention
        rows = _by_head(getattr(attention, name).matrix.mT, attention.d_head).mT
        return rows.repeat_interleave(attention.group, 0) if self._shared(name) else rows

    def _biases(self, name: str) -> Tensor:
        attention = self.of.attention
        rows = _by_head(_bias(getattr(attention, name)), attention.d_head)
        return rows.repeat_interleave(attention.group, 0) if self._shared(name) else rows

    def _shared(self, name: str) -> bool:
        return name != "query" and self.of.attention.group > 1

    @property
    def W_Q(self) -> Tensor:  # noqa: N802
        """(head, d_model, d_head)."""
        return self._stacked("query")

    @property
    def W_K(self) -> Tensor:  # noqa: N802
        """(head, d_model, d_head)."""
        return self._stacked("key")

    @property
    def W_V(self) -> Tensor:  # noqa: N802
        """(head, d_model, d_head)."""
        return self._stacked("value")

    @property
    def W_O(self) -> Tensor:  # noqa: N802
        """(head, d_head, d_model)."""
        return _view(self.of.attention.W_O)

    @property
    def b_Q(self) -> Tensor:  # noqa: N802
        """(head, d_head)."""
        return self._biases("query")

    @property
    def b_K(self) -> Tensor:  # noqa: N802
        """(head, d_head)."""
        return self._biases("key")

    @property
    def b_V(self) -> Tensor:  # noqa: N802
        """(head, d_head)."""
        return self._biases("value")

    @property
    def b_O(self) -> Tensor:  # noqa: N802
        """(d_model)."""
        return _bias(self.of.attention.output)

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802
        """W_V·W_O of each head."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802
        """W_Q·W_Kᵀ of each head."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)


class Mlp(Part):
    """The MLP of a layer. W_gate is None where there is no gate, and then in no list of weights."""

    weights = ("W_in", "b_in", "W_out", "b_out", "W_gate")

    @property
    def W_in(self) -> Tensor:  # noqa: N802
        """(d_model, d_mlp)."""
        return _view(self.of.mlp.W_in)

    @property
    def b_in(self) -> Tensor:
        """(d_mlp)."""
        return _bias(self.of.mlp.up)

    @property
    def W_gate(self) -> Tensor | None:  # noqa: N802
        """(d_model, d_mlp)."""
        gate = self.of.mlp.gate
        return None if gate is None else gate.matrix

    @property
    def W_out(self) -> Tensor:  # noqa: N802
        """(d_mlp, d_model)."""
        return _view(self.of.mlp.W_out)

    @property
    def b_out(self) -> Tensor:
        """(d_model)."""
        return _bias(self.of.mlp.down)

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

    def __init__(self, of: Norm, folded: bool) -> None:
        super().__init__(of)
        self.__dict__["folded"] = folded

    def __getattr__(self, name: str) -> Any:
        if name in ("w", "b") and not self.folded:
            found = getattr(self.of, {"w": "weight", "b": "bias"}[name], None)
            if found is not None:
                return _view(found)
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x."""
        return self.of(x)


class Unembed(Part):
    """From the stream after the last norm to logits, before a soft cap."""

    weights = ("W_U", "b_U")

    @property
    def W_U(self) -> Tensor:  # noqa: N802
        """(d_model, d_vocab)."""
        return _view(self.of.W_U)

    @property
    def b_U(self) -> Tensor:  # noqa: N802
        """(d_vocab)."""
        return _bias(self.of.decoder)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, d_vocab), through hook_in and hook_out."""
        return self._point("hook_out", self.of.decoder(self._point("hook_in", x)))


class Block(Part):
    """A layer."""


def _view(parameter: Tensor) -> Tensor:
    return parameter.view_as(parameter)


def build_tree(root: nn.Module, model: Model, *, folded: bool) -> None:
    """Put the parts of the model below `root`, and in them a hook point of each of its names."""
    body, names = model.body, point_names(model.config)
    root.embed = Embed(body)
    if body.position is not None:
        root.pos_embed = PosEmbed(body)
    _add_points(root, [name for name in names if name.startswith("hook_")])
    root.blocks = nn.ModuleList()
    for number, layer in enumerate(body.layers):
        at = f"blocks.{number}."
        inside = [name.removeprefix(at) for name in names if name.startswith(at)]
        root.blocks.append(_block(layer, _with_inputs(inside), folded, model.config.norm_place))
    for name, part in (
        ("ln_final", NormPart(cast(Norm, body.final_norm), folded)),
        ("unembed", Unembed(model.head)),
    ):
        root.add_module(name, part)
        _add_points(part, [each.split(".")[1] for each in names if each.startswith(f"{name}.")])


def _block(layer: Layer, names: list[str], folded: bool, norm_place: str) -> Block:
    """A layer with its parts, in the order of the data, and their hook points."""
    block = Block(layer)
    for name in names:
        part, _, point = name.rpartition(".")
        if part and part not in block._modules:
            block.add_module(part, _part(layer, part, folded, norm_place))
        _add_points(block.get_submodule(part), [point])
    return block


def _with_inputs(names: list[str]) -> list[str]:
    """The names of a block, with those of its inputs where they stand in the data."""
    heads = names.index("hook_resid_pre") + 1
    mlp = next(n for n, name in enumerate(names) if name.startswith(("ln2.", "mlp.")))
    of_heads = INPUT_SWITCHES["use_attn_in"] + INPUT_SWITCHES["use_split_qkv_input"]
    of_mlp = INPUT_SWITCHES["use_hook_mlp_in"]
    return [*names[:heads], *of_heads, *names[heads:mlp], *of_mlp, *names[mlp:]]


def _part(layer: Layer, name: str, folded: bool, norm_place: str) -> nn.Module:
    simple: dict[str, Any] = {"attn": Attention, "mlp": Mlp}
    if name in simple:
        return simple[name](layer)
    behind = name.endswith("_post") or norm_place == "output"
    kind = "attention" if name.startswith("ln1") else "mlp"
    norm = getattr(layer, f"{kind}_output_norm" if behind else f"{kind}_norm")
    return NormPart(norm, folded and not behind)


def _add_points(part: nn.Module, names: list[str]) -> None:
    for name in names:
        part.add_module(name, HookPoint())


class StackedMethods:
    """W_Q, W_K, W_V, W_O, W_in, W_gate, W_out and their biases, (layer, ...), and W_E to b_U."""

    cfg: HookedTransformerConfig
    blocks: nn.ModuleList
    embed: Embed
    pos_embed: PosEmbed
    unembed: Unembed

    @property
    def W_E(self) -> Tensor:  # noqa: N802
        """(d_vocab, d_model)."""
        return self.embed.W_E

    @property
    def W_pos(self) -> Tensor:  # noqa: N802
        """(n_ctx, d_model)."""
        return self.pos_embed.W_pos

    @property
    def W_E_pos(self) -> Tensor:  # noqa: N802
        """Both tables, one below the other."""
        return torch.cat([self.W_E, self.W_pos])

    @property
    def W_U(self) -> Tensor:  # noqa: N802
        """(d_model, d_vocab)."""
        return self.unembed.W_U

    @property
    def b_U(self) -> Tensor:  # noqa: N802
        """(d_vocab)."""
        return self.unembed.b_U

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802
        """W_Q·W_Kᵀ of each layer and head."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802
        """W_V·W_O of each layer and head."""
        return FactoredMatrix(self.W_V, self.W_O)

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

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

    b_O: Tensor  # noqa: N815, TransformerLens' name
    b_out: Tensor

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


def _over_layers(part: str, name: str) -> property:
    def read(self: StackedMethods) -> Tensor | None:
        each = [getattr(getattr(block, part), name) for block in self.blocks]
        return None if each[0] is None else torch.stack(each)

    read.__doc__ = f"{name} of all layers, (layer, ...)."
    return property(read)


for _block_name, _kind in (("attn", Attention), ("mlp", Mlp)):
    for _name in _kind.weights:
        setattr(StackedMethods, _name, _over_layers(_block_name, _name))
