"""What the benchmarks share: options, a quiet process, rows kept as they come, names of files."""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from minibert.bench.result_rows import Row, busy, facts, processor, require, write_rows

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
# Peers whose versions go into the rows.
PACKAGES = ("transformer_lens", "nnsight")
# Read when transformers and huggingface_hub are imported, which happens after this is set; the
# last one keeps torch's profiler from telling of its start and end.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "KINETO_LOG_LEVEL": "99"}


def options(description: str, *, rounds: int, quick_rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small models: is everything right?")
    parser.add_argument("--rows", type=re.compile, help="only rows whose name matches")
    parser.add_argument("--threads", type=int, default=2)
    turns = f"turns of each contender; {rounds}, quick {quick_rounds}"
    parser.add_argument("--rounds", type=int, help=turns)
    parser.set_defaults(usual=(rounds, quick_rounds))
    parser.add_argument("--output", type=Path, help="file for the rows; --quick and --rows need it")
    return parser


@contextmanager
def session(threads: int, *, peer: str = "transformers") -> Iterator[Row]:
    """Facts of the machine, in a process set up for measuring: offline, threads, no gradients.

    Raises GateError where the peer that everyone is compared with is not installed.
    """
    import torch

    require(peer)
    os.environ.update(QUIET)
    torch.set_num_threads(threads)
    # The rows say which back end was forced; this would force all of them unseen.
    os.environ.pop("MINIBERT_LINEAR", None)
    known = machine(threads, PACKAGES)
    with tempfile.TemporaryDirectory() as measurements, torch.no_grad():
        # What is measured once and remembered is measured now.
        os.environ["XDG_CACHE_HOME"] = measurements
        yield known


def machine(threads: int, packages: Sequence[str]) -> Row:
    """Facts of the machine; says so when others use it: then the times mean little."""
    known = facts(threads=threads, packages=packages)
    if warning := busy(known):
        print(f"{warning}\n")
    return known


class Kept:
    """Rows on their way to a file: in `.partial.jsonl` beside it until all of them are there."""

    def __init__(self, kind: str, chosen: argparse.Namespace) -> None:
        whole = not chosen.quick and chosen.rows is None
        self.rows: list[Row] = []
        self.rounds: int = chosen.rounds or chosen.usual[chosen.quick]
        self.path: Path | None = chosen.output or (default_output(kind) if whole else None)
        self.partial = self.path and self.path.with_suffix(".partial.jsonl")

    def add(self, row: Row, said: object) -> None:
        """Keep one more row, write what is there, and say it."""
        self.rows.append(row)
        print(said, flush=True)
        if self.partial:
            write_rows(self.rows, self.partial)

    def finish(self) -> list[Row]:
        """All rows, now under their file's own name."""
        if self.path and self.partial:
            write_rows(self.rows, self.partial)
            self.partial.replace(self.path)
            print(f"\n{len(self.rows)} rows in {self.path}")
        return self.rows


def default_output(kind: str) -> Path:
    """benchmarks/results/<kind>-<processor>-<date>.jsonl."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", processor()).lower()).strip("-")
    # Not datetime.UTC: many a GPU image has Python 3.10.
    return RESULTS / f"{kind}-{slug}-{datetime.now(timezone.utc):%Y-%m-%d}.jsonl"  # noqa: UP017
