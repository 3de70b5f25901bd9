"""How `parity.check` calls an implementation: in this process, or in another by `Caller`."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.call import Call, Outputs
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.poison import poisoned_memory
from minibert.kernels.check.problem import Problem
from minibert.kernels.checks import check_outputs
from minibert.kernels.folding import folded, padded_call, unpadded
from minibert.kernels.registry import Implementation


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
