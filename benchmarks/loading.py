"""How long until a model is there, and how much memory that takes, beside transformers.

    python -m benchmarks.loading [--quick] [--rounds 7] [--threads 2] [--output FILE]

Each number comes from fresh processes, started in turns, with files that are in memory. A process
notes the moment and its memory after each step: imports, loading, a first pass, a longer one, since
a loader may leave the reading to the first pass, and some back ends copy weights for enough tokens
at once. Memory is the most that was held, less that of a process that only imports torch;
`anonymous_bytes` are what is not pages of files, which the system takes back when it needs them. A
row whose process answers otherwise than transformers says so and has no speed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.models import TOLERANCE, Case
from benchmarks.session import QUIET, REPOSITORY, Kept, options, session
from minibert.bench.result_rows import GateError, Row, Timing, failure, interleaved, require, within

PROGRAM = """
import json, sys, time
import torch
{imports}
folder, notes = sys.argv[1], {{}}
def at(name):
    lines = (line.split() for line in open("/proc/self/status"))
    used = {{line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}}
    kinds = {{"peak_bytes": used["VmHWM:"], "anonymous_bytes": used["RssAnon:"]}}
    notes[name] = {{"moment": time.monotonic(), **kinds}}
at("imports")
with torch.inference_mode():
    model = {load}
    at("load")
    for n_tokens in {lengths}:
        out = model(torch.arange(n_tokens)[None])
        at(f"logits of {{n_tokens}} tokens")
logits = getattr(out, "logits", out).flatten()[::997].tolist() if {lengths} else []
print(json.dumps([notes, logits]))
"""
TORCH_ALONE = "torch alone"
#: What a process imports, and how it loads.
LOADERS = {
    TORCH_ALONE: ("", "None"),
    "minibert": ("import minibert", "minibert.load(folder, dtype=torch.float32)"),
    "transformers": (
        "import transformers",
        "transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()",
    ),
}
#: Tokens of the two passes.
LENGTHS = (8, 128)

#: What a process noted at each step.
Notes = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Checkpoint:
    """Weights on the disk, and some logits that transformers gives."""

    name: str
    folder: Path
    logits: list[float]

    @property
    def bytes(self) -> int:
        """Those of all weights."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    def check(self, found: list[float]) -> None:
        """Raise WrongError where a process answered wrongly."""
        pairs = zip(found, self.logits, strict=True)
        within("logits", max(abs(one - other) for one, other in pairs), TOLERANCE)


def checkpoint_in(folder: Path, *, quick: bool) -> Checkpoint:
    """A BERT of base shape, whose logits transformers computes here."""
    case = Case("bert-quick" if quick else "bert-base", folder)
    with torch.no_grad():
        logits = case.transformers("eager")(torch.arange(LENGTHS[-1])[None]).logits
    return Checkpoint(case.model, folder, logits.flatten()[::997].tolist())


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every process that could run was right."""
    parser = options("Time and memory until a model is there.", rounds=7, quick_rounds=1)
    chosen = parser.parse_args(arguments)
    if not Path("/proc/self/status").exists():
        print("benchmarks.loading reads /proc, which this system does not have")
        return 1
    kept = Kept("loading", chosen)
    with session(chosen.threads) as known, tempfile.TemporaryDirectory() as folder:
        for row in rows_of(checkpoint_in(Path(folder), quick=chosen.quick), chosen, kept.rounds):
            kept.add({"what": "loading", **row, **known}, shown(row))
    rows = kept.finish()
    return int(any(not row["ok"] and row["reason"] != "not installed" for row in rows))


def rows_of(checkpoint: Checkpoint, chosen: argparse.Namespace, rounds: int) -> Iterator[Row]:
    """A row for each loader and step."""
    asked = chosen.rows.search if chosen.rows else bool
    loaders = [name for name in LOADERS if name == TORCH_ALONE or asked(name)]
    found: dict[str, list[Notes] | Row] = {name: [] for name in loaders}
    # A round before the first is not counted: it fills the page cache.
    for number, name in enumerate(interleaved(loaders, 1 + rounds)):
        noted = found[name]
        if isinstance(noted, list):
            try:
                notes = measured(name, checkpoint, chosen.threads)
                noted += [notes] if number >= len(loaders) else []
            except GateError as error:
                found[name] = failure(error)
    for row in summary(found, checkpoint.bytes):
        yield {"model": checkpoint.name, "dtype": "float32", **row}


def measured(name: str, checkpoint: Checkpoint, threads: int) -> Notes:
    """What one fresh process noted, `seconds` from its start.

    Raises GateError where it fails or is wrong.
    """
    require("torch" if name == TORCH_ALONE else name)
    imports, load = LOADERS[name]
    program = PROGRAM.format(imports=imports, load=load, lengths=LENGTHS if imports else ())
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint.folder)],
        cwd=REPOSITORY,
        env={**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise GateError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    notes, logits = json.loads(done.stdout.splitlines()[-1])
    if imports:
        checkpoint.check(logits)
    return {step: {**note, "seconds": note["moment"] - start} for step, note in notes.items()}


def summary(found: Mapping[str, list[Notes] | Row], size: int) -> Iterator[Row]:
    """The rows: medians of milliseconds from the start and after the imports, and memory."""
    for name, noted in found.items():
        about = {"implementation": name, "weights_bytes": size}
        if not isinstance(noted, list):
            yield {**about, "step": "load", **noted}
            continue
        for step in noted[0]:
            times = Timing([[note[step]["seconds"] * 1e3] for note in noted])
            later = [note[step]["moment"] - note["imports"]["moment"] for note in noted]
            row = {"after_imports_ms": round(1e3 * statistics.median(later), 2)}
            base, peer = found[TORCH_ALONE], found.get("transformers")
            if isinstance(base, list):
                beyond = _median(noted, step, "peak_bytes") - _median(base, "load", "peak_bytes")
                row |= {"peak_bytes": beyond, "peak_to_weights": round(beyond / size, 4)}
                row["anonymous_bytes"] = _median(noted, step, "anonymous_bytes")
            if isinstance(peer, list) and step in peer[0]:
                row |= times.ratios(Timing([[note[step]["seconds"] * 1e3] for note in peer]))
            yield {**about, "step": step, "ok": True, **times.fields(), **row}


def _median(noted: Sequence[Notes], step: str, kind: str) -> float:
    return statistics.median(note[step][kind] for note in noted)


def shown(row: Row) -> str:
    """A row as a line."""
    name = f"{row['model']}: {row['implementation']}, {row['step']}"
    if not row["ok"]:
        return f"{name:<66}  {row['reason']}"
    text = f"{row['median_ms']:9.1f} ms, {row['after_imports_ms']:.1f} after the imports"
    text += f", ratio {row['ratio']:.2f}" if "ratio" in row else ""
    return f"{name:<66}  {text}, {row.get('peak_to_weights', 0):.2f} weights in memory"


if __name__ == "__main__":
    sys.exit(main())
