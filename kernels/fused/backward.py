"""The backward of attention by Triton, and the relevance of its cells, without an N x N tensor.

`backward_launch.py` starts the kernels; `backward_keys.py` has their formulas.
"""

from collections.abc import Iterable

from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.backward_launch import by_keys, by_queries, fill, of_bias, problem_of
from minibert.kernels.fused.launch import Config
from minibert.quantities import Float

#: What can be summed over the cells, and the number by which the kernels know it.
RELEVANCES = {"relevance": 1, "positive_relevance": 2, "absolute_relevance": 3}

_VECTORS = ("query", "key", "value")


def backward(
    call: Call,
    z_gradient: Float[Tensor, "batch head query d_value"],
    z: Float[Tensor, "batch head query d_value"],
    lse: Float[Tensor, "batch head query"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    wanted: Iterable[str] = _VECTORS,
    relevance: str | None = None,
    weights: Float[Tensor, "batch #head query"] | None = None,
    configs: dict[str, Config] | None = None,
) -> Outputs:
    """The gradients of what is `wanted`: "query", "key", "value", "bias", "sinks".

    They have the inputs' dtypes. z and lse are what the forward gave for the same call;
    dead rows (lse −inf) take no part. `relevance`, one of RELEVANCES, adds in the same
    pass "relevance_by_key", the sum over the queries of w·f(P ∘ dP), (batch, head, key), and
    "relevance_by_query", the sum over the keys of f(P ∘ dP), (batch, head, query), both float32,
    with the query's heads. There f is the number itself, its positive part or its size,
    dP = z_gradient·valueᵀ, and w are `weights`, 1 unless given.
    Memory beside the results: 8 bytes a query and head, 12 with weights. `configs` replaces the
    config of "key_value" or "query". The same call gives the same bits.
    Raises AttentionError for an unknown name, for "bias" or "sinks" without one, for heads too wide
    for this GPU.
    Source: Dao 2023, "FlashAttention-2", algorithm 2.
    """
    chosen, kind, configs = _chosen(wanted, call), _kind(relevance), configs or {}
    problem, of_sinks = fill(
        problem_of(call, z_gradient),
        lse,
        z=z,
        lse_gradient=lse_gradient,
        weights=weights if kind else None,
        sinks="sinks" in chosen,
    )
    found: Outputs = {}
    if kind or chosen & {"key", "value"}:
        found |= by_keys(problem, kind=kind, cut=configs.get("key_value"))
    if kind or "query" in chosen:
        found |= by_queries(problem, kind=kind, cut=configs.get("query"))
    if call.bias is not None and "bias" in chosen:
        found["bias"] = of_bias(problem, call.bias, cut=configs.get("query"))
    if call.sinks is not None and of_sinks is not None:
        found["sinks"] = of_sinks.to(call.sinks.dtype)
    return {name: one for name, one in found.items() if name in chosen or name not in _VECTORS}


def relevance_columns(
    call: Call,
    z_gradient: Float[Tensor, "batch head query d_value"],
    *,
    lse: Float[Tensor, "batch head query"],
    of: str = "relevance",
    weights: Float[Tensor, "batch #head query"] | None = None,
) -> Float[Tensor, "batch head key"]:
    """The sum over the queries of w·f(P ∘ dP) for each key, float32: relevance without gradients.

    f, dP and w as in `backward`. With "positive_relevance", and as weights the relevance r of the
    queries, the mean over heads is the step r·Ā of Chefer et al. 2021 (equation 5).
    Raises AttentionError for an unknown `of`.
    """
    problem, _ = fill(problem_of(call, z_gradient), lse, weights=weights)
    return by_keys(problem, kind=_kind(of), cut=None)["relevance_by_key"]


def _chosen(wanted: Iterable[str], call: Call) -> set[str]:
    chosen = set(wanted)
    given = {"bias": call.bias, "sinks": call.sinks}
    known = (*_VECTORS, *(name for name, one in given.items() if one is not None))
    if unknown := chosen - set(known):
        missing = [f"no {name} was given" for name in given if name in unknown]
        raise AttentionError(
            f"wanted asks for the gradient of {', '.join(sorted(unknown))}; there are "
            f"{', '.join(known)}{' (' * bool(missing)}{', '.join(missing)}{')' * bool(missing)}."
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
