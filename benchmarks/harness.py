"""Registry, runner, gate and facts: what every benchmark of this folder is measured with.

A `Contender` builds a `Prepared` for a case. `gate` compares what it computes with the
reference before any clock runs; what fails is a row with the reason and no speed. `clock` takes
turns, so that a busy moment of the machine meets every contender. Torch is imported late: the
loading benchmark measures processes and wants its own to be small.
"""

import importlib.metadata
import json
import os
import platform
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.facts import commit

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PACKAGES = ("minibert", "torch", "transformers", "transformer_lens", "nnsight", "numpy")
# Largest absolute difference from transformers in float32 that still is the same computation.
TOLERANCE = 1e-4
# A lossy contender keeps its error within this part of the largest value, or it is broken.
LOSSY_TOLERANCE = 0.05
# A turn is as many calls as fit in this time, so that a call of 1 ms does not always find the
# caches full of its neighbour's weights.
TURN_SECONDS, TURN_CALLS = 0.05, 20

Row = dict[str, Any]
Found = Mapping[str, Any]


class GateError(Exception):
    """A result is wrong, or an implementation cannot be measured here."""


@dataclass(frozen=True)
class Prepared:
    """A contender that is built: `run` is all the clock sees, `read` is all the gate sees."""

    run: Callable[[Any], Any]
    read: Callable[[Any], Found]
    # Settings the calls need, entered before the clock starts and left after it stops.
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Contender:
    """One implementation under one name, and what it gives back."""

    name: str
    captures: str
    prepare: Callable[[Any], Prepared]
    package: str = "minibert"
    dtype: str = "float32"
    lossy: bool = False
    # The contender of the same dtype whose error this one may double (flash-attention's rule).
    yardstick: str | None = None
    applies: Callable[[Any], bool] = lambda case: True


def require(package: str) -> None:
    """Raise GateError where `package` is not installed."""
    if version(package) is None:
        raise GateError("not installed")


def gate(
    found: Found,
    reference: Found,
    *,
    lossy: bool = False,
    limits: Mapping[str, float] | None = None,
) -> Row:
    """The largest difference of `found` from `reference`, by kind, as fields of a row.

    A name is a kind and its place, "hidden 3"; each must be in the reference. Raises GateError
    for a difference above what is allowed: TOLERANCE, or for a lossy contender LOSSY_TOLERANCE
    of the largest value, and never more than the limit of its kind; for missing or differently
    shaped results; and for NaN.
    """
    errors: dict[str, float] = {}
    if not found:
        raise GateError("nothing was captured")
    for name, value in found.items():
        if name not in reference or tuple(value.shape) != tuple(reference[name].shape):
            expected = tuple(reference[name].shape) if name in reference else "nothing"
            raise GateError(f"{name} has shape {tuple(value.shape)}, expected {expected}")
        wanted = reference[name].double()
        error = float((value.double() - wanted).abs().max())
        allowed = LOSSY_TOLERANCE * float(wanted.abs().max()) if lossy else TOLERANCE
        kind = name.split()[0]
        allowed = min(allowed, (limits or {}).get(kind, allowed))
        # Written so that NaN fails.
        if not error <= allowed:
            raise GateError(f"{name} differs by {error:.2e}, allowed {allowed:.2e}")
        errors[kind] = max(errors.get(kind, 0.0), error)
    return {"max_error": max(errors.values()), "errors": errors, "compared": len(found)}


def clock(runs: Mapping[str, Prepared], given: Any, rounds: int) -> dict[str, list[list[float]]]:
    """Milliseconds of each call, by contender and turn; turns are in a new order each round."""
    calls = {name: turn_calls(prepared, given) for name, prepared in runs.items()}
    turns: dict[str, list[list[float]]] = {name: [] for name in runs}
    order, shuffler = list(runs), random.Random(0)
    for _ in range(rounds):
        shuffler.shuffle(order)
        for name in order:
            turns[name].append(timed(runs[name], given, calls[name]))
    return turns


def timed(prepared: Prepared, given: Any, calls: int) -> list[float]:
    """Milliseconds of each of `calls` calls; what a call gives is freed off the clock."""
    milliseconds = []
    with prepared.around():
        for _ in range(calls):
            start = time.perf_counter()
            result = prepared.run(given)
            milliseconds.append((time.perf_counter() - start) * 1e3)
            del result
    return milliseconds


def turn_calls(prepared: Prepared, given: Any) -> int:
    """Calls in a turn, after two calls to warm up."""
    seconds = timed(prepared, given, 2)[-1] / 1e3
    return max(1, min(TURN_CALLS, int(TURN_SECONDS / max(seconds, 1e-9))))


def speed(turns: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> Row:
    """Median, p20 and p80 in ms, and the ratio to the reference.

    `ratio` is the ratio of the medians; its p20 and p80 are over rounds, each contender's turn
    against the reference's turn of the same round.
    """
    times = [call for turn in turns for call in turn]
    base = [call for turn in reference for call in turn]
    pairs = zip(turns, reference, strict=True)
    ratios = [statistics.median(mine) / statistics.median(its) for mine, its in pairs]
    return {
        "median_ms": round(statistics.median(times), 4),
        "p20_ms": round(quantile(times, 0.2), 4),
        "p80_ms": round(quantile(times, 0.8), 4),
        "calls": len(times),
        "rounds": len(turns),
        "ratio": round(statistics.median(times) / statistics.median(base), 4),
        "ratio_p20": round(quantile(ratios, 0.2), 4),
        "ratio_p80": round(quantile(ratios, 0.8), 4),
    }


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie, between neighbours in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def peak_bytes(prepared: Prepared, given: Any) -> int:
    """The most bytes of tensors one call holds on top of the weights, by torch's profiler.

    Counts what torch allocates, results included; not oneDNN's own scratch memory.
    """
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder, prepared.around():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            prepared.run(given)
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(memory, key=lambda event: float(event["ts"])):
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak


def reason(error: BaseException) -> str:
    """Why something failed, in one line without the paths of this machine."""
    text = str(error).strip().split("\n")[0][:300]
    text = re.sub(r"(?<![\w.])~?(/[\w.+-]+){2,}/?", "<path>", text)
    return text if isinstance(error, GateError) else f"{type(error).__name__}: {text}"


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    if package != "minibert":
        return None
    import minibert

    return minibert.__version__


def machine(threads: int) -> Row:
    """Where rows come from: processor, memory, versions, commit; nothing that names a person."""
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_output(kind: str) -> Path:
    """benchmarks/results/<kind>-<processor>-<date>.jsonl."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", processor()).lower()).strip("-")
    return RESULTS / f"{kind}-{slug}-{datetime.now(UTC):%Y-%m-%d}.jsonl"


def write(rows: Iterable[Row], path: Path) -> None:
    """Put the rows in `path`, a line of JSON each: all of them, or the file stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) for row in rows)
    try:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells below one another: the first to the left, numbers to the right."""
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def warn_when_busy(facts: Row) -> None:
    """Say so when others use this machine: then the times mean little."""
    if facts["load_at_start"] > 0.3:
        print(f"This machine is busy (load {facts['load_at_start']}): trust no time below.\n")
