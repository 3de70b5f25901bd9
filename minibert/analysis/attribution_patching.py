"""Attribution patching: an estimate of what every patch would do, from one backward pass.

To patch a value a with the value a' of another text moves the metric by about (a' − a) · dm/da, its
first order. The gradient has this for all layers, heads and positions at once, where a sweep of
patches needs a forward pass for each. It misses what is far from linear: a head that only moves a
softmax from nearly 1 is estimated too small. Confirm what is found by patching (`patch_heads`).

Sources: Nanda 2023, "Attribution patching: activation patching at industrial scale"; Syed, Rager
and Conmy 2023, "Attribution patching outperforms automated circuit discovery".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_choice, check_unedited, listed
from minibert.analysis.metrics import Metric, numbers_of
from minibert.analysis.positions import check_same_lengths
from minibert.doors import Figure, plots
from minibert.errors import EditError
from minibert.layers.evaluation import Evaluation
from minibert.quantities import QUANTITIES, Float
from minibert.trace.edit import as_point
from minibert.trace.gradients import Gradients, differentiate
from minibert.trace.places import Places
from minibert.trace.plan import Plan
from minibert.trace.read import Trace
from minibert.trace.record import check_grad, record

__all__ = ["PatchEstimates", "attribution_patching"]


@dataclass(frozen=True, eq=False)
class PatchEstimates:
    """What patching one quantity would change, at every layer, head and position.

    The axis of heads is there for quantities that have it; that of keys and values counts
    key-value heads. Padding has 0.
    """

    name: str
    values: Float[Tensor, "layer batch *head position"]
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each clean sentence."""

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
        """Of the mean over the pairs; nan for one pair."""
        return self.total.std(1) / self.total.shape[1] ** 0.5

    def plot(self, path: str | Path | None = None, *, sentence: int | None = 0) -> Figure:
        """The matplotlib Figure of one sentence: layer x head, or layer x token without heads.

        `sentence=None` draws the mean over the pairs, of a quantity with heads. Saved where `path`
        is given, as SVG, PDF or PNG by its name. Raises TraceError for a sentence that is not
        there, EditError for a mean without heads, and MinibertError without matplotlib.
        """
        title, unit = f"Patching {self.name}", "estimated change"
        if sentence is None and self.values.dim() != 4:
            raise EditError(
                f"{self.name} has no heads, and its positions are other tokens in each sentence; "
                "draw one, as plot(sentence=0), or read `mean`."
            )
        index, tokens = plots.chosen_sentence(self.labels, sentence or 0)
        if self.values.dim() == 4:
            values = self.mean if sentence is None else self.total[:, index]
            heat = plots.by_head(values, title=title, unit=unit, signed=True)
            return plots.heat_map(heat, path)
        heat = plots.Heat(
            self.values[:, index, : len(tokens)],
            rows=[str(layer) for layer in range(len(self.values))],
            columns=tokens,
            title=title,
            unit=unit,
            row_title="layer",
            tokens="x",
            signed=True,
        )
        return plots.heat_map(heat, path)


def attribution_patching(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    quantities: Sequence[str] = ("z",),
    at: str = "clean",
) -> dict[str, PatchEstimates]:
    """(corrupt value − clean value) · d metric / d value of each quantity, by its name.

    What `patch_heads(clean, corrupt, metric).change` measures, to first order. `metric` is given
    logits and returns one number a sentence; `quantities` are those of a layer with positions: z,
    query, key, value, resid_pre, resid_mid, resid_post, attn_out, mlp_out and others. Sentence i of
    one trace is paired with sentence i of the other, which has the same length. The gradient is
    taken `at` the clean or the corrupt text.

    It costs one backward pass, and one more forward pass unless the trace that the gradient is
    taken at was made with `grad=True`; the gradients that such a trace holds stay as they are.

    Raises EditError for quantities without positions and for texts of different lengths, and
    TraceError where the metric does not depend on the logits by a gradient.
    """
    check_same_lengths(clean, corrupt, "corrupt")
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
    for sentence, length in enumerate(Places.of(clean.allowed).lengths):
        values[:, sentence, ..., length:] = 0
    return PatchEstimates(name, values, clean.tokens.strings)


def _checked(trace: Trace, quantities: Sequence[str]) -> tuple[str, ...]:
    names = listed(quantities, "quantities", EditError, 'names of quantities, as ("z", "mlp_out")')
    if not names:
        raise EditError('quantities: expected at least one name, as ("z",).')
    for name in names:
        if not isinstance(name, str) or name not in QUANTITIES:
            raise EditError(f"quantities: {name!r:.80} is no quantity; z and mlp_out are.")
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
    check_grad(True, None, trace.model.body.parameters())
    evaluation = Evaluation(trace.allowed, trace.evaluation.impl)
    again = Trace(trace.model, trace.inputs, evaluation, until=trace.until, grad=True)
    again.autocast = trace.autocast
    with trace.as_made():
        record(again, keep=(), plan=Plan())
    return again
