"""Class "fused": calls of the Triton kernels in their interpreter, forward and backward.

Oracle: NumPy float64, and a bound of rounding for each number (`gradient_bounds.py`).
"""

from pathlib import Path
from random import Random

from fused_calls import backward_errors, call_of, forward_errors, wrong

import minibert
from tests.siege.judge import DiffersError, tolerate


def build(folder: Path, random: Random) -> str:
    """The seed of the call, in a file."""
    folder.mkdir()
    (folder / "seed").write_text(str(random.randrange(2**40)))
    return "a call"


def use(folder: Path) -> None:
    """Asks both; raises DiffersError where Triton errs more than it may."""
    seed = int((folder / "seed").read_text())
    call = call_of(seed)
    for name, ask in (
        ("forward", lambda: forward_errors(call)),
        ("backward", lambda: backward_errors(call, seed)),
    ):
        try:
            said = wrong(ask())
        except minibert.MinibertError as error:
            tolerate(error)
            continue
        if said:
            raise DiffersError(f"{name} {seed}: {said} in {call}")
