"""The scripts of examples/ beside the same experiments in TransformerLens: lines and seconds.

    python -m benchmarks.examples [--peer-python PYTHON] [--rounds 3] [--output FILE]

Each script runs in a process of its own, in turns, start of Python and imports included. Lines are
those with code: docstring, comments and blank lines are not counted, nor is peers/tiny.py, which
stands for `minibert.load`. A peer is timed when all the numbers that it prints are those of ours;
what it prints otherwise is a row with the reason. `--peer-python` is the Python of an environment
that has TransformerLens 3.9 (CONTRIBUTING.md, "Benchmarks"), by default this one.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.session import QUIET, REPOSITORY, default_output, warn_when_busy
from minibert.bench.result_rows import Row, facts, write_rows

EXAMPLES, PEERS = REPOSITORY / "examples", REPOSITORY / "benchmarks" / "peers"
MODEL = REPOSITORY / "minibert" / "embedded" / "tiny-gpt2"
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
# In the last digit printed: both compute in float32, in another order.
TOLERANCE = 0.011


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every script ran, and each peer printed our numbers."""
    chosen = parse(arguments)
    known = facts(threads=chosen.threads)
    warn_when_busy(known)
    rows: list[Row] = []
    print(f"{'experiment':26} {'lines':>11} {'seconds':>15}   (minibert, TransformerLens)")
    for ours in sorted(EXAMPLES.glob("*.py")):
        found = measured(ours, chosen)
        rows += [{**row, **known} for row in found]
        show(ours.stem, found)
    if chosen.output:
        write_rows(rows, chosen.output)
        print(f"\n{len(rows)} rows in {chosen.output}")
    return 1 if any(not row["ok"] for row in rows) else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Lines and seconds of twelve experiments.")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=default_output("examples"))
    return parser.parse_args(arguments)


def measured(ours: Path, chosen: argparse.Namespace) -> list[Row]:
    """The rows of one experiment: ours, and the peer's where it is written."""
    peer = PEERS / ours.name
    commands = {"minibert": ([sys.executable, str(ours)], ours)}
    if peer.exists():
        command = [chosen.peer_python, str(peer), str(MODEL)]
        commands["transformer_lens"] = command, peer
    runs: dict[str, list[tuple[float, subprocess.CompletedProcess[str]]]] = {}
    for _ in range(chosen.rounds):
        for who, (command, _) in commands.items():
            runs.setdefault(who, []).append(timed(command, chosen.threads))
    truth = runs["minibert"][0][1].stdout
    rows: list[Row] = []
    for who, (_, path) in commands.items():
        reason = next((why for _, done in runs[who] if (why := wrong(done, truth))), "")
        row: Row = {"task": ours.stem, "contender": who, "lines": lines_of(path)}
        seconds = {} if reason else {"seconds": median(second for second, _ in runs[who])}
        rows.append({**row, "ok": not reason, "reason": reason, **seconds})
    return rows


def timed(command: list[str], threads: int) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Seconds of a process, and the process."""
    paths = {"PYTHONPATH": str(REPOSITORY)} if command[0] == sys.executable else {}
    own = {**os.environ, **QUIET, **paths, "OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    return time.perf_counter() - start, done


def wrong(done: subprocess.CompletedProcess[str], truth: str) -> str:
    """Why a run does not count; empty where it printed the numbers of the truth."""
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    found, wanted = (numbers(text) for text in (done.stdout, truth))
    if len(found) != len(wanted):
        return f"it printed {len(found)} numbers, and ours {len(wanted)}"
    apart = [abs(a - b) > TOLERANCE + 1e-3 * abs(b) for a, b in zip(found, wanted, strict=True)]
    return f"{sum(apart)} of {len(found)} numbers differ from ours" if any(apart) else ""


def numbers(text: str) -> list[float]:
    """The numbers of a text, but for how many terms a sum was cut into."""
    return [float(one) for one in NUMBER.findall(re.sub(r"\d+ terms", "", text))]


def lines_of(path: Path) -> int:
    """Lines with code, the docstring of the script left out."""
    text = path.read_text("utf-8")
    first = ast.parse(text).body[0]
    end = first.end_lineno or 0 if isinstance(first, ast.Expr) else 0
    code = [line.strip() for line in text.splitlines()[end:]]
    return sum(bool(line) and not line.startswith("#") for line in code)


def show(name: str, rows: Sequence[Row]) -> None:
    """One line of the table."""
    lines = ", ".join(str(row["lines"]) for row in rows)
    seconds = ", ".join(f"{row['seconds']:.1f}" if row["ok"] else row["reason"] for row in rows)
    print(f"{name:26} {lines:>11} {seconds:>15}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
