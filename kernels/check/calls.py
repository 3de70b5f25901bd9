"""How `parity.check` calls an implementation: in this process, or in another by `Caller`."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.api import arguments_for
from minibert.kernels.check.cases import Problem
from minibert.kernels.check.poison import poisoned_memory
from minibert.kernels.outputs import outputs_of
from minibert.kernels.registry import Implementation

__all__ = ["Caller", "CheckEndedError", "InProcess"]


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
        with poisoned_memory(problem.query, problem.key.shape[2]):
            result = self._called(given)
        record = self._record
        vectors = (problem.query, problem.key, problem.value)
        found = outputs_of(result, record.name, *vectors, problem.want, exact=record.checked)
        self._outputs = {name: one for name, one in found.items() if isinstance(one, Tensor)}
        return {name: one.clone() for name, one in self._outputs.items()}

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See `Caller`."""
        return {} if self._given is None else self._given.tensors(), self._outputs

    def _called(self, given: Problem) -> Any:
        options = {name: one for name, one in given.options().items() if one is not None}
        want = options.pop("want")
        arguments = arguments_for(self._record, given.query, given.key, options, want)
        return self._record.fn(given.query, given.key, given.value, **arguments)
