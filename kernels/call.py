"""One attention call, as the model, every implementation, the checker and the bench describe it."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.requests import Want
from minibert.quantities import Float, Int

__all__ = ["Call"]


@dataclass(frozen=True, eq=False)
class Call:
    """query, key and value of one layer, which keys may be seen, and what is wanted beside z.

    scores = scale · query · keyᵀ; s = soft_cap · tanh(scores / soft_cap) + bias − alibi_slope ·
    |distance|, each where it is given; probs = softmax of s over the allowed keys, with a sink
    beside them where there are sinks; z = probs · value.

    query is (batch, head, query, d_head), key (batch, kv_head, key, d_head) and value (batch,
    kv_head, key, d_value). Query head h reads key head h // (heads / kv_heads) (Ainslie et al.
    2023). Packed sentences are a batch of one: (1, head, token, d_head). With pages, (batch, n),
    key and value are (page, kv_head, slot, ...), and sentence b has the keys of pages[b], one page
    after the other, as many as its length says (Kwon et al. 2023, section 4).
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "some_batch kv_head slot d_head"]
    value: Float[Tensor, "some_batch kv_head slot d_value"]
    scale: float
    allowed: AllowedKeys
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    want: Want = field(default_factory=dict)
    """By name, "lse" among them; with the parameters of those that have some."""
    soft_cap: float | None = None
    """Scores are squeezed into −soft_cap … soft_cap (Gemma Team 2024, section 2)."""
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None
    """What a score loses for each position between query and key (Press et al. 2022)."""
    sinks: Float[Tensor, " head"] | None = None
    """One more logit in each row's softmax, of no key and no value (Xiao et al. 2024)."""
    pages: Int[Tensor, "batch page"] | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that gradients may flow to, by name."""
        given = {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "bias": self.bias,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
        }
        return {name: one for name, one in given.items() if one is not None}

    @property
    def requires_grad(self) -> bool:
        """Whether gradients may flow to one of its tensors."""
        return (
            self.query.requires_grad
            or self.key.requires_grad
            or self.value.requires_grad
            or (self.bias is not None and self.bias.requires_grad)
            or (self.alibi_slopes is not None and self.alibi_slopes.requires_grad)
            or (self.sinks is not None and self.sinks.requires_grad)
        )

    @property
    def asks(self) -> frozenset[str]:
        """The options and shapes that an implementation must take."""
        query, found = self.query, set(self.allowed.options)
        for name in ("bias", "soft_cap", "alibi_slopes", "sinks", "pages"):
            if getattr(self, name) is not None:
                found.add(name)
        if query.shape[1] != self.key.shape[1]:
            found.add("groups")
        if query.shape[3] != self.value.shape[3]:
            found.add("value_size")
        # Whoever takes no scale takes that of Vaswani et al.
        if abs(self.scale * self.scale * query.shape[3] - 1) > 1e-12 or self.scale < 0:
            found.add("scale")
        return frozenset(found)

    def options(self) -> dict[str, Any]:
        """The keywords that an implementation takes, by name."""
        keys, told = self.allowed, self.allowed.options
        return {
            "lengths": keys.length_tensor,
            "mask": self._mask_apart() if "mask" in told else None,
            "causal": keys.in_order,
            "scale": self.scale,
            "bias": self.bias,
            "want": self.want,
            "packed": keys.packed,
            "packed_keys": keys.packed_keys,
            "window": keys.window if "window" in told else None,
            "prefix": keys.prefix if "prefix" in told else None,
            "soft_cap": self.soft_cap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "pages": self.pages,
        }

    def _mask_apart(self) -> Tensor | None:
        return self.allowed.mask(self.query.shape[2], lengths=False, order=False, window=False)
