"""What gradients say: an estimate of every patch, and a difference shared out over what made it.

attribution_patching
    To patch a value a with the value a' of another text moves the metric by about
    (a' − a) · dm/da, its first order. The gradient has this for all layers, heads and positions at
    once, where a sweep of patches needs a forward pass for each. It misses what is far from linear:
    a head that only moves a softmax from nearly 1 is estimated too small. Confirm what is found by
    patching (`patch_heads`).
integrated_embeddings
    On the straight way from the baseline x' to the embeddings x, the gradient is averaged and
    multiplied with the difference: (x − x') ∘ ∫₀¹ dF(x' + α(x − x'))/dx dα. Summed up this is
    F(x) − F(x'), whatever F: completeness. The integral is taken at the nodes of Gauss and
    Legendre, which need far fewer steps than equal ones where F is smooth. Unless a number of steps
    is given, it is doubled until the sum misses the difference by less than 1 % (`gap`), or until
    1024 steps; `converged` says which.

Sources: Nanda 2023, "Attribution patching: activation patching at industrial scale"; Syed, Rager
and Conmy 2023, "Attribution patching outperforms automated circuit discovery"; Sundararajan, Taly
and Yan 2017, "Axiomatic attribution for deep networks", section 3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_callable,
    check_choice,
    check_pair,
    check_unedited,
    listed,
    real_tokens,
    whole_number,
)
from minibert.analysis.metrics import Metric, numbers_of
from minibert.analysis.patching import standard_error
from minibert.errors import EditError, TraceError
from minibert.layers.evaluation import Evaluation
from minibert.layers.linear import held
from minibert.quantities import QUANTITIES, Float
from minibert.result import Result, sourced
from minibert.trace.edit import as_point
from minibert.trace.gradients import Gradients, differentiate
from minibert.trace.plan import Plan
from minibert.trace.read import Trace
from minibert.trace.record import check_grad, record

Number = Callable[[Trace], Tensor]
# The nodes are eigenvalues of a steps x steps matrix.
_MOST_STEPS = 2**12
# Where nobody gives a number of steps: the first one, and the last one that is tried.
_FIRST, _LAST = 16, 1024
# The share of the difference that the sum may miss.
_GAP = 0.01


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
    check_grad(True, None, held(trace.model.body))
    evaluation = Evaluation(trace.allowed, trace.evaluation.impl)
    again = Trace(trace.model, trace.inputs, evaluation, until=trace.until, grad=True)
    again.autocast = trace.autocast
    with trace.as_made():
        record(again, keep=(), plan=Plan())
    return again


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Integrated(Result[Tensor]):
    """What each entry of the embeddings gives to the difference of a number from its baseline.

    The axes are (batch, position, d_model).

    difference   the number, less the number at the baseline
    steps        the nodes at which the gradient was taken
    """

    difference: float
    steps: int

    @property
    def gap(self) -> float:
        """What the values miss to add up to the difference: the error of the integral."""
        return self.difference - float(self.values.sum(dtype=torch.float64))

    @property
    def converged(self) -> bool:
        """True where the gap is less than 1 % of the difference."""
        gap = self.gap
        return abs(gap) < _GAP * abs(self.difference) or gap == 0

    def by_token(self) -> Float[Tensor, "batch position"]:
        """What each token gives: the sum over its embedding."""
        return self.values.sum(-1)

    def shown(self) -> Result[Tensor]:
        """What each token gives."""
        title = f"Integrated gradients of a difference of {self.difference:.3g}"
        values, unit = self.by_token(), "given by the token"
        return Result(values, "batch position", title, unit, tokens=self.tokens, signed=True)

    def note(self) -> str:
        """The difference and the gap, and whether the integral converged."""
        share = abs(self.gap / self.difference) if self.difference else float("inf")
        state = "" if self.converged else f", NOT CONVERGED: {share:.0%} of the difference"
        return (
            f"difference {self.difference:.4g}, gap {self.gap:.2g} after {self.steps} steps{state}"
        )


@sourced
def integrated_embeddings(
    trace: Trace,
    number: Number,
    *,
    baseline: Float[Tensor, "#batch #position d_model"] | None = None,
    steps: int | None = None,
) -> Integrated:
    """(x − x') ∘ ∫₀¹ dF(x' + α(x − x'))/dx dα of the embeddings x, what enters layer 0.

    `number` reads F from a trace, such as `lambda trace: trace.logits[0, 5, token]`. `baseline` is
    x', by default 0; the embeddings of the same text with other tokens are
    `model.trace(ids).embed`. Where layers begin with a LayerNorm (GPT-2), F is steep near 0, and
    such a baseline needs fewer steps. For None the steps are doubled from 16 until the result is
    `converged`, to 1024 at most.

    Raises TraceError for a baseline that does not fit, a trace made with edits, and where `number`
    gives no single number that depends on the embeddings.
    """
    check_unedited(trace)
    end = trace.embed.detach()
    start = torch.zeros_like(end) if baseline is None else _fitting(baseline, end)
    check_callable(number, "number", TraceError)
    taken, last = _FIRST, _LAST
    if steps is not None:
        taken = last = whole_number("steps", steps, TraceError, least=1, most=_MOST_STEPS)
    check_grad(True, None, held(trace.model.body))
    with torch.no_grad():
        here, there = (_number_at(trace, number, value).item() for value in (end, start))
    while True:
        found = Integrated(
            (end - start) * _mean_gradient(trace, number, start, end, taken),
            "batch position d_model",
            title="Integrated gradients",
            unit="share of the difference",
            tokens=trace.tokens.strings,
            signed=True,
            difference=here - there,
            steps=taken,
        )
        if found.converged or taken >= last:
            return found
        taken *= 2


def _mean_gradient(trace: Trace, number: Number, start: Tensor, end: Tensor, steps: int) -> Tensor:
    """The gradient of the number, its mean on the straight way from start to end."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    mean = torch.zeros_like(end)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        value = torch.lerp(start, end, float(node)).requires_grad_()
        found = _number_at(trace, number, value)
        [slope] = torch.autograd.grad(found, [value], allow_unused=True)
        if slope is None:
            raise TraceError("The number does not depend on embed: there is nothing to share.")
        mean.add_(slope, alpha=float(weight))
    return mean


def _number_at(trace: Trace, number: Number, value: Tensor) -> Tensor:
    """The number where the embeddings are these."""
    with torch.set_grad_enabled(value.requires_grad):
        found = number(trace.rerun({"embed": lambda _: value}))
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TraceError(
            f"number(trace) gave {what}; expected a tensor of one number, computed from the trace "
            "it is given, such as trace.logits[0, 5, token]."
        )
    if value.requires_grad and not found.requires_grad:
        raise TraceError(
            "The number does not depend on embed of the trace that number(trace) is given, or "
            "was cut off from it by .detach() or torch.no_grad()."
        )
    return found


def _fitting(baseline: object, embed: Tensor) -> Tensor:
    real = isinstance(baseline, Tensor) and baseline.is_floating_point()
    if not isinstance(baseline, Tensor) or not real or not bool(baseline.isfinite().all()):
        raise TraceError("baseline: expected a tensor of finite floating-point numbers.")
    try:
        return baseline.detach().to(embed).expand(embed.shape)
    except RuntimeError as error:
        raise TraceError(
            f"baseline of shape {tuple(baseline.shape)} does not fit the embeddings "
            f"{tuple(embed.shape)} (batch, position, d_model)."
        ) from error
