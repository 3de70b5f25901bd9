"""Is what a timed call gave right? Some rows of some heads, at sizes whose scores would not fit.

Which ones they are is drawn when the outputs are there, and cannot be foreseen. The truth is eager
in float64, which parity proves equal to the reference; the tolerance is parity's, from eager in
the dtype of the inputs on the same rows.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.kernels.check import backward
from minibert.kernels.check.distances import distance
from minibert.kernels.check.problem import Problem, by_eager, part
from minibert.kernels.check.tolerances import error_of, tolerance_of

_ROWS, _HEADS = 48, 2


@dataclass(frozen=True)
class Sampled:
    """The largest error of an output in the rows looked at, and what is allowed there."""

    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """True when the error is within the tolerance."""
        return self.error <= self.tolerance


def sampled(problem: Problem, z: Tensor) -> Sampled:
    """How far z is off in some rows of some heads; the worst of them."""
    if tuple(z.shape) != problem.z_shape:
        return Sampled(math.inf, 0.0)
    worst: Sampled | None = None
    for _ in range(_HEADS):
        sentence, (batch, first, Q) = _sentence(problem)
        head = secrets.randbelow(problem.query.shape[1])
        rows = torch.randperm(Q, generator=_generator())[:_ROWS]
        rows[0] = Q - 1
        rows = rows.sort().values.to(z.device)
        one = part(problem, sentence, slice(head, head + 1), rows)
        found = _of_rows(one, z[batch : batch + 1, head : head + 1][:, :, first + rows])
        if not found.ok:
            return found
        if worst is None or found.error > worst.error:
            worst = found
    assert worst is not None
    return worst


def sampled_gradients(problem: Problem, found: Mapping[str, Tensor]) -> dict[str, Sampled]:
    """How far the gradients are off in one key head of one sentence and its query heads."""
    leaves = {f"{name}_gradient": getattr(problem, name) for name in ("query", "key", "value")}
    if any(found[name].shape != one.shape for name, one in leaves.items()):
        return dict.fromkeys(leaves, Sampled(math.inf, 0.0))
    sentence, (batch, first, Q) = _sentence(problem)
    key_heads = problem.key.shape[1]
    group = problem.query.shape[1] // key_heads
    head = secrets.randbelow(key_heads)
    heads = slice(head * group, (head + 1) * group)
    one = part(problem, sentence, heads, torch.arange(Q, device=problem.query.device))
    right, allowed = backward.right_gradients(one), backward.tolerances(one)
    K = one.key.shape[2]
    first_key = sum((problem.packed_keys or problem.packed or ())[:sentence])
    places = {
        "query_gradient": (heads, slice(first, first + Q)),
        "key_gradient": (slice(head, head + 1), slice(first_key, first_key + K)),
        "value_gradient": (slice(head, head + 1), slice(first_key, first_key + K)),
    }
    looked = {}
    for name, (which, rows) in places.items():
        mine = found[name][batch : batch + 1, which, rows]
        looked[name] = Sampled(distance(mine, right[name]), allowed[name])
    return looked


def _sentence(problem: Problem) -> tuple[int, tuple[int, int, int]]:
    """One that is drawn: its number; its place in the batch, its first query and its queries."""
    if problem.packed is None:
        B, _, Q, _ = problem.query.shape
        sentence = secrets.randbelow(B)
        return sentence, (sentence, 0, Q)
    sentence = secrets.randbelow(len(problem.packed))
    return sentence, (0, sum(problem.packed[:sentence]), problem.packed[sentence])


def _of_rows(one: Problem, z: Tensor) -> Sampled:
    truth, yardstick = by_eager(one, torch.float64), by_eager(one, one.query.dtype)
    return Sampled(error_of("z", one, {"z": z}, truth), tolerance_of("z", one, yardstick, truth))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(secrets.randbits(63))
