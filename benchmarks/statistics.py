"""Attention statistics on a CPU: blocks of rows beside "materialise the N x N probs and reduce".

    python -m benchmarks.statistics [--quick] [--rows REGEX] [--threads 2] [--rounds 7] [--output F]

All in one process, in turns. z and every statistic of each contender is compared with float64
before a clock runs; whoever is wrong is a row with the reason and no speed. Each row is written as
it comes; a run that was cut off goes on where it stopped when it is given the same --output.
The exit status is 0 when the chunked path is right everywhere, faster than the fastest that
materialises at every length of 512 and more, and has a tenth of its memory at 4096.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import TOLERANCE
from benchmarks.session import Kept, kept_before, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest
from minibert.bench.gate import Truth, WrongError
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

OURS = "minibert chunked"
#: Lengths from which the chunked path must win, and at which it must have a tenth of the memory.
FASTER_FROM, SMALL_AT, TIMES_SMALLER = 512, 4096, 10
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

    def __str__(self) -> str:
        kind = f"{' causal' if self.causal else ''}{' padded' if self.padded else ''}"
        return f"B{self.batch} H{self.heads} T{self.T}{kind} {self.want}"

    def inputs(self) -> dict[str, Any]:
        """What `attend` is given."""
        generator = torch.Generator().manual_seed(self.T)
        shape = (self.batch, self.T, self.heads, self.d_head)
        # As a model has them: heads beside one another at each position.
        vectors = [torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(3)]
        found: dict[str, Any] = dict(zip(("query", "key", "value"), vectors, strict=True))
        if self.padded:
            parts = torch.linspace(1, 0.25, self.batch)
            found["lengths"] = (parts * self.T).long()
        return found | {"causal": self.causal}


TASKS = (
    *(
        Task(T, causal, want)
        for T in (512, 1024, 2048)
        for causal in (False, True)
        for want in WANTS
    ),
    *(Task(4096, causal, want) for causal in (False, True) for want in WANTS),
    *(Task(512, causal, "all", batch=8, padded=True) for causal in (False, True)),
    *(Task(128, causal, want, batch=8) for causal in (False, True) for want in ("T1", "all")),
)
QUICK = (
    Task(67, False, "all", heads=3),
    Task(130, True, "T1", heads=2),
    Task(131, True, "all", batch=3, heads=2, padded=True),
)

Given = dict[str, Any]
Found = dict[str, Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when what is promised holds."""
    chosen = parse(arguments, "Attention statistics on a CPU.", rounds=7, quick_rounds=2)
    with session(chosen.threads, peer="torch") as known:
        rows = collect(chosen, known)
    broken = list(broken_promises(rows))
    for promise in broken:
        print(promise)
    return 1 if broken else 0


def collect(chosen: argparse.Namespace, known: Row) -> list[Row]:
    """All rows, those of an earlier, unfinished run with the same --output included."""
    kept = Kept("statistics", chosen)
    kept.rows = kept_before(kept.partial)
    done = {row["task"] for row in kept.rows}
    tasks = [task for task in (QUICK if chosen.quick else TASKS) if wanted(task, chosen.rows)]
    for number, task in enumerate(tasks, 1):
        if str(task) in done:
            continue
        print(f"\n{task} ({number} of {len(tasks)})\n{line(HEADINGS, WIDTHS)}", flush=True)
        for row in measure(task, chosen.rounds):
            kept.rows.append({**row, **known})
            show(row)
        kept.save()
    return kept.finish()


def wanted(task: Task, rows: re.Pattern[str] | None) -> bool:
    return rows is None or bool(rows.search(str(task)))


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
    query, key, value = given["query"], given["key"], given["value"]
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
    query, key, value = given["query"], given["key"], given["value"]
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


def allowed_keys(given: Given) -> Tensor | None:
    """True where a query may look; None where it may everywhere."""
    N, lengths = given["key"].shape[2], given.get("lengths")
    allowed = torch.ones(N, N, dtype=torch.bool).tril_() if given["causal"] else None
    if lengths is not None:
        real = (torch.arange(N) < lengths[:, None])[:, None, None, :]
        allowed = real if allowed is None else allowed & real
    return allowed


def measure(task: Task, rounds: int) -> Iterator[Row]:
    """The rows of one task: everyone passes the gate, then speed and memory."""
    given, want = task.inputs(), WANTS[task.want]
    exact = {n: v.double() if n in ("query", "key", "value") else v for n, v in given.items()}
    check = partial(compare, expected=materialised(want, exact))
    runs = {name: Contender(partial(run, given), dict) for name, run in contenders(want).items()}
    found = contest(runs, check, Clock(), rounds=rounds, baseline=OURS)
    for name, row in found.items():
        head = {"what": "statistics", "task": str(task), **asdict(task), "implementation": name}
        yield {**head, **row}


def compare(found: Found, expected: Found) -> Row:
    """The errors by name. Raises WrongError; of equal scores any may be the argmax."""
    if missing := expected.keys() - found.keys():
        raise WrongError(f"gave no {', '.join(sorted(missing))}")
    names = expected.keys() - {"argmax"}
    truth = Truth({n: expected[n] for n in names}, absolute=TOLERANCE)
    verdict = truth.check({n: found[n] for n in names})
    if "argmax" in expected:
        differing = (found["argmax"] != expected["argmax"]).float().mean().item()
        if differing > 1e-3:
            raise WrongError(f"argmax differs in {differing:.2%} of the rows")
    return verdict


def broken_promises(rows: Sequence[Row]) -> Iterator[str]:
    """What the chunked path does not keep, a sentence each."""
    by_task: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_task.setdefault(row["task"], {})[row["implementation"]] = row
    for task, found in by_task.items():
        ours = found[OURS]
        if not ours["ok"]:
            yield f"{task}: {OURS} is wrong: {ours['reason']}"
            continue
        others = [found[name] for name in MATERIALISING if found[name]["ok"]]
        if not others:
            yield f"{task}: nobody who materialises is right, so nothing was compared"
            continue
        fastest = min(others, key=lambda row: row["median_ms"])
        if ours["T"] >= FASTER_FROM and ours["median_ms"] >= fastest["median_ms"]:
            yield f"{task}: slower than {fastest['implementation']}"
        smallest = min(row["peak_bytes"] for row in others)
        if ours["T"] >= SMALL_AT and ours["peak_bytes"] * TIMES_SMALLER > smallest:
            yield f"{task}: {smallest / ours['peak_bytes']:.1f} x less memory, not {TIMES_SMALLER}"


WIDTHS = (20, 10, 17, 9, 10, 9)
HEADINGS = ("implementation", "median ms", "p20 - p80", "to ours", "peak MiB", "error")


def show(row: Row) -> None:
    """Print a row."""
    if not row["ok"]:
        print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}", flush=True)
        return
    cells = (
        row["implementation"],
        f"{row['median_ms']:.2f}",
        f"{row['p20_ms']:.2f} - {row['p80_ms']:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['peak_bytes'] / 2**20:.1f}",
        f"{row['max_error']:.1e}",
    )
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
