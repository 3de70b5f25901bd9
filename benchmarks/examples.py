"""The scripts of examples/ beside the same in TransformerLens: lines and seconds.

    python -m benchmarks.examples [--peer-python PYTHON] [--rounds 3] [--output FILE]
    python -m benchmarks.examples --table FILE     the table of examples/README.md

Each script runs in a process of its own, in turns, start of Python and imports included; a row
`imports` has what these cost alone. Lines are those with code: docstring, comments and blank lines
are not counted, nor is what the peer is given (peers/given.py, peers/hooked.py). The peer is timed
when it prints what ours prints, its numbers within `TOLERANCE`; else it is a row with the reason.
`--peer-python` is the Python of an environment that has TransformerLens 3.9 (CONTRIBUTING.md,
"Benchmarks"), by default this one.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.session import QUIET, REPOSITORY, Kept, options, warn_when_busy
from minibert.bench.result_rows import Row, busy, facts, read_rows

EXAMPLES, PEERS = REPOSITORY / "examples", REPOSITORY / "benchmarks" / "peers" / "by_lens"
PEER = "transformer_lens"
CONTENDERS = ("minibert", PEER)
# What loads a model: `import minibert` alone waits for nothing.
DOORS = {"minibert": "load", PEER: "HookedTransformer"}
EMBEDDED = REPOSITORY / "minibert" / "embedded"
ON_BERT = ("clark_figure_2", "fine_tuning", "part_of_speech", "sae_data", "two_checkpoints")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
# In the last digit printed: all compute in float32, in another order.
TOLERANCE = 0.011
# Its 301 steps make more of that: activations moved by 1e-7 of themselves print 49.7 for 49.8.
RELATIVE = {"sae_data": 0.01}
# How many terms a sum was cut into, where files lie, and the order of words of a classifier that
# saw no dropout: TransformerLens has none.
FREE = re.compile(r"\d+ terms|in /\S+|because of .*")
IMPORTS = "imports"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every script ran, and the peer printed what ours prints."""
    parser = options("Lines and seconds of twelve experiments.", rounds=3, quick_rounds=1)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--table", type=Path, help="print that of examples/README.md")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print("\n".join(table(read_rows(chosen.table))))
        return 0
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    known = facts(threads=chosen.threads)
    known["versions"] |= versions(chosen.peer_python)
    warn_when_busy(known)
    kept = Kept("examples", chosen)
    tasks = (IMPORTS, *sorted(path.stem for path in EXAMPLES.glob("*.py")))
    print(f"{'experiment':26} {'lines':>11} {'seconds':>18}   ({', '.join(CONTENDERS)})")
    with tempfile.TemporaryDirectory() as folder:
        give(Path(folder))
        for task in tasks:
            if chosen.rows is None or chosen.rows.search(task):
                rows = measured(task, chosen, Path(folder))
                show(task, rows)
                kept.rows += [{**row, **known} for row in rows]
                kept.save()
    return int(any(not row["ok"] for row in kept.finish()))


def versions(python: str) -> dict[str, str | None]:
    """The peer's version, and those of what it stands on, in its environment."""
    names = [PEER, "torch", "transformers", "numpy"]
    code = (
        "import json, sys, importlib.metadata as m\n"
        "have = {d.name.lower().replace('-', '_') for d in m.distributions()}\n"
        "print(json.dumps({n: m.version(n) if n in have else None for n in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return {name if name == PEER else f"{name}, peers": found[name] for name in names}


def give(folder: Path) -> None:
    """Write what the peer is given: pairs of sentences, and the second checkpoint."""
    import torch

    import minibert
    from minibert.survey.sample_texts import SAMPLE_PAIRS

    (folder / "pairs.json").write_text(json.dumps(SAMPLE_PAIRS))
    torch.manual_seed(0)
    model = minibert.load("tiny-bert").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(20):
        loss = model([text for text, _ in SAMPLE_PAIRS])[:, 1].logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save(folder / "second")


def commands(task: str, chosen: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """The command of each contender."""
    if task == IMPORTS:
        pythons = {"minibert": sys.executable, PEER: chosen.peer_python}
        return {
            who: [python, "-c", f"from {who} import {DOORS[who]}"]
            for who, python in pythons.items()
        }
    options = ["--second", str(folder / "second")] if task == "two_checkpoints" else []
    model = EMBEDDED / ("tiny-bert" if task in ON_BERT else "tiny-gpt2")
    theirs = [chosen.peer_python, str(PEERS / f"{task}.py"), str(model), str(folder)]
    return {
        "minibert": [sys.executable, str(EXAMPLES / f"{task}.py"), *options],
        PEER: theirs,
    }


def measured(task: str, chosen: argparse.Namespace, folder: Path) -> list[Row]:
    """The rows of one experiment, one a contender."""
    runs: dict[str, list[tuple[float, subprocess.CompletedProcess[str]]]] = {}
    asked = commands(task, chosen, folder)
    for _ in range(chosen.rounds):
        for who, command in asked.items():
            runs.setdefault(who, []).append(timed(command, chosen.threads))
    truth = runs["minibert"][0][1].stdout
    rows: list[Row] = []
    for who, command in asked.items():
        found = (wrong(done, truth, RELATIVE.get(task, 1e-3)) for _, done in runs[who])
        reason = next((why for why in found if why), "")
        row: Row = {"task": task, "contender": who}
        row |= {} if task == IMPORTS else {"lines": lines_of(Path(command[1]))}
        times = [round(second, 3) for second, _ in runs[who]]
        seconds = {} if reason else {"seconds": median(times), "rounds": times}
        rows.append({**row, "ok": not reason, "reason": reason, **seconds})
    return rows


def timed(command: list[str], threads: int) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Seconds of a process, and the process."""
    own = {**os.environ, **QUIET, "PYTHONPATH": str(REPOSITORY)}
    own |= {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    start = time.perf_counter()
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    return time.perf_counter() - start, done


def wrong(done: subprocess.CompletedProcess[str], truth: str, relative: float) -> str:
    """Why a run does not count; empty where it printed the words and the numbers of the truth."""
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    (words, found), (ours, wanted) = (parts(text) for text in (done.stdout, truth))
    if words != ours:
        return "it printed other words than ours"
    pairs = zip(found, wanted, strict=True)
    apart = [abs(a - b) > TOLERANCE + relative * abs(b) for a, b in pairs]
    return f"{sum(apart)} of {len(found)} numbers differ from ours" if any(apart) else ""


def parts(text: str) -> tuple[list[str], list[float]]:
    """A text's words with its numbers taken out, and the numbers, but for what is free."""
    text = FREE.sub("", text)
    return NUMBER.sub("#", text).split(), [float(one) for one in NUMBER.findall(text)]


def lines_of(path: Path) -> int:
    """Lines with code, the docstring of the script left out."""
    text = path.read_text("utf-8")
    first = ast.parse(text).body[0]
    end = first.end_lineno or 0 if isinstance(first, ast.Expr) else 0
    code = [line.strip() for line in text.splitlines()[end:]]
    return sum(bool(line) and not line.startswith("#") for line in code)


def show(name: str, rows: Sequence[Row]) -> None:
    """One line of the table."""
    lines = ", ".join(str(row["lines"]) for row in rows if "lines" in row)
    seconds = ", ".join(f"{row['seconds']:.1f}" if row["ok"] else row["reason"] for row in rows)
    print(f"{name:26} {lines:>11} {seconds:>18}", flush=True)


NAMES = {"minibert": "minibert", PEER: "TransformerLens"}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table, in Markdown: lines of code, then seconds, of each contender.

    In brackets stand our lines that read options, which the peer's scripts do not have.
    """
    found = {(row["task"], row["contender"]): row for row in rows}
    tasks = sorted({row["task"] for row in rows} - {IMPORTS})
    names = [NAMES[who] for who in CONTENDERS]
    yield _line(["", *(f"{unit}: {name}" for unit in ("lines", "seconds") for name in names)])
    yield f"|---{'|---:' * (2 * len(CONTENDERS))}|"
    for task in (*tasks, IMPORTS):
        each = [found.get((task, who), {}) for who in CONTENDERS]
        lines = [str(row.get("lines", "")) for row in each]
        if task != IMPORTS:
            lines[0] += f" ({options_of(EXAMPLES / f'{task}.py')})"
        yield _line([task if task != IMPORTS else "imports alone", *lines, *map(_seconds, each)])
    counts = [str(sum(found[task, who]["lines"] for task in tasks)) for who in CONTENDERS]
    counts[0] += f" ({sum(options_of(EXAMPLES / f'{task}.py') for task in tasks)})"
    times = [[found[task, who].get("seconds") for task in tasks] for who in CONTENDERS]
    whole = [f"{sum(each):.1f}" if None not in each else "" for each in times]
    yield _line(["all twelve", *counts, *whole])
    load = max(row["load_at_start"] for row in rows)
    if busy({"load_at_start": load}):
        yield f"\nOthers used the machine (load {load:.1f} at the start): trust no second."


def options_of(path: Path) -> int:
    """Lines of a script's statements that read its options with argparse."""
    count = 0
    for statement in ast.parse(path.read_text("utf-8")).body:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        names |= {node.name for node in ast.walk(statement) if isinstance(node, ast.alias)}
        if names & {"argparse", "parser"}:
            count += (statement.end_lineno or 0) - statement.lineno + 1
    return count


def _seconds(row: Row) -> str:
    """Its median, or why there is none."""
    return f"{row['seconds']:.1f}" if row.get("ok") else str(row.get("reason", "not run"))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
