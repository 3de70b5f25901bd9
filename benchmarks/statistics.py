"""Attention statistics on a CPU: blocks of rows beside "materialise the N x N probs and reduce".

    python -m benchmarks.statistics [--quick] [--rows REGEX] [--threads 2] [--rounds 7] [--output F]

All in one process, in turns. z and every statistic of each contender is compared with float64
before a clock runs; whoever is wrong is a row with the reason and no speed. Each row is written as
it comes; a run that was cut off goes on where it stopped when it is given the same --output.
The exit status is 0 when the chunked path is right everywhere, faster than the fastest that
materialises at every length of 512 and more, twice as fast from 2048 on, takes 0.35 of the time
with a window of 256 at 4096, and has a tenth of the memory there.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.cases import TOLERANCE
from benchmarks.materialised import Found, Given, materialised, materialised_in_place
from benchmarks.session import Kept, kept_before, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest
from minibert.bench.gate import Truth, WrongError
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

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
        full = by_task.get(re.sub(r" window \d+", "", task), found)[OURS]
        part = found[OURS]
        if full is not part and part["T"] == SMALL_AT:
            ratio = part["median_ms"] / full["median_ms"]
            if ratio > WINDOWED:
                yield f"{task}: {ratio:.2f} of the time without a window, not {WINDOWED}"
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
        times = 2 if ours["T"] >= TWICE_FROM else 1
        if ours["T"] >= FASTER_FROM and ours["median_ms"] * times >= fastest["median_ms"]:
            yield f"{task}: not {times} x as fast as {fastest['implementation']}"
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
