"""The weights of all layers in one tensor, and what is computed from weights alone."""

import torch
from torch import Tensor, nn

from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.factored_matrix import FactoredMatrix, composition_scores
from minibert.transformer_lens.parts import Attention, Embed, Mlp, PosEmbed, Unembed

__all__ = ["StackedMethods"]


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


for _part, _kind in (("attn", Attention), ("mlp", Mlp)):
    for _name in _kind.weights:
        setattr(StackedMethods, _name, _over_layers(_part, _name))
