"""What of a problem goes from the judge to a worker, and the problem that is made of it there."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from minibert.kernels.check.problem import Problem

_SETTINGS = ("scale", "causal", "window", "soft_cap", "packed", "packed_keys")


def settings_of(problem: Problem) -> dict[str, Any]:
    """The fields that are no tensors, fit for JSON."""
    return {name: getattr(problem, name) for name in _SETTINGS}


def sent_tensors(problem: Problem) -> dict[str, Tensor]:
    """The tensors of the call; what is wanted of it stays with the judge."""
    given = problem.tensors()
    return {name: one.detach() for name, one in given.items() if name not in problem.want}


def problem_of(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Problem:
    """The problem, in these tensors; query, key and value are leaves where it goes backward."""
    given: dict[str, Any] = dict(tensors)
    for name, one in settings.items():
        # From JSON a tuple comes as a list.
        given[name] = tuple(one) if isinstance(one, list) else one
    for name in ("query", "key", "value"):
        tensors[name].requires_grad_("z_gradient" in tensors)
    return Problem(**given)
