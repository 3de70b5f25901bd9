"""How `parity.check` calls an implementation: in this process, or in another by `Caller`.

Memory handed out meanwhile is NaN until it is written: what a kernel leaves unwritten shows.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.call import Call, Outputs
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.problem import Problem
from minibert.kernels.checks import check_outputs
from minibert.kernels.folding import folded, padded_call, unpadded
from minibert.kernels.registry import Implementation


@contextmanager
def poisoned_memory(query: Tensor, n_keys: int) -> Iterator[None]:
    """Memory handed out inside is NaN until it is written.

    torch fills what `empty` gives when told to; and for memory that comes another way, tensors of
    the outputs' sizes full of NaN were freed just before.
    """
    # Typed as a plain module; the setting is a property that torch puts there at run time.
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = True
        rows, K = query.shape[:3], n_keys
        shapes = (query.shape, rows, (*rows, K), (*query.shape[:2], K))
        poison = [torch.full(shape, math.nan).to(query) for shape in shapes for _ in range(2)]
        del poison
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            memory.fill_uninitialized_memory = fill


class CheckEndedError(MinibertError):
    """The implementation cannot be called again, so that the check ends here."""


@runtime_checkable
class Caller(Protocol):
    """Whoever calls the implementation that is checked."""

    def call(self, problem: Problem, *, again: bool) -> dict[str, Tensor]:
        """The outputs as they are when the call returns.

        The implementation gets copies of the inputs; with `again` in the tensors that the call
        before had. Raises CheckEndedError when there can be no further call; any other error is a
        finding about this one.
        """

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of the last call and its outputs, as they are now."""


class InProcess:
    """Calls the function of an implementation in this process."""

    def __init__(self, record: Implementation) -> None:
        self._record = record
        self._given: Problem | None = None
        self._outputs: dict[str, Tensor] = {}

    def call(self, problem: Problem, *, again: bool) -> dict[str, Tensor]:
        """See `Caller`. Raises what the function raises, and AttentionError for wrong outputs."""
        known = self._given if again else None
        given = self._given = problem.copy() if known is None else known.take(problem)
        backward = problem.z_gradient is not None
        for one in (given.query, given.key, given.value):
            one.requires_grad_(backward)
        with poisoned_memory(problem.query, problem.n_keys):
            found = bound(self._record, given)()
        record = self._record
        shapes, exact = problem.shapes, record.checked
        check_outputs(found, record.name, *shapes, problem.want, exact=exact)
        outputs = {name: one for name, one in found.items() if isinstance(one, Tensor)}
        if backward:
            outputs |= gradients_of(outputs["z"], given)
        self._outputs = {name: one.detach() for name, one in outputs.items()}
        return {name: one.clone() for name, one in self._outputs.items()}

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See `Caller`."""
        given = {} if self._given is None else self._given.tensors()
        return {name: one.detach() for name, one in given.items()}, self._outputs


def bound(record: Implementation, problem: Problem) -> Callable[[], Outputs]:
    """The call of an implementation in the form that it takes, without arguments.

    What it does not take is folded into what it takes: masks are made once, keys and values that
    are repeated or laid out in another way are made by each call, from what stands there then.
    """
    call = problem.call()
    return lambda: _run(record, call)


def _run(record: Implementation, call: Call) -> Outputs:
    taken = record.options
    if call.packed is not None and "packed" not in taken:
        return unpadded(_run(record, padded_call(call)), call)
    return record.fn(folded(call, taken))
