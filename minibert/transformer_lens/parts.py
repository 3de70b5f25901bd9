"""The tree of parts that TransformerLens' names describe: `model.blocks[3].attn.W_Q`.

A part holds hook points and shows weights of minibert's model in TransformerLens' shapes, where the
stream is a row x and weights act on it from the right. They are views: writing into one
changes the model, and what is computed from one is differentiated into the model's parameters.
"""

from typing import Any

from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError
from minibert.layers.linear import Linear
from minibert.layers.norms import Norm
from minibert.transformer_lens.factored_matrix import FactoredMatrix

__all__ = ["Attention", "Block", "Embed", "Mlp", "NormPart", "Part", "PosEmbed", "Unembed"]


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
