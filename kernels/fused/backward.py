"""The backward of attention by Triton, and the relevance of its cells, without an N x N tensor.

`backward_launch.py` starts the kernels; `backward_keys.py` has their formulas.
"""

from collections.abc import Iterable

from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.fused.backward_launch import (
    Tile,
    by_keys,
    by_queries,
    delta_and_lse,
    filled_lse,
    filled_weights,
    of_bias,
    rows_of,
)
from minibert.quantities import Bool, Float, Int

__all__ = ["RELEVANCES", "Tile", "backward", "relevance_columns"]

#: What can be summed over the cells, and the number by which the kernels know it.
RELEVANCES = {"relevance": 1, "positive_relevance": 2, "absolute_relevance": 3}

_GRADIENTS = ("query", "key", "value", "bias")


def backward(
    z_gradient: Float[Tensor, "batch head query d_head"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    z: Float[Tensor, "batch head query d_head"],
    lse: Float[Tensor, "batch head query"],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    wanted: Iterable[str] = ("query", "key", "value"),
    relevance: str | None = None,
    weights: Float[Tensor, "batch #head query"] | None = None,
    tiles: dict[str, Tile] | None = None,
) -> dict[str, Tensor]:
    """The gradients of what is `wanted`: "query", "key", "value", "bias", in the inputs' dtype.

    z and lse are what the forward gave for the same inputs and options; dead rows (lse −inf) take
    no part. `relevance`, one of RELEVANCES, adds in the same pass "relevance_by_key", the sum over
    the queries of w·f(P ∘ dP), (batch, head, key), and "relevance_by_query", the sum over the keys
    of f(P ∘ dP), (batch, head, query), both float32. There f is the number itself, its positive
    part or its size, dP = z_gradient·valueᵀ, and w are `weights`, 1 unless given.
    Memory beside the results: 8 bytes a query and head, 12 with weights. `tiles` replaces the
    tile of "key_value" or "query". The same call gives the same bits.
    Raises AttentionError for an unknown name, or for "bias" without one.
    Source: Dao 2023, "FlashAttention-2", algorithm 2.
    """
    chosen, kind, tiles = _chosen(wanted, bias), _kind(relevance), tiles or {}
    rows = rows_of(
        query,
        key,
        value,
        z_gradient,
        lengths=lengths,
        mask=mask,
        bias=bias,
        causal=causal,
        scale=scale,
    )
    delta, in_base_2 = delta_and_lse(rows, z, lse, lse_gradient)
    found: dict[str, Tensor] = {}
    if kind or chosen & {"key", "value"}:
        filled = filled_weights(weights, query.shape[1])
        tile = tiles.get("key_value")
        found |= by_keys(rows, in_base_2, delta, weights=filled, kind=kind, tile=tile)
    if kind or "query" in chosen:
        found |= by_queries(rows, in_base_2, delta, kind=kind, tile=tiles.get("query"))
    if bias is not None and "bias" in chosen:
        found["bias"] = of_bias(rows, in_base_2, delta, bias, tile=tiles.get("query"))
    return {name: one for name, one in found.items() if name in chosen or name not in _GRADIENTS}


def relevance_columns(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    *,
    lse: Float[Tensor, "batch head query"],
    value: Float[Tensor, "batch head key d_head"],
    z_gradient: Float[Tensor, "batch head query d_head"],
    of: str = "relevance",
    weights: Float[Tensor, "batch #head query"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
) -> Float[Tensor, "batch head key"]:
    """The sum over the queries of w·f(P ∘ dP) for each key, float32: relevance without gradients.

    f, dP and w as in `backward`. With "positive_relevance", and as weights the relevance r of the
    queries, the mean over heads is the step r·Ā of Chefer et al. 2021 (equation 5).
    Raises AttentionError for an unknown `of`.
    """
    rows = rows_of(
        query,
        key,
        value,
        z_gradient,
        lengths=lengths,
        mask=mask,
        bias=bias,
        causal=causal,
        scale=scale,
    )
    filled = filled_weights(weights, query.shape[1])
    found = by_keys(rows, filled_lse(lse), None, weights=filled, kind=_kind(of), tile=None)
    return found["relevance_by_key"]


def _chosen(wanted: Iterable[str], bias: Tensor | None) -> set[str]:
    chosen = set(wanted)
    known = _GRADIENTS if bias is not None else _GRADIENTS[:3]
    if unknown := chosen - set(known):
        raise AttentionError(
            f"wanted asks for the gradient of {', '.join(sorted(unknown))}; there are "
            f"{', '.join(known)}{'' if bias is not None else ' (no bias was given)'}."
        )
    return chosen


def _kind(relevance: str | None) -> int:
    if relevance is None:
        return 0
    if relevance not in RELEVANCES:
        raise AttentionError(
            f"{relevance!r} is no relevance; expected one of {', '.join(RELEVANCES)}."
        )
    return RELEVANCES[relevance]
