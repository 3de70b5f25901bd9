"""`python -m tests.siege --minutes 60`: hostile checkpoints until the time is over.

Prints the cases by class and every failure once, by kind and place, with the seed that makes it
again (`--only SEED`). Without `--seed` the seeds are fresh.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

import torch

# Before the first fork: what is imported once is not imported in every child.
import transformers

from tests.siege import fork, known, material
from tests.siege.judge import judge
from tests.siege.mutations import mutate

os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.siege", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, metavar="SEED")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="random cases at most")
    parser.add_argument("--verbose", action="store_true", help="each known case as it is done")
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "honest").mkdir()
        folders = material.make(root / "honest")
        for folder in folders:
            # What is imported and measured once here is not done again in every child.
            result = judge(folder)
            assert result[0] == "equal", f"{folder.name}: {result}"

        def count(kind: str, result: fork.Result, about: str) -> None:
            counts[f"{kind} {result[0]}"] += 1
            if result[0] == "failure":
                failures.setdefault(result[1], f"{about}: {result[2]}")

        if chosen.only is None:
            for case in known.KNOWN:
                result, _, seconds = fork.run(known.build(case, folders[0]), 0, root)
                if chosen.verbose:
                    print(f"{seconds:5.1f} s  {case}: {result}", file=sys.stderr, flush=True)
                if case in known.LEGAL and result[0] == "refused":
                    result = ("failure", f"{case} is refused", result[2])
                count("known", result, case)
        seed = SystemRandom().randrange(2**40) if chosen.seed is None else chosen.seed
        seed = seed if chosen.only is None else chosen.only
        for number in range(chosen.cases if chosen.only is None else 1):
            if time.monotonic() > end:
                break
            result, done, seconds = fork.run(_drawn(folders), seed + number, root)
            count("random", result, f"--only {seed + number} ({done}, {seconds:.1f} s)")
    for kind, total in sorted(counts.items()):
        print(f"{total:8d} {kind}")
    print(f"{len(failures):8d} kinds of failure; seeds from {seed}")
    for kind, about in failures.items():
        print(f"  {kind}\n      {about}")
    return bool(failures)


def _drawn(folders: list[Path]):
    def make(folder: Path, random: Random) -> str:
        base = random.choice(folders)
        shutil.copytree(base, folder)
        done = [mutate(folder, random) for _ in range(random.choice((1, 1, 1, 2)))]
        return f"{base.name}: {', '.join(done)}"

    return make


sys.exit(main())
