"""Attention statistics on a CPU: blocks of rows beside "materialise the N x N probs and reduce".

    python -m benchmarks.statistics [--quick] [--rows REGEX] [--threads 2] [--rounds 7] [--output F]

All in one process, in turns. z and every statistic of each contender is compared with float64. The
exit status is 0 when the chunked path is right everywhere, faster than the fastest that
materialises at every length of 512 and more, twice as fast from 2048 on, takes 0.35 of the time
with a window of 256 at 4096, and has a tenth of the memory there.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import TOLERANCE
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, at_once, target
from minibert.bench.gate import Outputs, Truth, WrongError
from minibert.bench.result_rows import Row

Given = dict[str, Any]
Found = dict[str, Tensor]

OURS = "minibert chunked"
#: Lengths from which the chunked path must win, and at which it must have a tenth of the memory.
FASTER_FROM, TWICE_FROM, SMALL_AT, TIMES_SMALLER = 512, 2048, 4096, 10
#: Of the time of all keys, a window of 256 may take at 4096.
WINDOWED = 0.35
T1 = ("row_max", "max_prob", "entropy", ("key_mass", (0, 5)), "offset_mass")
WANTS: dict[str, tuple[Any, ...]] = {
    "entropy": ("entropy",),
    "T1": T1,
    "all": (*T1, "argmax", "received", ("map", 64)),
}


@dataclass(frozen=True)
class Task:
    """One shape, and which statistics of it; `lengths` are real keys as parts of the whole."""

    T: int
    causal: bool
    want: str
    batch: int = 1
    heads: int = 12
    d_head: int = 64
    padded: bool = False
    kv_heads: int = 0
    window: int = 0

    def __str__(self) -> str:
        kind = f"{' causal' if self.causal else ''}{' padded' if self.padded else ''}"
        kind += f" G{self.kv_heads}" if self.kv_heads else ""
        kind += f" window {self.window}" if self.window else ""
        return f"B{self.batch} H{self.heads} T{self.T}{kind} {self.want}"

    def inputs(self) -> dict[str, Any]:
        """What `attend` is given."""
        generator = torch.Generator().manual_seed(self.T)
        heads = (self.heads, self.kv_heads or self.heads, self.kv_heads or self.heads)
        shapes = [(self.batch, self.T, n, self.d_head) for n in heads]
        # As a model has them: heads beside one another at each position.
        vectors = [torch.randn(shape, generator=generator).transpose(1, 2) for shape in shapes]
        found: dict[str, Any] = dict(zip(("query", "key", "value"), vectors, strict=True))
        if self.padded:
            parts = torch.linspace(1, 0.25, self.batch)
            found["lengths"] = (parts * self.T).long()
        if self.window:
            found["window"] = (self.window - 1, 0)
        return found | {"causal": self.causal}


#: Key heads and the keys of a window, 0 for as many as there are.
KINDS = ((4, 0), (0, 256), (4, 256))
TASKS = (
    *(
        Task(T, causal, want)
        for T in (512, 1024, 2048)
        for causal in (False, True)
        for want in WANTS
    ),
    *(Task(4096, causal, want) for causal in (False, True) for want in WANTS),
    *(Task(512, causal, "all", batch=8, padded=True) for causal in (False, True)),
    *(Task(2048, True, want, kv_heads=n, window=w) for want in WANTS for n, w in KINDS),
    *(Task(4096, True, want, window=256) for want in WANTS),
    *(Task(128, causal, want, batch=8) for causal in (False, True) for want in ("T1", "all")),
)
QUICK = (
    Task(67, False, "all", heads=3),
    Task(130, True, "T1", heads=2),
    Task(133, True, "all", heads=4, kv_heads=2, window=16),
    Task(131, True, "all", batch=3, heads=2, padded=True),
)


def contenders(want: tuple[Any, ...]) -> dict[str, Callable[[Given], Found]]:
    """The chunked path, then those who materialise; the last is not one, but what came before."""
    return {
        OURS: partial(by_attend, "chunked", want),
        "softmax and reduce": partial(materialised, want),
        "in place and reduce": partial(materialised_in_place, want),
        "minibert eager": partial(by_attend, "eager", want),
        "minibert sdpa": partial(by_attend, "sdpa", want),
    }


#: Those who hold the N x N probs.
MATERIALISING = ("softmax and reduce", "in place and reduce", "minibert eager")


def by_attend(impl: str, want: tuple[Any, ...], given: Given) -> Found:
    from minibert import attend

    found = attend(**given, impl=impl, want=want)
    statistics = {name: one for name, one in vars(found.statistics).items() if one is not None}
    return {"z": found.z, "lse": found.lse, **statistics}


def materialised(want: tuple[Any, ...], given: Given) -> Found:
    """As one writes it: scores, softmax, then a reduction for each statistic."""
    query, key, value = every_head(given)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    allowed = allowed_keys(given)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    probs = scores.softmax(-1)
    row_max = scores.amax(-1)
    found = {"z": probs @ value, "lse": row_max - probs.amax(-1).log(), "row_max": row_max}
    found["entropy"] = torch.special.entr(probs).sum(-1)
    return reductions(want, given, probs, found)


def materialised_in_place(want: tuple[Any, ...], given: Given) -> Found:
    """By somebody who counts passes: two N x N arrays, exp in place, entropy from its two sums."""
    query, key, value = every_head(given)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    allowed = allowed_keys(given)
    if allowed is not None:
        scores.masked_fill_(~allowed, -1e30)
    row_max = scores.amax(-1, keepdim=True)
    weights = scores.sub_(row_max).exp()
    total = weights.sum(-1, keepdim=True)
    entropy = total.log() - scores.mul_(weights).sum(-1, keepdim=True) / total
    probs = weights.div_(total)
    lse = (row_max + total.log()).squeeze(-1)
    found = {"z": probs @ value, "lse": lse, "row_max": row_max.squeeze(-1)}
    found["entropy"] = entropy.squeeze(-1)
    return reductions(want, given, probs, found)


def reductions(want: tuple[Any, ...], given: Given, probs: Tensor, found: Found) -> Found:
    """z, lse and of the statistics those that are wanted."""
    names = [one if isinstance(one, str) else one[0] for one in want]
    N, lengths = probs.shape[-1], given.get("lengths")
    found = {name: one for name, one in found.items() if name in ("z", "lse", *names)}
    if "max_prob" in names:
        found["max_prob"] = probs.amax(-1)
    if "argmax" in names:
        found["argmax"] = probs.argmax(-1)
    if "key_mass" in names:
        found["key_mass"] = probs[..., [0, 5]]
    if "offset_mass" in names:
        diagonals = [probs.diagonal(offset, -2, -1) for offset in (-1, 0, 1)]
        sides = ((1, 0), (0, 0), (0, 1))
        padded = map(torch.nn.functional.pad, diagonals, sides)
        found["offset_mass"] = torch.stack([*padded], -1)
    if "received" in names:
        rows = probs
        if lengths is not None:
            rows = probs * (torch.arange(N) < lengths[:, None])[:, None, :, None]
        found["received"] = rows.sum(-2)
        if "map" in names:
            found["map"] = pooled(rows, lengths)
    return found


def pooled(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean over the real cells of each of 64 x 64 blocks."""
    N = rows.shape[-1]
    size = math.ceil(N / 64)
    missing = -N % size
    cells = torch.nn.functional.pad(rows, (0, missing, 0, missing))
    sums = torch.nn.functional.avg_pool2d(cells, size, divisor_override=1)
    real = torch.full((1,), N) if lengths is None else lengths
    firsts = torch.arange(0, N, size)
    sides = (torch.minimum(firsts + size, real[:, None]) - firsts).clamp_min(0)
    return sums / (sides[:, None, :, None] * sides[:, None, None, :]).clamp_min(1)


def every_head(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """query, key and value, of fewer key heads each as often as it is read."""
    times = given["query"].shape[1] // given["key"].shape[1]
    key, value = (given[one].repeat_interleave(times, 1) for one in ("key", "value"))
    return given["query"], key, value


def allowed_keys(given: Given) -> Tensor | None:
    """True where a query may look; None where it may everywhere."""
    N, lengths = given["key"].shape[2], given.get("lengths")
    allowed = torch.ones(N, N, dtype=torch.bool).tril_() if given["causal"] else None
    if "window" in given and allowed is not None:
        allowed.triu_(-given["window"][0])
    if lengths is not None:
        real = (torch.arange(N) < lengths[:, None])[:, None, None, :]
        allowed = real if allowed is None else allowed & real
    return allowed


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each task; those with a window are held against the time without it."""
    without_window: dict[str, float] = {}
    for task in QUICK if chosen.quick else TASKS:
        if wanted(str(task)):
            yield workload(task, without_window)


def workload(task: Task, without_window: dict[str, float]) -> Workload:
    """Everyone at one task."""
    given, want = task.inputs(), WANTS[task.want]
    exact = {n: v.double() if n in ("query", "key", "value") else v for n, v in given.items()}
    right = materialised(want, exact)
    runs = {name: partial(run, given) for name, run in contenders(want).items()}
    return Workload(
        str(task),
        at_once(runs, dict),
        lambda name, found, verdicts: compare(found, right),
        OURS,
        lambda name: asdict(task),
        partial(add_targets, task, without_window),
    )


def compare(found: Outputs, expected: Found) -> Row:
    """The errors by name. Raises WrongError; of equal scores any may be the argmax."""
    if missing := expected.keys() - found.keys():
        raise WrongError(f"gave no {', '.join(sorted(missing))}")
    names = expected.keys() - {"argmax"}
    verdict = Truth({n: expected[n] for n in names}, absolute=TOLERANCE).check(
        {n: found[n] for n in names}
    )
    if "argmax" in expected:
        differing = (found["argmax"] != expected["argmax"]).float().mean().item()
        if differing > 1e-3:
            raise WrongError(f"argmax differs in {differing:.2%} of the rows")
    return verdict


def add_targets(task: Task, without_window: dict[str, float], rows: Rows) -> None:
    """Add what the chunked path promises, beside the best of those who hold the N x N probs."""
    ours = rows[OURS]
    if "median_ms" not in ours:
        return
    targets = ours.setdefault("targets", {})
    plain = re.sub(r" window \d+", "", str(task))
    without_window.setdefault(plain, ours["median_ms"])
    if task.window and not task.kv_heads and task.T == SMALL_AT:
        share = ours["median_ms"] / without_window[plain]
        targets["of the time without a window"] = target(share, most=WINDOWED)
    others = [rows[name] for name in MATERIALISING if "median_ms" in rows[name]]
    if others and task.T >= FASTER_FROM:
        times = min(row["median_ms"] for row in others) / ours["median_ms"]
        least = 2 if task.T >= TWICE_FROM else 1
        targets["times the speed of the fastest that materialises"] = target(times, least=least)
    if others and task.T >= SMALL_AT:
        less = min(row["peak_bytes"] for row in others) / ours["peak_bytes"]
        targets["times less memory"] = target(less, least=TIMES_SMALLER)


BENCHMARK = Benchmark("statistics", "Attention statistics on a CPU.", asked, rounds=7, peer="torch")

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
