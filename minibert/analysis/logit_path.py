"""The way of a logit back through a model, and what each component wrote that it reads.

It begins as the unembedding's row of a token and is pulled back through everything that stands
between that and a place where something was added to the stream; attribution.py says what is
frozen on the way.
"""

import torch
from torch import Tensor

from minibert.analysis.components import Component
from minibert.analysis.frozen_norm import FrozenNorm, bias_of, gate, weight_of
from minibert.analysis.precision import wide
from minibert.layers.heads import VocabularyHead
from minibert.layers.linear import Linear
from minibert.layers.linear_backends import activate
from minibert.layers.parts import Layer
from minibert.quantities import Float
from minibert.trace.read import LayerTrace, Trace

__all__ = ["logit_terms"]

Direction = Float[Tensor, "sentence width"]


def logit_terms(
    rows: Trace, head: VocabularyHead, token: Tensor, against: Tensor | None
) -> list[tuple[Component, Float[Tensor, " sentence"]]]:
    """Every component and its value, in the order of the data, at the one position of `rows`."""
    path = _Path()
    path.through_head(head, rows.hidden[:, 0], token, against)
    path.through_norm("final norm bias", None, FrozenNorm.of_final(rows))
    for here in reversed(list(rows)):
        _through_layer(path, here, rows.model.body.layers[here.layer])
    path.add(Component("embed"), rows.embed[:, 0])
    return path.terms[::-1]


def _through_layer(path: "_Path", here: LayerTrace, weights: Layer) -> None:
    layer, mlp_out = here.layer, here.mlp_out
    if weights.after:
        norm = FrozenNorm.of_layer(here, "mlp_norm", here.resid_mid + mlp_out)
        path.through_norm("mlp norm bias", layer, norm)
    stream = path.direction
    norm = FrozenNorm.of_layer(here, "mlp_output_norm", mlp_out)
    path.through_norm("mlp output norm bias", layer, norm)
    path.add(Component("mlp", layer), mlp_out[:, 0])
    # The stream passes beside the norm of a block's output.
    path.direction = stream
    if weights.after:
        norm = FrozenNorm.of_layer(here, "attention_norm", here.resid_pre + here.attn_out)
        path.through_norm("attention norm bias", layer, norm)
    stream = path.direction
    norm = FrozenNorm.of_layer(here, "attention_output_norm", here.attn_out)
    path.through_norm("attention output norm bias", layer, norm)
    head_out = here.head_out
    if weights.attention.b_O is not None:
        # The sum over no heads leaves the bias.
        bias = weights.attention.sum_of_heads(head_out[:, :0])[:, 0]
        path.add(Component("attention bias", layer), bias)
    for head in reversed(range(head_out.shape[1])):
        path.add(Component("head", layer, head), head_out[:, head, 0])
    path.direction = stream


class _Path:
    """The direction that reads the logit from the stream, on its way back to the embeddings."""

    def __init__(self) -> None:
        self.direction: Direction = torch.empty(0)
        self.terms: list[tuple[Component, Float[Tensor, " sentence"]]] = []

    def add(self, component: Component, part: Tensor) -> None:
        """Note what a component that wrote `part` here adds to the logit."""
        self.terms.append((component, (wide(part) * self.direction).sum(-1)))

    def through_norm(self, name: str, layer: int | None, norm: FrozenNorm | None) -> None:
        """Go back through a norm at the one position, if there is one."""
        if norm is None:
            return
        frozen = norm.at(0)
        if frozen.bias is not None:
            self.add(Component(name, layer), frozen.bias)
        self.direction = frozen.pull(self.direction)

    def through_head(
        self, head: VocabularyHead, hidden: Tensor, token: Tensor, against: Tensor | None
    ) -> None:
        """Start at the logit and go back to the hidden state."""
        weight, bias = _difference(head.decoder, token, against)
        self.direction = weight
        if bias is not None:
            self.terms.append((Component("unembedding bias"), bias))
        if head.transform is None or head.norm is None:
            return
        pre = head.transform(hidden)
        post = activate(pre, head.activation)
        self.through_norm("transform norm bias", None, FrozenNorm.of(head.norm, post[:, None]))
        self.direction = self.direction * gate(pre, head.activation)
        bias = bias_of(head.transform)
        if bias is not None:
            self.add(Component("transform bias"), bias)
        self.direction = self.direction @ weight_of(head.transform)


def _difference(
    decoder: Linear, token: Tensor, against: Tensor | None
) -> tuple[Direction, Float[Tensor, " sentence"] | None]:
    """The unembedding's row and bias for `token`, less those for `against`."""
    bias = bias_of(decoder)
    row = weight_of(decoder, token) - (0 if against is None else weight_of(decoder, against))
    if bias is None:
        return row, None
    return row, bias[token] - (0 if against is None else bias[against])
