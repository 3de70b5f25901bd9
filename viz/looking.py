"""How scores of a layer become weights, and which key-value head each head reads.

What a page has to know beside query and key: scale, soft cap, window, shared key-value heads and
rotation. A trace of another kind than ours may say less of it; then there is none of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.viz.inputs import Array

__all__ = ["Looking", "key_head", "key_heads", "looking_header", "n_key_heads", "rotation_header"]

# Digits of a frequency: an angle at position 10,000 is then right to 1e-5.
_DIGITS = 10


@dataclass(frozen=True)
class Looking:
    """How products of queries and keys become scores of a softmax.

    scale      scores = scale * query·key
    causal     no query looks ahead
    window     how many keys before and after its own position a query sees; None: all
    soft_cap   scores become cap * tanh(score / cap); None: they stay
    """

    scale: float
    causal: bool
    window: tuple[int, int] | None = None
    soft_cap: float | None = None

    @classmethod
    def of_trace(cls, config: Any, layer: int) -> "Looking":
        """That of a layer of a trace's model."""
        return cls(
            float(config.attention_scale(layer)), bool(config.causal), **_more(config, layer)
        )

    @classmethod
    def of_page(cls, about: Mapping[str, Any], layer: int) -> "Looking":
        """That of a layer, by its number, of a page's example."""
        place = about["layers"].index(layer)
        window = about["windows"][place] if "windows" in about else None
        return cls(
            about["scale"][place],
            about["causal"],
            None if window is None else tuple(window),
            about.get("soft_cap"),
        )

    def scores(self, products: Array, rows: npt.NDArray[np.int64]) -> Array:
        """query·key, (..., row, key), as what the softmax is taken of; −inf where masked.

        `products` is changed in place; `rows`, (..., row), says which query each row is.
        """
        scores = products
        scores *= self.scale
        if self.soft_cap is not None:
            np.tanh(scores / self.soft_cap, out=scores)
            scores *= self.soft_cap
        n_keys = scores.shape[-1]
        before, after = self.window or (n_keys, n_keys)
        keys, queries = np.arange(n_keys), rows[..., None]
        if self.window is not None:
            np.putmask(scores, np.broadcast_to(keys < queries - before, scores.shape), -np.inf)
        if self.causal or self.window is not None:
            ahead = keys > queries + (0 if self.causal else after)
            np.putmask(scores, np.broadcast_to(ahead, scores.shape), -np.inf)
        return scores


def _more(config: Any, layer: int) -> dict[str, Any]:
    window = getattr(config, "window", None)
    return {
        "window": window(layer) if window else None,
        "soft_cap": getattr(config, "attention_soft_cap", None),
    }


def n_key_heads(config: Any) -> int:
    """How many heads keys and values have."""
    return int(getattr(config, "n_kv_heads", config.n_heads))


def key_head(sizes: Mapping[str, Any], head: int) -> int:
    """The key-value head that a head of a page's example reads; `sizes` are the example's."""
    return head * sizes.get("n_kv_heads", sizes["n_heads"]) // sizes["n_heads"]


def key_heads(config: Any, heads: Sequence[int]) -> list[int]:
    """The key-value heads that these heads read, each once, in their order."""
    return list(dict.fromkeys(head * n_key_heads(config) // config.n_heads for head in heads))


def looking_header(config: Any, layers: Sequence[int]) -> dict[str, Any]:
    """The fields of a page's example about this, where the model has any of it."""
    each = [_more(config, layer) for layer in layers]
    windows = [one["window"] and list(one["window"]) for one in each]
    soft_cap = getattr(config, "attention_soft_cap", None)
    found: dict[str, Any] = {} if soft_cap is None else {"soft_cap": float(soft_cap)}
    return found | {"windows": windows} if any(windows) else found


def rotation_header(config: Any, layers: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """How query and key are turned in each layer of a text of so many tokens, in a rotary model.

    `rotary` has the turns that there are, `turned` the place there of each layer's.
    """
    of_layer = getattr(config, "rotary_of", None)
    if of_layer is None or getattr(config, "rotary", None) is None:
        return {}
    each = [of_layer(layer) for layer in layers]
    known = list(dict.fromkeys(each))
    rotary = [
        {
            "amplitude": one.amplitude,
            "frequencies": [
                float(f"{number:.{_DIGITS}g}") for number in one.frequencies(n_tokens).tolist()
            ],
        }
        for one in known
    ]
    return {"rotary": rotary, "turned": [known.index(one) for one in each]}
