"""The formula of every quantity of a layer, in the order of the data.

A trace reads through `Place`: what the forward pass kept comes from there, everything else is
computed from what is nearest, for the chosen heads and rows alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from minibert.kernels.eager import attention_probs, attention_scores
from minibert.kernels.sdpa import fused_attention
from minibert.quantities import QUANTITIES

__all__ = ["EVERYTHING", "FORMULAS", "Place", "cut"]

EVERYTHING = slice(None)


@dataclass(frozen=True)
class Place:
    """One place of a trace, read by quantity."""

    trace: Any
    index: int
    heads: slice
    queries: slice

    @property
    def layer(self) -> Any:
        """The layer's weights."""
        return self.trace.model.body.layers[self.index]

    @property
    def attention(self) -> Any:
        """The layer's attention."""
        return self.layer.attention

    def __getitem__(self, name: str) -> Tensor:
        records = self.trace.records
        kept = records[self.index].get(name) if self.index < len(records) else None
        if kept is None:
            return FORMULAS[name](self)
        return cut(kept, name, self.heads, self.queries)

    def all_heads(self, name: str) -> Tensor:
        """A quantity of every head and row, for what sums over them."""
        return replace(self, heads=EVERYTHING, queries=EVERYTHING)[name]

    def project(self, name: str) -> Tensor:
        """query, key or value, where the pass stopped before it."""
        return self.attention.project(
            name, self.layer.attention_input(self["resid_pre"]), self.heads
        )

    def before(self) -> Tensor:
        """What left the layer below, or the embeddings."""
        return replace(self, index=self.index - 1)["resid_post"] if self.index else self.trace.embed

    def scores(self) -> Tensor:
        """query·key / sqrt(d_head) of the chosen heads and rows."""
        query = self["query"][:, :, self.queries]
        return attention_scores(query, self["key"], scale=self.attention.scale)

    def z(self) -> Tensor:
        """probs·value, where the pass stopped before it."""
        mask = self.trace.allowed.rows()
        query, key, value = self["query"], self["key"], self["value"]
        return fused_attention(query, key, value, mask=mask, scale=self.attention.scale)


def cut(value: Tensor, name: str, heads: slice, queries: slice) -> Tensor:
    """A quantity, or its gradient, cut to the chosen heads and rows, where it has such axes."""
    # Untouched where all of it is wanted: gradients flow to what the pass really used.
    if QUANTITIES[name].per_head and heads != EVERYTHING:
        value = value[:, heads]
    if "query" in QUANTITIES[name].axes and queries != EVERYTHING:
        value = value[:, :, queries]
    return value


FORMULAS: dict[str, Callable[[Place], Tensor]] = {
    "resid_pre": lambda at: at.before(),
    "query": lambda at: at.project("query"),
    "key": lambda at: at.project("key"),
    "value": lambda at: at.project("value"),
    "scores": lambda at: at.scores(),
    "probs": lambda at: attention_probs(at["scores"], at.trace.allowed.rows(at.queries)),
    "z": lambda at: at.z(),
    "head_out": lambda at: at.attention.head_out(at["z"], at.heads),
    "attn_out": lambda at: at.attention.attn_out(at.all_heads("z")),
    "resid_mid": lambda at: at.layer.mid(at["resid_pre"], at["attn_out"]),
    "mlp_pre": lambda at: at.layer.mlp.pre(at.layer.mlp_input(at["resid_mid"])),
    "mlp_post": lambda at: at.layer.mlp.post(at["mlp_pre"]),
    "mlp_out": lambda at: at.layer.mlp.down(at["mlp_post"]),
    "resid_post": lambda at: at.layer.post(at["resid_mid"], at["mlp_out"]),
}
