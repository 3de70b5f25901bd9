"""Statistics of the attention of a trace, computed by `minibert.kernels` without an N x N tensor.

query and key of the trace are given to the fastest implementation there is, on a GPU the fused
kernel. Ask `follows_from_vectors` first: where it is False (an edit changed scores or probs, or
they were kept), the statistics have to be computed from the matrix itself.
"""

from typing import Any

from torch import Tensor

from minibert.kernels.columns import column_sums
from minibert.quantities import Float
from minibert.trace.read import Trace


def follows_from_vectors(trace: Trace, layer: int) -> bool:
    """Whether the probs of a layer are the softmax of its query and key, and not there already."""
    kept = trace.records[layer] if layer < len(trace.records) else {}
    return kept.keys().isdisjoint({"scores", "probs"})


def columns_of_probs(
    trace: Trace, layer: int, weights: Float[Tensor, "batch position"]
) -> Float[Tensor, "batch head position"]:
    """For each key the sum of w · P over queries; for a layer that `follows_from_vectors`."""
    query, key, options = _attention(trace, layer)
    return column_sums(query, key, weights=weights.unsqueeze(1), **options)


def columns_of_relevance(
    trace: Trace, layer: int, weights: Float[Tensor, "batch position"]
) -> Float[Tensor, "batch head position"] | None:
    """For each key the sum of w · max(dy/dP ∘ P, 0) over queries; read after `trace.backward`.

    None where dy/dP is not dz · valueᵀ alone: y was made of probs, or an edit stands behind them.
    """
    found = trace.grad.found
    plain = "probs" not in found.records[layer] and (layer, "probs") not in found.direct
    if not plain or not follows_from_vectors(trace, layer):
        return None
    query, key, options = _attention(trace, layer)
    return column_sums(
        query,
        key,
        value=trace.read("value", layer).detach(),
        z_gradient=trace.grad.read("z", layer),
        weights=weights.unsqueeze(1),
        of="positive_relevance",
        **options,
    )


def _attention(trace: Trace, layer: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """query, key and the options of `attend` for one layer."""
    query, key = (trace.read(name, layer).detach() for name in ("query", "key"))
    options = trace.config.attend_options(layer)
    if trace.allowed.lengths is not None:
        options["lengths"] = trace.allowed.length_tensor
    return query, key, options
