"""Edits: changes of the named quantities of a forward pass.

    model.trace(text, edit={("z", 9, 6): zero, ("resid_post", 3): replace(other)})

A key is a point: (name, layer), (name, layer, head), (name, layer, (head, head)), or only the name
for embed and logits. A value is a number, a tensor, a trace, a function of the quantity, or one of
the edits below; or a list of these, which are made in its order, such as
[hide(2).at(sentences=0), hide(5).at(sentences=1)]. plan.py checks all edits before the pass starts.
They are applied in the order in which the pass computes the quantities.
"""

import operator
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from dataclasses import replace as _copy
from numbers import Real
from typing import Any

from torch import Tensor

from minibert.errors import EditError
from minibert.trace.changes import (
    Change,
    Constant,
    FromTrace,
    Function,
    Mean,
    Noise,
    unchanged,
    zeros,
)
from minibert.trace.places import Chosen

__all__ = ["Edit", "hide", "mean", "noise", "replace", "zero"]

# The square of a larger number does not fit float32.
_LARGEST_STD = 1e18


@dataclass(frozen=True)
class Edit:
    """A change of a quantity, at all or some positions, in all or some sentences.

    Make one with `zero`, `mean`, `replace` or `noise`; `at` limits it.
    """

    change: Change
    """Called with the point and the quantity there, it returns the new value."""
    positions: Chosen = None
    """Counted in each sentence; -1 is its last token. Of scores and probs they are queries."""
    sentences: Chosen = None
    constant: Any = None
    """The value, where it is known before the pass, so that it can be checked then."""
    traces: tuple[Any, ...] = ()
    """The traces that the value is read from. They are checked before the pass."""
    averages: bool = False
    """True where the value is the mean over the positions of these traces."""
    hidden: Chosen = None
    """Keys whose scores become −inf, counted in each sentence."""
    drawn: bool = False
    """Whether it adds numbers that are drawn position after position."""

    def at(self, *, positions: Chosen = None, sentences: Chosen = None) -> "Edit":
        """The same change, only at these positions or in these sentences of the batch."""
        return _copy(
            self,
            positions=self.positions if positions is None else positions,
            sentences=self.sentences if sentences is None else sentences,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Edit":
        # Traces do not change, and their models are not to be copied with them.
        memo.update({id(trace): trace for trace in self.traces})
        parts = {each.name: deepcopy(getattr(self, each.name), memo) for each in fields(self)}
        return Edit(**parts)


zero = Edit(zeros)
"""Sets the quantity to 0: an ablation."""


def replace(value: Any, *, positions: Chosen = None, sentences: Chosen = None) -> Edit:
    """The quantity becomes `value`: a number, a tensor that broadcasts to it, or a trace.

    From a trace it takes the same quantity at the same layer and heads (activation patching; Vig et
    al. 2020, "Causal mediation analysis"). With `positions`, the values are read from the same
    positions of the trace or tensor; a tensor may also hold the chosen positions only.
    """
    if _is_trace(value):
        return Edit(FromTrace(value), positions, sentences, traces=(value,))
    if value is None:
        raise EditError("replace(None): expected a number, a tensor or a trace.")
    if isinstance(value, Real) and not isinstance(value, bool):
        value = float(value)
    return Edit(Constant(value), positions, sentences, constant=value)


def mean(over: Any, *, positions: Chosen = None, sentences: Chosen = None) -> Edit:
    """The quantity becomes its mean over one or more traces: a mean ablation.

    The mean is taken over sentences and positions, without padding. For scores and probs it is
    taken over sentences only, so these traces need the length of the input and no padding. It is
    computed when the edit is first used.
    """
    several = isinstance(over, Sequence) and not isinstance(over, str)
    traces = tuple(over) if several else (over,)
    if not traces or not all(_is_trace(trace) for trace in traces):
        raise EditError("mean(over=...): expected a trace or a list of at least one trace.")
    return Edit(Mean(traces), positions, sentences, traces=traces, averages=True)


def noise(
    seed: int = 0, *, std: float | int = 1.0, positions: Chosen = None, sentences: Chosen = None
) -> Edit:
    """Adds Gaussian noise of standard deviation `std`; the same seed gives the same noise.

    Every sentence of a batch gets the noise that it gets alone; several seeds make several samples.
    So noise on packed sentences, and on scores and probs of sentences of different lengths, is
    refused.
    Source: corrupted runs of Meng et al. 2022, "Locating and editing factual associations", 2.1.
    """
    try:
        seed = operator.index(None if isinstance(seed, bool) else seed)  # type: ignore[arg-type]
    except TypeError as error:
        raise EditError(f"noise(seed={seed!r:.80}): expected a whole number.") from error
    if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < _LARGEST_STD:
        raise EditError(f"noise(std={std!r}): expected a number from 0 to {_LARGEST_STD}.")
    return Edit(Noise(seed, float(std)), positions, sentences, drawn=True)


def hide(keys: Chosen, *, positions: Chosen = None) -> Edit:
    """Sets the scores of these keys to −inf for the queries at `positions`, by default all queries.

    It edits scores only. Each query must keep at least one key that it may attend to.
    Source: attention knockout of Geva et al. 2023, "Dissecting recall of factual associations".
    """
    if keys is None:
        raise EditError("hide(None): expected the positions of the keys, for example hide(3).")
    return Edit(unchanged, positions, hidden=keys)


_CALLS = {
    hide: "hide(keys)",
    mean: "mean(over=trace)",
    noise: "noise(seed)",
    replace: "replace(value)",
}


def as_edit(value: Any) -> Edit:
    """The Edit for a value of the mapping: numbers and tensors replace, functions are called."""
    if isinstance(value, Edit):
        return value
    if isinstance(value, Tensor | Real) or _is_trace(value):
        return replace(value)
    for function, call in _CALLS.items():
        if value is function:
            raise EditError(f"{function.__name__} has to be called: write {call}.")
    if callable(value):
        return Edit(Function(value))
    raise EditError(
        f"{type(value).__name__} is not an edit; expected a number, a tensor, a trace, a function, "
        "or zero, mean(...), replace(...), noise(...), hide(...)."
    )


def _is_trace(value: Any) -> bool:
    return hasattr(value, "records") and hasattr(value, "allowed")
