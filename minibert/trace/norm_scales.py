"""What the norms of a pass divided by, where an edit may have written it.

Whoever computes with a norm of a trace asks here: what an edit wrote does not follow from the
stream.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor

from minibert.layers.norms import Divisors, Norm, divisor, normed
from minibert.quantities import Float, NormScale
from minibert.trace.layer_view import LayerTrace
from minibert.trace.run import TracedModel

__all__ = ["divisors_of_final", "divisors_of_layer", "kept_scale", "normed_in_layer"]

Stream = Float[Tensor, "batch position width"]


@runtime_checkable
class Kept(Protocol):
    """What is asked of a trace."""

    model: TracedModel
    kept: dict[str, Tensor]


def kept_scale(at: LayerTrace, norm: str) -> NormScale | None:
    """What this norm of a layer divided by, where the pass kept it, as it does for an edit."""
    records = at.trace.records
    return records[at.layer].get(f"{norm}_scale") if at.layer < len(records) else None


def divisors_of_layer(at: LayerTrace, norm: str, x: Stream) -> Divisors | None:
    """What this norm divided x by, and what it would have; None where both are the same."""
    scale = kept_scale(at, norm)
    return None if scale is None else (scale, divisor(_norm(at, norm), x))


def divisors_of_final(trace: Kept, last: Stream) -> Divisors | None:
    """The same of the norm behind the layers, of the last resid_post."""
    # Asked first: without an edit a stored trace needs no weights here.
    if (scale := trace.kept.get("final_norm_scale")) is None:
        return None
    norm = trace.model.body.final_norm
    assert norm is not None, "only a model with this norm keeps its scale"
    return scale, divisor(norm, last)


def normed_in_layer(at: LayerTrace, norm: str, x: Stream) -> Stream:
    """x as this norm of the layer gave it on."""
    return normed(_norm(at, norm), x, divisors_of_layer(at, norm, x))


def _norm(at: LayerTrace, name: str) -> Norm:
    norm: Norm = getattr(at.trace.model.body.layers[at.layer], name)
    return norm
