"""An estimate of every patch from one gradient.

To patch a value a with the value a' of another text moves the metric by about (a' − a) · dm/da, its
first order. The gradient has this for all layers, heads and positions at once, where a sweep of
patches needs a forward pass for each. It misses what is far from linear: a head that only moves a
softmax from nearly 1 is estimated too small. Confirm what is found by patching (`patch_heads`).

Sources: Nanda 2023, "Attribution patching: activation patching at industrial scale"; Syed, Rager
and Conmy 2023, "Attribution patching outperforms automated circuit discovery"; Sundararajan, Taly
and Yan 2017, "Axiomatic attribution for deep networks", section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_callable,
    check_choice,
    check_pair,
    check_unedited,
    listed,
    real_tokens,
)
from minibert.analysis.metrics import Metric, numbers_of
from minibert.analysis.patching import standard_error
from minibert.errors import EditError
from minibert.layers.evaluation import Evaluation
from minibert.layers.linear import held
from minibert.quantities import QUANTITIES, Float
from minibert.result import Result, sourced
from minibert.trace.edit import as_point
from minibert.trace.gradients import Gradients, differentiate
from minibert.trace.plan import Plan
from minibert.trace.read import Trace
from minibert.trace.record import check_grad, record


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PatchEstimates(Result[Tensor]):
    """What patching one quantity would change, (layer, batch, head, position).

    The axis of heads is there for quantities that have it; that of keys and values counts
    key-value heads. Padding has 0. The tokens are those of the clean sentences.
    """

    @property
    def total(self) -> Float[Tensor, "layer batch *head"]:
        """The same for a patch at all positions together: the sum over them."""
        return self.values.sum(-1)

    @property
    def mean(self) -> Float[Tensor, "layer *head"]:
        """The total, the mean over the pairs of texts."""
        return self.total.mean(1)

    @property
    def standard_error(self) -> Float[Tensor, "layer *head"]:
        """Of the mean over the pairs. Raises EditError for one pair, which has none."""
        return standard_error(self.total)

    def shown(self) -> Result[Tensor]:
        """The total of each head, or without heads every position."""
        if "head" not in self.axes:
            return self
        return Result(self.total, "layer batch head", self.title, self.unit, signed=True)


@sourced
def attribution_patching(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    quantities: Sequence[str] = ("z",),
    at: str = "clean",
    other_model: bool = False,
) -> dict[str, PatchEstimates]:
    """(corrupt value − clean value) · d metric / d value of each quantity, by its name.

    What `patch_heads(clean, corrupt, metric).change` measures, to first order. `metric` is given
    logits and returns one number a sentence; `quantities` are those of a layer with positions: z,
    query, key, value, resid_pre, resid_mid, resid_post, attn_out, mlp_out and others. Sentence i of
    one trace is paired with sentence i of the other, which has the same length. The gradient is
    taken `at` the clean or the corrupt text.

    It costs one backward pass, and one more forward pass unless the trace that the gradient is
    taken at was made with `grad=True`; the gradients that such a trace holds stay as they are.

    Raises EditError for quantities without positions, for texts of different lengths and for traces
    of two models unless `other_model`, and TraceError where the metric does not depend on the
    logits by a gradient.
    """
    check_pair(clean, corrupt, "corrupt", other_model=other_model)
    check_callable(metric, "metric", EditError)
    check_choice(at, "at", ("clean", "corrupt"))
    names = _checked(clean, quantities)
    here = _differentiable(clean if at == "clean" else corrupt)
    with torch.enable_grad():
        total = numbers_of(metric, here).sum()
    gradients = Gradients(here, differentiate(here, total))
    with torch.no_grad():
        return {name: _estimates(name, clean, corrupt, gradients) for name in names}


def _estimates(name: str, clean: Trace, corrupt: Trace, gradients: Gradients) -> PatchEstimates:
    layers = []
    for layer in range(clean.config.n_layers):
        moved = corrupt.read(name, layer).detach() - clean.read(name, layer).detach()
        layers.append((moved * gradients.read(name, layer)).sum(-1))
    values = torch.stack(layers)  # layer batch *head position
    for sentence, length in enumerate(real_tokens(clean)):
        values[:, sentence, ..., length:] = 0
    return PatchEstimates(
        values,
        f"layer batch{' head' * (values.dim() == 4)} position",
        title=f"Patching {name}",
        unit="estimated change",
        tokens=clean.tokens.strings,
        signed=True,
    )


def _checked(trace: Trace, quantities: Sequence[str]) -> tuple[str, ...]:
    names = listed(quantities, "quantities", EditError, 'names of quantities, as ("z", "mlp_out")')
    if not names:
        raise EditError('quantities: expected at least one name, as ("z",).')
    for name in names:
        if not isinstance(name, str) or name not in QUANTITIES:
            raise EditError(f"quantities: {name!r:.80} is not a quantity; z and mlp_out are.")
        quantity = QUANTITIES[name]
        if not quantity.per_layer or "position" not in quantity.axes:
            raise EditError(
                f"quantities: {name} has no layers or no positions; z, query, key, value, "
                "resid_pre, mlp_out and others have."
            )
        # A quantity that this model lacks is refused in its own words.
        as_point((name, 0), trace.config)
    return tuple(names)


def _differentiable(trace: Trace) -> Trace:
    """The trace, or the same pass again with a graph."""
    if trace.differentiable:
        return trace
    check_unedited(trace)
    check_grad(True, None, held(trace.model.body))
    evaluation = Evaluation(trace.allowed, trace.evaluation.impl)
    again = Trace(trace.model, trace.inputs, evaluation, until=trace.until, grad=True)
    again.autocast = trace.autocast
    with trace.as_made():
        record(again, keep=(), plan=Plan())
    return again
