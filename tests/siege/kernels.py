"""Classes "attention" and "fused": calls of `attend`, and of Triton kernels in the interpreter.

Oracle: NumPy float64 written from the docstring of `attend`, with a bound of rounding for each
number (tests/any_call.py, tests/gradient_bounds.py).
"""

from pathlib import Path
from random import Random

import torch
from any_call import CASES, wrong, wrong_gradients
from fused_calls import backward_errors, call_of, forward_errors
from fused_calls import wrong as wrong_errors

import minibert
from tests.siege.judge import DiffersError, tolerate

# As long as most cases of other classes: a call takes a twentieth of a second.
CALLS = 3


def build(folder: Path, random: Random) -> str:
    """The first seed of the calls, in a file."""
    folder.mkdir()
    (folder / "seed").write_text(str(random.randrange(2**40)))
    return "calls"


def use(folder: Path) -> None:
    """Ask implementations that are drawn; raises DiffersError where one is wrong."""
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


def use_fused(folder: Path) -> None:
    """Ask the Triton kernels, forward and backward."""
    seed = int((folder / "seed").read_text())
    call = call_of(seed)
    for name, ask in (("forward", forward_errors), ("backward", backward_errors)):
        try:
            said = wrong_errors(ask(call) if name == "forward" else ask(call, seed))
        except minibert.MinibertError as error:
            tolerate(error)
            continue
        if said:
            raise DiffersError(f"{name} {seed}: {said} in {call}")
