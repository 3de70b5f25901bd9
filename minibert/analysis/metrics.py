"""What a metric of logits says of each sentence of a trace, padding left out."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.quantities import Float
from minibert.trace.places import Places
from minibert.trace.point import as_point
from minibert.trace.read import Trace
from minibert.trace.sweep import measured

__all__ = ["Metric", "numbers_of"]

Metric = Callable[[Tensor], Tensor]


def numbers_of(
    metric: Metric, trace: Trace, positions: Sequence[int] | None = None
) -> Float[Tensor, " batch"]:
    """One number a sentence: the metric of its logits, at these positions of its own or at all.

    The metric is given the same logits as by `Trace.rerun_each`: no padding. Raises EditError where
    it gives anything but one number for each sentence.
    """
    logits = trace.logits
    if as_point("logits", trace.config).of_text:
        return measured(metric, logits, None)
    places = Places.of(trace.allowed)
    if positions is None:
        return measured(metric, logits, places.lengths)
    rows = [
        # A metric may want one position twice.
        [places.positions(sentence, one, error=EditError)[0] for one in positions]
        for sentence in range(len(places.lengths))
    ]
    chosen = torch.stack([one[row] for one, row in zip(logits, rows, strict=True)])
    return measured(metric, chosen, None)
