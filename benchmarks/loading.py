"""How long until a model is there, and how much memory that takes, beside the peers.

    python -m benchmarks.loading [--quick] [--rounds 7] [--threads 2] [--output FILE]

Each number comes from fresh processes, started in turns; the file of weights is in the page
cache, as after any earlier use. The moment counts from the start of the process, Python's own
start included. Peak memory is that of the process less that of one that only imports torch.
The logits of the eight tokens are compared with those of transformers; a row whose process
fails or answers wrongly says so and has no speed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.session import REPOSITORY, default_output, warn_when_busy
from minibert.bench.gate import GateError, reason, require, within
from minibert.bench.result_rows import Row, Timing, facts, interleaved, version, write_rows

REFERENCE = "transformers"
# Largest difference of a logit from transformers'.
TOLERANCE = 1e-4
# What each process runs. `at(name)` notes the moment, and the most memory held until then.
PRELUDE = """
import json, resource, sys, time
folder, notes = sys.argv[1], {}
def peak():
    try:
        status = open("/proc/self/status").read()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
def at(name):
    moment = time.monotonic()
    notes[name] = {"moment": moment, "peak": peak()}
"""
FORWARD = """
at("loaded")
with torch.no_grad():
    out = model(torch.arange(5, 13)[None])
logits = getattr(out, "logits", out)
at("first answer")
notes["logits"] = logits.flatten()[::997].tolist()
with torch.no_grad():
    model(torch.arange(5, 133)[None])
at("long answer")
"""
# The points of time of a loader. Some back ends copy weights only for enough tokens at once.
POINTS = {
    "loaded": "start to loaded",
    "first answer": "start to the logits of 8 tokens",
    "long answer": "start to the logits of 128 more",
}
POSTLUDE = """
print(json.dumps(notes))
"""
PROGRAMS = {
    "torch": "import torch\nat('loaded')",
    "minibert": f"import torch, minibert\nmodel = minibert.load(folder)\n{FORWARD}",
    "transformers": (
        "import torch\nfrom transformers import BertForMaskedLM\n"
        f"model = BertForMaskedLM.from_pretrained(folder).eval()\n{FORWARD}"
    ),
    "transformer_lens": (
        "import torch\nfrom transformer_lens.model_bridge import TransformerBridge\n"
        f"model = TransformerBridge.boot_transformers(folder, device='cpu')\n{FORWARD}"
    ),
    "import minibert": (
        "import torch\nat('torch')\nimport minibert\nat('import')\n"
        "minibert.load\nat('load')\nminibert.Model\nat('all')"
    ),
}
WRITE = """
import sys, torch, transformers
torch.manual_seed(0)
config = transformers.BertConfig(**eval(sys.argv[2]))
transformers.BertForMaskedLM(config).save_pretrained(sys.argv[1])
"""
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 997}
LOADERS = ("minibert", "transformers", "transformer_lens")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every process that could run was right."""
    parser = options("Start-up time and memory beside the peers.")
    parser.add_argument("--rounds", type=int, help="processes of each kind; 7, quick 2")
    chosen = parser.parse_args(arguments)
    if version("transformers") is None:
        print("benchmarks.loading compares with transformers, which is not installed")
        return 1
    known = facts(threads=chosen.threads)
    warn_when_busy(known)
    with tempfile.TemporaryDirectory() as folder:
        environment = surroundings(Path(folder), chosen.threads)
        weights = Path(folder) / "model"
        subprocess.run(
            [sys.executable, "-c", WRITE, str(weights), repr(SMALL if chosen.quick else {})],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        notes = collect(weights, environment, chosen.rounds or (2 if chosen.quick else 7))
        size = (weights / "model.safetensors").stat().st_size
    model = "bert-quick" if chosen.quick else "bert-base"
    found = [*summary(notes, size), *starts(notes)]
    rows = [{**row, "model": model, "dtype": "float32", **known} for row in found]
    for row in rows:
        show(row)
    return finished(rows, chosen, "loading")


def options(description: str) -> argparse.ArgumentParser:
    """The options of a benchmark of processes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small model: is it right?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="file for the rows; --quick needs it")
    return parser


def finished(rows: Sequence[Row], chosen: argparse.Namespace, kind: str) -> int:
    """The exit status: 1 where a process failed or was wrong; the rows are in their file."""
    if path := chosen.output or (None if chosen.quick else default_output(kind)):
        write_rows(list(rows), path)
        print(f"\n{len(rows)} rows in {path}")
    return int(any(not row["ok"] and row["reason"] != "not installed" for row in rows))


def surroundings(folder: Path, threads: int) -> dict[str, str]:
    """The environment of every process: offline, with a cache of its own, so many threads."""
    own = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": str(threads),
    }
    kept = {name: text for name, text in os.environ.items() if name != "MINIBERT_LINEAR"}
    return {**kept, **own}


Notes = dict[str, Any]


def collect(
    weights: Path, environment: Mapping[str, str], rounds: int
) -> dict[str, list[Notes] | str]:
    """What each program noted in each round, or the reason why it cannot be measured.

    A round before the first is not counted: it fills the page cache and Python's compiled files.
    """
    notes: dict[str, list[Notes] | str] = {name: [] for name in (*PROGRAMS, "minibert --help")}
    for number, name in enumerate(interleaved(notes, rounds + 1)):
        earlier = notes[name]
        if isinstance(earlier, str):
            continue
        try:
            note = started(name, weights, environment)
        except GateError as error:
            notes[name] = reason(error)
            continue
        if number >= len(notes):
            earlier.append(note)
    return notes


def started(name: str, weights: Path, environment: Mapping[str, str]) -> Notes:
    """What one fresh process noted, with seconds from its start instead of moments."""
    if name in LOADERS:
        require(name)
    program = PROGRAMS.get(name)
    command = ["-m", "minibert", "--help"]
    if program is not None:
        command = ["-c", PRELUDE + program + POSTLUDE, str(weights)]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=dict(environment),
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise GateError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    if program is None:
        return {"end": {"seconds": seconds}}
    notes: Notes = json.loads(done.stdout.splitlines()[-1])
    for note in notes.values():
        if "moment" in note:
            note["seconds"] = note.pop("moment") - start
    return notes


def summary(notes: Mapping[str, list[Notes] | str], size: int) -> list[Row]:
    """A row for each loader and point of time: how long it took and how much memory."""
    rows = []
    for point, what in POINTS.items():
        for name in LOADERS:
            row: Row = {"what": what, "implementation": name, "weights_bytes": size}
            try:
                mine, reference = noted(notes, name), noted(notes, REFERENCE)
                same_answer(mine, reference)
                used = memory(mine, point, noted(notes, "torch"), size)
                rows.append({**row, "ok": True, **times(mine, point, reference), **used})
            except GateError as error:
                rows.append({**row, "ok": False, "reason": reason(error)})
    return rows


def noted(notes: Mapping[str, list[Notes] | str], name: str) -> list[Notes]:
    """What a program noted in each round. Raises GateError with the reason where it failed."""
    found = notes[name]
    if isinstance(found, str):
        raise GateError(found)
    return found


def same_answer(mine: Sequence[Notes], reference: Sequence[Notes]) -> None:
    """Raise GateError where a process computed other logits than transformers."""
    wanted = reference[0]["logits"]
    for note in mine:
        pairs = zip(note["logits"], wanted, strict=True)
        error = max(abs(found - value) for found, value in pairs)
        within("logits", error, TOLERANCE)


def times(mine: Sequence[Notes], point: str, reference: Sequence[Notes]) -> Row:
    """Milliseconds from the start of the process, and the ratio to the reference."""
    timing, base = (
        Timing([[note[point]["seconds"] * 1e3] for note in notes]) for notes in (mine, reference)
    )
    return timing.fields() | timing.ratios(base)


def memory(mine: Sequence[Notes], point: str, torch_only: Sequence[Notes], size: int) -> Row:
    """The most memory held so far, beyond `import torch`, and against the size of the weights."""
    base = statistics.median(note["loaded"]["peak"] for note in torch_only)
    peak = statistics.median(note[point]["peak"] for note in mine) - base
    return {"peak_bytes": int(peak), "peak_to_weights": round(peak / size, 4)}


# what, implementation, program, from which of its notes (its start where None), to which.
STARTS = (
    ("import minibert, beyond torch", "minibert", "import minibert", "torch", "import"),
    ("import and minibert.load, beyond torch", "minibert", "import minibert", "torch", "load"),
    ("import, load and Model, beyond torch", "minibert", "import minibert", "torch", "all"),
    ("start to torch imported", "torch", "torch", None, "loaded"),
    ("start to end of minibert --help", "minibert", "minibert --help", None, "end"),
)


def starts(notes: Mapping[str, list[Notes] | str]) -> list[Row]:
    """What importing minibert costs on top of torch, and how long its help takes."""
    rows = []
    for what, implementation, program, since, until in STARTS:
        row: Row = {"what": what, "implementation": implementation}
        try:
            found = noted(notes, program)
        except GateError as error:
            rows.append({**row, "ok": False, "reason": reason(error)})
            continue
        begins = [note[since]["seconds"] if since else 0.0 for note in found]
        pairs = zip(found, begins, strict=True)
        timing = Timing([[(note[until]["seconds"] - begin) * 1e3] for note, begin in pairs])
        rows.append({**row, "ok": True, **timing.fields()})
    return rows


def show(row: Row) -> None:
    name = f"{row['what']}: {row['implementation']}"
    if not row["ok"]:
        print(f"{name:<62}  {row['reason']}")
        return
    text = f"{row['median_ms']:9.1f} ms ({row['p20_ms']:.1f} - {row['p80_ms']:.1f})"
    if "ratio" in row:
        text += f"  ratio {row['ratio']:.2f}"
        text += f"  peak {row['peak_bytes'] / 2**20:.0f} MiB = {row['peak_to_weights']:.2f} weights"
    print(f"{name:<62}  {text}")


if __name__ == "__main__":
    sys.exit(main())
