"""The one gate, and result rows: one JSON object a line, with all it takes to be understood later.

A contender that is wrong, or that cannot run here, is a row with the reason and no time. Every
benchmark writes what it measured beside the `facts` of the machine: processor and device, versions,
commit, command, time. What timed calls come to, median, p20, p80 and the ratio to a baseline of the
same rounds, is computed here, whatever is timed. Imports nothing heavy.
"""

import importlib.metadata
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import MinibertError
from minibert.writing import replacing

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
#: Significant digits of milliseconds in a row.
_DIGITS = 6


def interleaved(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Each name once a round, in a new order each round, so that no busy moment meets one alone."""
    order, shuffler = list(dict.fromkeys(names)), random.Random(0)
    before: list[str] = []
    for _ in range(rounds):
        while True:
            shuffler.shuffle(order)
            if order != before or len(order) < 2:
                break
        before = list(order)
        yield from before


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie, between neighbours in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the single calls of one contender, a turn for each round."""

    turns: Sequence[Sequence[float]]

    @property
    def calls(self) -> list[float]:
        """All calls."""
        return [call for turn in self.turns for call in turn]

    @property
    def median(self) -> float:
        """The median of all calls."""
        return statistics.median(self.calls)

    @property
    def noise(self) -> float:
        """How far the medians of even and odd rounds are apart, as a part of the median.

        Both time the same thing: a smaller difference between contenders means nothing.
        """
        halves = [
            statistics.median([call for turn in self.turns[start::2] for call in turn] or [0.0])
            for start in (0, 1)
        ]
        return abs(halves[0] - halves[1]) / max(self.median, 1e-9) if len(self.turns) > 1 else 0.0

    def fields(self) -> Row:
        """The fields of a row: median, p20 and p80 in ms, calls, rounds."""
        calls = self.calls
        return {
            "median_ms": _rounded(self.median),
            "p20_ms": _rounded(quantile(calls, 0.2)),
            "p80_ms": _rounded(quantile(calls, 0.8)),
            "calls": len(calls),
            "rounds": len(self.turns),
        }

    def ratios(self, baseline: "Timing") -> dict[str, float]:
        """The fields of a row: this median in medians of the baseline.

        Its p20 and p80 are over rounds, each turn against the baseline's turn of the same round.
        """
        pairs = zip(self.turns, baseline.turns, strict=True)
        rounds = [statistics.median(mine) / statistics.median(its) for mine, its in pairs]
        return {
            "ratio": round(self.median / baseline.median, 4),
            "ratio_p20": round(quantile(rounds, 0.2), 4),
            "ratio_p80": round(quantile(rounds, 0.8), 4),
        }

    def divided(self, count: int) -> "Timing":
        """The times of single calls, where `count` of them were timed as one."""
        return Timing([[call / count for call in turn] for turn in self.turns])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGES = ("minibert", "torch", "triton", "transformers", "numpy")
#: More than this of the machine is used by others: times mean little.
_BUSY = 0.3


def facts(
    *, threads: int, device: "torch.device | None" = None, packages: Sequence[str] = ()
) -> Row:
    """The origin of rows, without names of people or folders.

    `device` is what computes, the processor when None; `packages` are those whose versions matter
    beside the usual ones.
    """
    on_gpu = device is not None and device.type == "cuda"
    versions = {name: version(name) for name in (*_PACKAGES, *packages)}
    return {
        "device": _gpu(device, versions) if on_gpu else processor(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "load_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
        "command": command(),
        # Not datetime.UTC: many a GPU image has Python 3.10.
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017
    }


def busy(row: Row) -> str:
    """A warning where others use this machine; "" where it is quiet."""
    load = row["load_at_start"] or 0
    return f"this machine is busy (load {load}): trust no time below." if load > _BUSY else ""


def _gpu(device: "torch.device | None", versions: dict[str, str | None]) -> str:
    """The name of the GPU; the versions of its libraries are added."""
    import torch

    cudnn = torch.backends.cudnn.version()
    versions |= {"cuda": torch.version.cuda, "cudnn": None if cudnn is None else str(cudnn)}
    return torch.cuda.get_device_name(device)


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    if package == "minibert":
        # Of the files that run, whatever name they were installed by.
        return str(sys.modules["minibert"].__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(checkout: Path = _CHECKOUT) -> str | None:
    """The commit of minibert's checkout, with "+" appended when files differ.

    Where there is only a copy of the files, MINIBERT_COMMIT says it; else None.
    """
    # Not a checkout of somebody's own, in whose environment minibert is installed.
    if not (checkout / ".git").exists():
        return os.environ.get("MINIBERT_COMMIT")
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=checkout,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MINIBERT_COMMIT")
    return answer.stdout.strip()


def command() -> str:
    """The command line of this process, without the folders of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name
    if spec is not None:
        program = f"python -m {spec.name.removesuffix('.__main__')}"
    return " ".join([program, *(re.sub(r"[^\s=]*/", "", word) for word in sys.argv[1:])])


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Put the rows in `path`: all of them, or the file stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) for row in rows)
    with replacing(path) as beside:
        beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


#: What a contender gives: tensors by name. A name is a kind and its place, "hidden 3".
Outputs = Mapping[str, Any]


class GateError(MinibertError):
    """A contender cannot be measured here."""


class WrongError(GateError):
    """A contender's result is wrong."""


def within(name: str, error: float, allowed: float, of: str = "") -> float:
    """The error. Raises WrongError when it is above the tolerance, or NaN."""
    # Written so that NaN fails.
    if not error <= allowed:
        raise WrongError(f"{name} differs by {error:.2e}{of}, allowed {allowed:.2e}")
    return error


def require(package: str) -> None:
    """Raise GateError where `package` is not installed."""
    if version(package) is None:
        raise GateError("not installed")


def failure(error: BaseException) -> Row:
    """The fields of a row without a result: `wrong` where it gave a wrong one."""
    return {"ok": False, "wrong": isinstance(error, WrongError), "reason": reason(error)}


def reason(error: BaseException) -> str:
    """The reason of a failure, in one line without the folders of this machine."""
    text = " ".join(str(error).split("\n\n")[0].split())[:300]
    text = re.sub(r"(?<![\w.])~?(/[\w.+-]+){2,}/?", "<path>", text)
    return text if isinstance(error, MinibertError) else f"{type(error).__name__}: {text}"
