"""Integrated gradients: a number's difference from a baseline, shared out over what made it.

On the straight way from the baseline x' to x, the gradient is averaged and multiplied with the
difference: (x − x') ∘ ∫₀¹ dF(x' + α(x − x'))/dx dα. Summed up this is F(x) − F(x'), whatever F:
completeness. Here x is the embeddings, or all attention of one layer (with x' = 0: nobody
attends to anything).

The integral is taken at the nodes of Gauss and Legendre, which need far fewer steps than equal
ones where F is smooth. Unless a number of steps is given, it is doubled until the sum misses the
difference by less than 1 % (`gap`), or until 1024 steps; `converged` says which.

Sources: Sundararajan, Taly and Yan 2017, "Axiomatic attribution for deep networks", section 3;
Hao, Dong, Wei and Xu 2021, "Self-attention attribution", equation 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_unedited, whole_number
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.places import check_index
from minibert.trace.read import Trace
from minibert.trace.record import check_grad

__all__ = [
    "IntegratedAttention",
    "IntegratedEmbeddings",
    "integrated_attention",
    "integrated_embeddings",
]

Number = Callable[[Trace], Tensor]
Point = str | tuple[str, int]
# The nodes are eigenvalues of a steps x steps matrix.
_MOST_STEPS = 2**12
# Where nobody gives a number of steps: the first one, and the last one that is tried.
_FIRST, _LAST = 16, 1024
# The share of the difference that the sum may miss.
_GAP = 0.01


class _Integral:
    """How good an integral is. Its fields are those of the results below."""

    values: Tensor
    difference: float
    steps: int

    @property
    def gap(self) -> float:
        """What the values miss to add up to the difference: the error of the integral."""
        return _gap(self.values, self.difference)

    @property
    def converged(self) -> bool:
        """True where the gap is less than 1 % of the difference."""
        return _is_small(self.gap, self.difference)

    def _shown(self, where: str = "") -> str:
        share = abs(self.gap / self.difference) if self.difference else float("inf")
        state = "" if self.converged else f", NOT CONVERGED: {share:.0%} of the difference"
        return (
            f"{type(self).__name__}({where}difference {self.difference:.4g}, gap {self.gap:.2g} "
            f"after {self.steps} steps{state})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedAttention(_Integral):
    """What each weight of attention of a layer gives to a number."""

    layer: int
    values: Float[Tensor, "batch head query key"]
    difference: float
    """The number with this layer's attention, less the number without any."""
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""
    steps: int
    """The nodes at which the gradient was taken."""

    def plot(
        self, path: str | Path | None = None, *, head: int | None = None, sentence: int = 0
    ) -> Figure:
        """The matplotlib Figure of one head, queries down and keys across, or of all of them.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a head
        or sentence that is not there, and MinibertError without matplotlib.
        """
        return plots.matrix_of_head(
            self.values[None],
            [self.layer],
            self.labels,
            layer=None,
            head=head,
            sentence=sentence,
            name="Integrated attention",
            unit="share of the difference",
            signed=True,
            path=path,
        )

    def __repr__(self) -> str:
        return self._shown(f"layer {self.layer}, ")


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedEmbeddings(_Integral):
    """What each entry of the embeddings gives to a number."""

    values: Float[Tensor, "batch position d_model"]
    difference: float
    """The number, less the number at the baseline."""
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""
    steps: int
    """The nodes at which the gradient was taken."""

    @property
    def tokens(self) -> Float[Tensor, "batch position"]:
        """What each token gives: the sum over its embedding."""
        return self.values.sum(-1)

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of what each token gives, as bars.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        return plots.token_bars(
            self.tokens,
            self.labels,
            sentence=sentence,
            title=f"Integrated gradients of a difference of {self.difference:.3g}",
            unit="given by the token",
            path=path,
        )

    def __repr__(self) -> str:
        return self._shown()


def integrated_attention(
    trace: Trace, number: Number, *, layer: int, steps: int | None = None
) -> IntegratedAttention:
    """P ∘ ∫₀¹ dF(αP)/dP dα for all heads of a layer, scaled together; 0 where masked.

    `number` reads F from a trace, such as `lambda trace: trace.logits[0, 5, token]`. It is called
    with traces of the same input with edited attention: twice, and once for each step. Only the
    layers from this one on are computed. Any trace will do, with or without `grad=True`.
    For None the steps are doubled from 16 until the result is `converged`, to 1024 at most.

    Raises TraceError for a layer that is not there, a trace made with edits, and where `number`
    gives no single number that depends on the attention of this layer.
    """
    check_unedited(trace)
    layer = check_index("layer", layer, len(trace))
    with torch.no_grad():
        probs = trace[layer].probs.detach()
    found = _integrate(trace, number, ("probs", layer), torch.zeros_like(probs), probs, steps)
    return IntegratedAttention(layer, labels=trace.tokens.strings, **found._asdict())


def integrated_embeddings(
    trace: Trace,
    number: Number,
    *,
    baseline: Float[Tensor, "#batch #position d_model"] | None = None,
    steps: int | None = None,
) -> IntegratedEmbeddings:
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
    embed = trace.embed.detach()
    start = torch.zeros_like(embed) if baseline is None else _fitting(baseline, embed)
    found = _integrate(trace, number, "embed", start, embed, steps)
    return IntegratedEmbeddings(labels=trace.tokens.strings, **found._asdict())


class _Found(NamedTuple):
    values: Tensor
    difference: float
    steps: int


def _integrate(
    trace: Trace,
    number: Number,
    point: Point,
    start: Tensor,
    end: Tensor,
    steps: int | None,
) -> _Found:
    """(end − start) times the mean gradient on the way, and what the number grows by on it."""
    check_callable(number, "number", TraceError)
    first, last = _FIRST, _LAST
    if steps is not None:
        first = last = whole_number("steps", steps, TraceError, least=1, most=_MOST_STEPS)
    check_grad(True, None, trace.model.body.parameters())
    with torch.no_grad():
        here, there = (_number_at(trace, number, point, value).item() for value in (end, start))
    taken = first
    while True:
        values = (end - start) * _mean_gradient(trace, number, point, start, end, taken)
        small = _is_small(_gap(values, here - there), here - there)
        if small or taken >= last:
            return _Found(values, here - there, taken)
        taken *= 2


def _mean_gradient(
    trace: Trace, number: Number, point: Point, start: Tensor, end: Tensor, steps: int
) -> Tensor:
    """The gradient of the number, its mean on the straight way from start to end."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    mean = torch.zeros_like(end)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        value = torch.lerp(start, end, float(node)).requires_grad_()
        found = _number_at(trace, number, point, value)
        [slope] = torch.autograd.grad(found, [value], allow_unused=True)
        if slope is None:
            raise TraceError(f"The number does not depend on {point}: there is nothing to share.")
        mean.add_(slope, alpha=float(weight))
    return mean


def _number_at(trace: Trace, number: Number, point: Point, value: Tensor) -> Tensor:
    """The number where the quantity at a point has this value."""
    with torch.set_grad_enabled(value.requires_grad):
        found = number(trace.rerun({point: lambda _: value}))
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TraceError(
            f"number(trace) gave {what}; expected a tensor of one number, computed from the trace "
            "it is given, such as trace.logits[0, 5, token]."
        )
    if value.requires_grad and not found.requires_grad:
        raise TraceError(
            f"The number does not depend on {point} of the trace that number(trace) is given, or "
            "was cut off from it by .detach() or torch.no_grad()."
        )
    return found


def _fitting(baseline: Any, embed: Tensor) -> Tensor:
    real = isinstance(baseline, Tensor) and baseline.is_floating_point()
    if not real or not bool(baseline.isfinite().all()):
        raise TraceError("baseline: expected a tensor of finite floating-point numbers.")
    try:
        return baseline.detach().to(embed).expand(embed.shape)
    except RuntimeError as error:
        raise TraceError(
            f"baseline of shape {tuple(baseline.shape)} does not fit the embeddings "
            f"{tuple(embed.shape)} (batch, position, d_model)."
        ) from error


def _gap(values: Tensor, difference: float) -> float:
    return difference - float(values.sum(dtype=torch.float64))


def _is_small(gap: float, difference: float) -> bool:
    return abs(gap) < _GAP * abs(difference) or gap == 0
