"""Class "attention": calls of `attend`, drawn over all its fields.

Oracle: NumPy float64 written from its docstring, with a bound of rounding for each number.
"""

from pathlib import Path
from random import Random

import torch
from any_call import CASES, wrong, wrong_gradients

import minibert
from tests.siege.judge import DiffersError, tolerate

# As long as most cases of other classes: a call takes a twentieth of a second.
CALLS = 3


def build(folder: Path, random: Random) -> str:
    """The first seed of the calls, in a file."""
    folder.mkdir()
    (folder / "seed").write_text(str(random.randrange(2**40)))
    return f"{CALLS} calls"


def use(folder: Path) -> None:
    """Asks each implementation; raises DiffersError where one is wrong."""
    first = int((folder / "seed").read_text())
    cases = Random(first).choices(CASES, k=CALLS)
    for seed, (impl, dtype) in enumerate(cases, start=first):
        try:
            said = wrong(impl, dtype, seed)
            if impl == "eager" and dtype == torch.float64:
                said += wrong_gradients(impl, seed)
        except minibert.MinibertError as error:
            tolerate(error)
            continue
        if said:
            raise DiffersError(f"{impl} {dtype} {seed}: {said}")
