"""`python -m tests.siege --minutes 60`: hostile and legal input until the time is over.

Prints the cases by class and every failure once, by kind and place, with the seed that makes it
again (`--seed FIRST --only SEED --class CLASS`; the material is of the first seed). Without
`--seed` the seeds are fresh.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom

# First: what the Hub's client and Triton read when they are imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
from tests.siege import hubs  # isort: skip

import torch

# Before the first fork: what is imported once is not imported in every child.
import transformers

from tests.siege import (
    checked,
    checkpoints,
    fork,
    kernels,
    known,
    known_files,
    material,
    texts,
    traces,
    vocabularies,
    writes,
)
from tests.siege.judge import judge

os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Cases of one process, which takes longer to copy than most cases take.
BATCH = 25
# How a case is made, what is done with it, and how often it is drawn.
CLASSES: dict[str, tuple[fork.Build, fork.Use, float]] = {
    "damaged checkpoint": (checkpoints.damaged, checkpoints.use, 6),
    "legal checkpoint": (checkpoints.varied, checkpoints.use_legal, 6),
    "trace": (traces.build, traces.use, 6),
    "vocabulary": (vocabularies.build, vocabularies.use, 5),
    "text": (texts.build, texts.use, 4),
    "kill": (writes.build, writes.use, 3),
    "hub": (hubs.build, hubs.use, 2),
    "attention": (kernels.build, kernels.use, 4),
    # Seldom: a process that imports torch takes seconds.
    "checked": (checked.build, checked.use, 0.2),
    # By name alone: Triton's interpreter takes seconds for a call.
    "fused": (kernels.build, kernels.use_fused, 0),
}


class Siege:
    """The counts by class, and the failures by kind and place."""

    def __init__(self, root: Path, seed: int, verbose: bool) -> None:
        self.root, self.seed, self.verbose = root, seed, verbose
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def known(self) -> None:
        """Every case found so far."""
        first = material.folders[0]
        cases = {name: (known.build(name, first), checkpoints.use, 0) for name in known.KNOWN}
        cases |= {name: (*case, 0) for name, case in known_files.CASES.items()}
        found = fork.run(list(cases.values()), self.root)
        for name, (result, _, seconds) in zip(cases, found, strict=True):
            if self.verbose:
                print(f"{seconds:5.1f} s  {name}: {result}", file=sys.stderr, flush=True)
            if name in known.LEGAL and result[0] == "refused":
                result = ("failure", f"{name} is refused", result[2])
            self._count("known", result, name)

    def random(self, seeds: Sequence[int], kind: str | None) -> None:
        """A case of each seed, of this class or of the one that the seed draws."""
        weights = [weight for _, _, weight in CLASSES.values()]
        kinds = [kind or Random(one).choices(list(CLASSES), weights)[0] for one in seeds]
        cases = [(*CLASSES[one][:2], seed) for one, seed in zip(kinds, seeds, strict=True)]
        found = fork.run(cases, self.root)
        for one, seed, (result, done, seconds) in zip(kinds, seeds, found, strict=True):
            if self.verbose:
                print(f"{seconds:5.2f} s  {one} {seed} {done}: {result}", file=sys.stderr)
            again = f"--seed {self.seed} --class '{one}' --only {seed}"
            self._count(one, result, f"{again} ({done}, {seconds:.1f} s)")

    def _count(self, kind: str, result: fork.Result, about: str) -> None:
        self.counts[f"{kind}: {result[0]}"] += 1
        if result[0] == "failure" and f"{kind}: {result[1]}" not in self.failures:
            self.failures[f"{kind}: {result[1]}"] = f"{about}: {result[2]}"
            print(f"  {kind}: {result[1]}\n      {about}: {result[2]}", file=sys.stderr, flush=True)

    def report(self) -> None:
        """Print the table."""
        for kind, total in sorted(self.counts.items()):
            print(f"{total:8d} {kind}")
        print(f"{sum(self.counts.values()):8d} cases; seeds from {self.seed}")
        print(f"{len(self.failures):8d} kinds of failure")
        for kind, about in self.failures.items():
            print(f"  {kind}\n      {about}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.siege", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, metavar="SEED")
    parser.add_argument("--class", dest="kind", choices=CLASSES, default=None)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="random cases at most")
    parser.add_argument("--verbose", action="store_true", help="each case as it is done")
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    fresh = SystemRandom().randrange(2**40) if chosen.seed is None else chosen.seed
    seed = fresh if chosen.only is None else chosen.only
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name)
        (root / "honest").mkdir()
        material.make(root / "honest", fresh)
        for folder in material.folders:
            # What is imported and measured once here is not done again in every child.
            result = judge(folder, checkpoints.use)
            assert result[0] == "equal", f"{folder.name}: {result}"
        # A collection in a child would write to, and so copy, every page that holds an object.
        gc.freeze()
        siege = Siege(root, fresh, chosen.verbose)
        if chosen.only is None and chosen.kind is None:
            siege.known()
        left = chosen.cases if chosen.only is None else 1
        for start in range(seed, seed + left, BATCH):
            if time.monotonic() > end:
                break
            siege.random(range(start, min(start + BATCH, seed + left)), chosen.kind)
    siege.report()
    return bool(siege.failures)


sys.exit(main())
