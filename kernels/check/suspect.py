"""A slip, as a change to the inputs, and what a kernel that makes it gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem, by_eager, unfolded

__all__ = ["Suspect", "as_it_is", "with_mask"]


def as_it_is(output: Tensor) -> Tensor:
    """The output itself."""
    return output


@dataclass(frozen=True, eq=False)
class Suspect:
    """A slip: what is said of it, and the problem it solves in place of the right one.

    `written` puts the numbers of an output where the slip has them; a slip with `only` shows in
    this output alone.
    """

    sentence: str
    problem: Problem
    written: Callable[[Tensor], Tensor] = as_it_is
    only: str | None = None

    def gives(self, output: str) -> Tensor | None:
        """The output of a kernel that makes this slip and no other; None where it is not known."""
        if self.only not in (None, output):
            return None
        problem = self.problem
        want = {name: one for name, one in problem.want.items() if name == output}
        if "key_sums" in want and want["key_sums"].shape[2] != problem.n_keys:
            return None
        # Eager and not the reference, which goes query by query: there are many suspects.
        right = by_eager(replace(problem, want=want), torch.float64).get(output)
        return None if right is None else self.written(right)


def with_mask(problem: Problem, mask: Tensor | None) -> Problem:
    """The same scores under this mask alone."""
    return replace(unfolded(problem), mask=mask)
