"""An instrument's answer to one task, and what answers have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from minibert.bench.gate import GateError, Outputs

MINIBERT, PEER, BY_HAND, INFORMATION = "minibert", "peer", "by hand", "information"


@dataclass(frozen=True)
class Entry:
    """A contender for a task.

    `kind` is MINIBERT, or PEER: an instrument used as its documentation does; BY_HAND: what one
    would write to be faster than that, by its own name because no instrument does it; or
    INFORMATION: measured, but nobody's opponent.
    """

    task: str
    contender: Implementation
    kind: str = PEER


def unable(reason: str) -> Callable[[Case], Prepared]:
    """A contender that cannot: its row has the reason."""

    def prepare(case: Case) -> NoReturn:
        raise GateError(reason)

    return prepare


_built: WeakKeyDictionary[Case, dict[Any, Any]] = WeakKeyDictionary()


def once(case: Case, build: Callable[[Case], Any]) -> Any:
    """What `build` makes of a case, made once for all tasks; gone with the case."""
    known = _built.setdefault(case, {})
    # Two partials of the same function and options are not equal.
    key = (build.func, *build.keywords.items()) if isinstance(build, partial) else build
    if key not in known:
        known[key] = build(case)
    return known[key]


def logits(value: Tensor) -> Outputs:
    return {"logits": value}


def head(probs: Tensor) -> Outputs:
    return {"head": probs}


def ablated(value: Tensor) -> Outputs:
    return {"ablated": value}


def clean_and_ablated(values: tuple[Tensor, Tensor]) -> Outputs:
    return {"clean": values[0], "ablated": values[1]}


def real_logits(padded: tuple[Tensor, Tensor]) -> Outputs:
    """The logits of real tokens, one sentence after the other, of (logits, mask)."""
    values, mask = padded
    return {"logits": values[mask]}


def numbered_gradients(gradients: Any) -> Outputs:
    return {f"grad {layer}": value for layer, value in enumerate(gradients)}


def sweep(values: tuple[Tensor, Tensor]) -> Outputs:
    """Of (metric of every edit, metric of the clean pass)."""
    changed, clean = values
    return {"change": changed - clean, "clean": clean}
