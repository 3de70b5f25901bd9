"""The norms of one layer by what they stand between."""

from typing import NamedTuple

from minibert.layers.norms import Norm
from minibert.layers.parts import Layer

__all__ = ["BlockNorms", "attention_norms", "mlp_norms"]


class BlockNorms(NamedTuple):
    """The norms of attention or of the MLP; None where the model has none in that place.

    before   of what the block reads from the stream
    output   of what it writes, before the sum with the stream
    after    of that sum
    """

    before: Norm | None
    output: Norm | None
    after: Norm | None


def attention_norms(layer: Layer) -> BlockNorms:
    """Those of attention."""
    return _norms(layer, layer.attention_norm, layer.attention_output_norm)


def mlp_norms(layer: Layer) -> BlockNorms:
    """Those of the MLP."""
    return _norms(layer, layer.mlp_norm, layer.mlp_output_norm)


def _norms(layer: Layer, norm: Norm | None, output: Norm | None) -> BlockNorms:
    return BlockNorms(None if layer.after else norm, output, norm if layer.after else None)
