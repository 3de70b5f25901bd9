"""Attention statistics on a CPU: blocks of rows beside "materialise the N x N probs and reduce".

    python -m benchmarks.statistics [--quick] [--rows REGEX] [--threads 2] [--rounds 7] [--output F]

All in one process, in turns. z and every statistic of each contender is compared with the NumPy
reference in float64.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.models import TOLERANCE
from benchmarks.runner import Benchmark, Truth, Wanted, Workload, at_once
from minibert.bench.result_rows import Outputs, Row, WrongError

Given = dict[str, Any]
Found = dict[str, Tensor]

OURS = "minibert chunked"
T1 = ("row_max", "max_prob", "entropy", ("key_mass", (0, 5)), "offset_mass")
WANTS: dict[str, tuple[Any, ...]] = {
    "entropy": ("entropy",),
    "T1": T1,
    "all": (*T1, "argmax", "received", ("map", 64)),
}


@dataclass(frozen=True)
class Task:
    """One shape, and which statistics of it."""

    T: int
    causal: bool
    want: str
    heads: int = 12
    d_head: int = 64

    def __str__(self) -> str:
        return f"B1 H{self.heads} T{self.T}{' causal' if self.causal else ''} {self.want}"

    def inputs(self) -> Given:
        """What `attend` is given; as in a model, heads lie beside one another at each position."""
        generator = torch.Generator().manual_seed(self.T)
        vectors = torch.randn(3, 1, self.T, self.heads, self.d_head, generator=generator)
        named = zip(("query", "key", "value"), vectors.transpose(2, 3), strict=True)
        return {**dict(named), "causal": self.causal}


TASKS = [
    Task(T, causal, want)
    for T in (512, 1024, 2048, 4096)
    for causal in (False, True)
    for want in WANTS
]
QUICK = [Task(67, False, "all", 3), Task(130, True, "T1", 2), Task(131, True, "all", 2)]


def by_attend(impl: str, want: tuple[Any, ...], given: Given) -> Found:
    from minibert import attend

    found = attend(**given, impl=impl, want=want)
    statistics = {name: one for name, one in vars(found.statistics).items() if one is not None}
    return {"z": found.z, "lse": found.lse, **statistics}


def in_place(want: tuple[Any, ...], given: Given) -> Found:
    """By somebody who counts passes: two N x N arrays, exp in place, entropy from its two sums."""
    query, key, value = given["query"], given["key"], given["value"]
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    N = scores.shape[-1]
    if given["causal"]:
        scores.masked_fill_(~torch.ones(N, N, dtype=torch.bool).tril_(), -1e30)
    row_max = scores.amax(-1, keepdim=True)
    weights = scores.sub_(row_max).exp()
    total = weights.sum(-1, keepdim=True)
    entropy = total.log() - scores.mul_(weights).sum(-1, keepdim=True) / total
    probs = weights.div_(total)
    lse = (row_max + total.log()).squeeze(-1)
    found = {"z": probs @ value, "lse": lse, "entropy": entropy.squeeze(-1)}
    names = [one if isinstance(one, str) else one[0] for one in want]
    if "row_max" in names:
        found |= {"row_max": row_max.squeeze(-1), "max_prob": probs.amax(-1)}
        found["key_mass"] = probs[..., [0, 5]]
        sides = {-1: (1, 0), 0: (0, 0), 1: (0, 1)}
        near = [pad(probs.diagonal(offset, -2, -1), side) for offset, side in sides.items()]
        found["offset_mass"] = torch.stack(near, -1)
    if "received" in names:
        found |= {"argmax": probs.argmax(-1), "received": probs.sum(-2), "map": pooled(probs)}
    return found


def pooled(probs: Tensor) -> Tensor:
    """The mean over the cells of each of 64 x 64 blocks."""
    N = probs.shape[-1]
    size = math.ceil(N / 64)
    cells = pad(probs, (0, -N % size, 0, -N % size))
    sums = torch.nn.functional.avg_pool2d(cells, size, divisor_override=1)
    sides = (N - torch.arange(0, N, size)).clamp_max(size)
    return sums / (sides[:, None] * sides)


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each task."""
    for task in QUICK if chosen.quick else TASKS:
        if wanted(str(task)):
            yield workload(task)


def workload(task: Task) -> Workload:
    """Everyone at one task."""
    given, want = task.inputs(), WANTS[task.want]
    exact = {n: v.double() if isinstance(v, Tensor) else v for n, v in given.items()}
    right = by_attend("reference", want, exact)
    runs = {
        OURS: partial(by_attend, "chunked", want, given),
        "in place and reduce": partial(in_place, want, given),
    }
    return Workload(
        str(task),
        at_once(runs, dict),
        lambda name, found, verdicts: compare(found, right),
        OURS,
        lambda name: asdict(task),
    )


def compare(found: Outputs, expected: Found) -> Row:
    """The errors by name. Raises WrongError; of equal scores any may be the argmax."""
    measured = {name: one for name, one in expected.items() if name != "argmax"}
    gate = Truth(measured, absolute=TOLERANCE, complete=True)
    verdict = gate.check({name: one for name, one in found.items() if name != "argmax"})
    if "argmax" in expected:
        differing = (found["argmax"] != expected["argmax"]).float().mean().item()
        if differing > 1e-3:
            raise WrongError(f"argmax differs in {differing:.2%} of the rows")
    return verdict


BENCHMARK = Benchmark("statistics", "Attention statistics on a CPU.", asked, rounds=7, peer="torch")

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
