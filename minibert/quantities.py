"""The glossary: every quantity of attention, its name, its axes and its formula.

The same name is used on a trace, in an edit, in a file, on a page and on the command line.

Axes
    batch      sentences that are computed together
    position   tokens of a sentence, in reading order
    query      the position that looks; the rows of an attention matrix
    key        the position that is looked at; its columns
    head       attention heads of one layer
    d_model    the width of the residual stream
    d_head     the width of one head's query, key and value
    d_mlp      the width inside the feed-forward block
    vocab      entries of the vocabulary, padding entries included

A boolean mask is True where attention is allowed.

Shapes stand in signatures as jaxtyping annotations. They are checked when jaxtyping is
imported before minibert, as the tests do; otherwise they cost nothing, and jaxtyping need
not be installed.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

import minibert.vector_math as _first_calls_of_torch  # noqa: F401 - for what its import does

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Shaped
else:

    class _Unchecked:
        """Reads `Float[Tensor, "..."]` as plain `Tensor`."""

        def __class_getitem__(cls, item: tuple[type, str]) -> type:
            return item[0]

    Bool = Float = Int = Shaped = _Unchecked

__all__ = [
    "QUANTITIES",
    "AttentionMask",
    "Bool",
    "Float",
    "HeadVectors",
    "Hidden",
    "Int",
    "Logits",
    "Matrix",
    "Mlp",
    "PerHeadHidden",
    "Quantity",
    "Shaped",
    "TokenIds",
    "TokenMask",
]

TokenIds = Int[Tensor, "batch position"]
TokenMask = Bool[Tensor, "batch position"]
AttentionMask = Bool[Tensor, "#batch 1 #query key"]
Hidden = Float[Tensor, "batch position d_model"]
Mlp = Float[Tensor, "batch position d_mlp"]
HeadVectors = Float[Tensor, "batch head position d_head"]
PerHeadHidden = Float[Tensor, "batch head position d_model"]
Matrix = Float[Tensor, "batch head query key"]
Logits = Float[Tensor, "batch *position out"]


@dataclass(frozen=True)
class Quantity:
    """One named quantity: where it lives and what it is."""

    name: str
    axes: tuple[str, ...]
    formula: str
    per_layer: bool = True

    @property
    def per_head(self) -> bool:
        """True when the quantity has one value a head."""
        return "head" in self.axes


_STREAM = ("batch", "position", "d_model")
_MLP = ("batch", "position", "d_mlp")
_HEAD = ("batch", "head", "position", "d_head")
_MATRIX = ("batch", "head", "query", "key")

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        Quantity("embed", _STREAM, "what enters layer 0", per_layer=False),
        Quantity("resid_pre", _STREAM, "the stream before attention"),
        Quantity("query", _HEAD, "x·W_Q + b_Q, x = resid_pre (pre-norm: its LayerNorm)"),
        Quantity("key", _HEAD, "x·W_K + b_K"),
        Quantity("value", _HEAD, "x·W_V + b_V"),
        Quantity("scores", _MATRIX, "query·key / sqrt(d_head), before the mask"),
        Quantity("probs", _MATRIX, "softmax of the masked scores over keys; 0 where masked"),
        Quantity("z", _HEAD, "probs·value"),
        Quantity("head_out", ("batch", "head", "position", "d_model"), "z·W_O of that head"),
        Quantity("attn_out", _STREAM, "sum of head_out over heads + b_O"),
        Quantity("resid_mid", _STREAM, "resid_pre + attn_out (post-norm: its LayerNorm)"),
        Quantity("mlp_pre", _MLP, "x·W_in + b_in, x = resid_mid (pre-norm: its LayerNorm)"),
        Quantity("mlp_post", _MLP, "activation(mlp_pre)"),
        Quantity("mlp_out", _STREAM, "mlp_post·W_out + b_out"),
        Quantity("resid_post", _STREAM, "resid_mid + mlp_out (post-norm: its LayerNorm)"),
        Quantity(
            "logits",
            ("batch", "position", "vocab"),
            "what the task head gives; without one, the last hidden state",
            per_layer=False,
        ),
        Quantity(
            "mask",
            ("batch", "1", "query", "key"),
            "True where attention is allowed",
            per_layer=False,
        ),
    )
}
