"""What the benchmarks of whole models share: options, a quiet process, rows kept as they come.

Place: benchmarks.models, benchmarks.instruments and benchmarks.generation are run by this.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import harness
from benchmarks.harness import Row

__all__ = ["Kept", "parse", "session"]

# Read when transformers and huggingface_hub are imported, which happens after this is set; the
# last one keeps torch's profiler from telling of its start and end.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "KINETO_LOG_LEVEL": "99"}


def parse(
    arguments: Sequence[str] | None, description: str, *, rounds: int, quick_rounds: int
) -> argparse.Namespace:
    """The options every such benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=f"small models, {quick_rounds} rounds")
    parser.add_argument("--rows", type=re.compile, help="only rows whose name matches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--rounds", type=int, help=f"turns of each contender; {rounds}, quick {quick_rounds}"
    )
    parser.add_argument("--output", type=Path, help="file for the rows; --quick and --rows need it")
    chosen = parser.parse_args(arguments)
    chosen.rounds = chosen.rounds or (quick_rounds if chosen.quick else rounds)
    return chosen


@contextmanager
def session(threads: int) -> Iterator[Row]:
    """Facts of the machine, in a process set up for measuring: offline, threads, no gradients.

    Raises SystemExit where transformers, which everyone is compared with, is not installed.
    """
    if harness.version("transformers") is None:
        raise SystemExit("this benchmark compares with transformers, which is not installed")
    os.environ.update(QUIET)
    torch.set_num_threads(threads)
    # The rows say which back end was forced; this would force all of them unseen.
    os.environ.pop("MINIBERT_LINEAR", None)
    facts = harness.machine(threads)
    harness.warn_when_busy(facts)
    with tempfile.TemporaryDirectory() as measurements, torch.no_grad():
        # minibert measures its back ends now, whatever an earlier, busier moment said.
        os.environ["XDG_CACHE_HOME"] = measurements
        yield facts


class Kept:
    """Rows on their way to a file: in `.partial.jsonl` beside it until all of them are there."""

    def __init__(self, kind: str, chosen: argparse.Namespace) -> None:
        whole = not chosen.quick and chosen.rows is None
        self.rows: list[Row] = []
        self.path = chosen.output or (harness.default_output(kind) if whole else None)
        self.partial = self.path and self.path.with_suffix(".partial.jsonl")

    def save(self) -> None:
        """Write what is there."""
        if self.partial:
            harness.write(self.rows, self.partial)

    def finish(self) -> list[Row]:
        """All rows, now under their file's own name."""
        self.save()
        if self.path and self.partial:
            self.partial.replace(self.path)
            print(f"\n{len(self.rows)} rows in {self.path}")
        return self.rows
