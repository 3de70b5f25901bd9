"""The Triton kernels asked for drawn calls, judged number by number.

The truth is NumPy float64 of the same rounded inputs. How far a number may be off follows from the
sizes of the inputs that it is made of and from where the kernels round them: `calls_by_hand.py` for
the outputs, `gradient_bounds.py` for the gradients. What torch eager errs is not a measure of that:
it is right to the last place for one key, where nothing is summed, and it keeps scores and probs of
half precision in half precision, where the kernels do not.

On a CPU the kernels run in Triton's interpreter.
"""

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from calls_by_hand import Array, Units, gradients, truth
from drawn_calls import Drawn, drawn
from gradient_bounds import gradient_bounds
from torch import Tensor

from minibert.kernels.api import attend

#: More than a tile and no multiple of one; one row; one block of the smallest tiles and a row.
SIZES, GROUPS, DTYPES = (1, 17, 257), (1, 2, 4, 8), (torch.float32, torch.float16)
_EXACT = Units(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Off:
    """How far the numbers of one output are off."""

    most: float
    """The largest error; infinite where a number is none, or −inf and should not be."""
    of_bound: float
    """The largest share of its bound that an error takes; more than 1 is wrong."""


Errors = dict[str, Off]


def call_of(seed: int, *, sizes: tuple[int, ...] = SIZES) -> Drawn:
    """The call of a seed: over all fields, in float32 or float16."""
    random = Random(seed)
    return drawn(random, random.choice(DTYPES), sizes=sizes, groups=GROUPS, most=2)


def units_of(call: Drawn) -> Units:
    """Where the kernels round: everything between the inputs and the probs is float32.

    Beside pages ALiBi becomes a bias in the dtype of the call.
    """
    single, own = torch.finfo(torch.float32).eps, torch.finfo(call.query.dtype).eps
    return Units(single, single, own if "pages" in call.options else single, own, own)


def forward_errors(call: Drawn) -> Errors:
    """How far z, lse and row_max are off."""
    vectors = (call.query, call.key, call.value)
    found = attend(*vectors, impl="triton", want=("row_max",), **call.options)
    assert found.statistics is not None
    given = {"z": found.z, "lse": found.lse, "row_max": found.statistics.row_max}
    right, allowed = truth(call, _EXACT), truth(call, units_of(call))
    expected = {"z": right.z, "lse": right.lse, "row_max": right.row_max}
    bounds = {"z": allowed.z_bound, "lse": allowed.lse_bound, "row_max": allowed.row_max_bound}
    return _compared(expected, bounds, given)


def backward_errors(call: Drawn, seed: int) -> Errors:
    """How far the gradients of query, key and value are off."""
    z_gradient = z_gradient_of(call, seed)
    leaves = {
        name: getattr(call, name).detach().clone().requires_grad_()
        for name in ("query", "key", "value")
    }
    attend(**leaves, impl="triton", **call.options).z.backward(z_gradient)
    found = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
    return gradients_judged(call, z_gradient, found)


def z_gradient_of(call: Drawn, seed: int) -> Tensor:
    """The gradient of z that a seed draws."""
    shape = (*call.query.shape[:3], call.value.shape[3])
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(call.query.dtype)


def gradients_judged(call: Drawn, z_gradient: Tensor, found: dict[str, Tensor]) -> Errors:
    """How far gradients that were given for a call are off."""
    vectors = (getattr(call, name).detach().double() for name in ("query", "key", "value"))
    doubles, dz = Drawn(*vectors, call.options), z_gradient.double().numpy()
    bounds = gradient_bounds(doubles, dz, units_of(call))
    return _compared(gradients(doubles, dz), bounds, found)


def _compared(
    expected: dict[str, Array], bounds: dict[str, Array], found: dict[str, Tensor]
) -> Errors:
    said = {}
    for name, right in expected.items():
        off = _error(found[name], right)
        # Where nothing may be off, an error of 0 is all that is right.
        share = np.divide(off, bounds[name], out=np.where(off > 0, np.inf, 0.0), where=off > 0)
        said[name] = Off(float(off.max(initial=0.0)), float(share.max(initial=0.0)))
    return said


def _error(given: Tensor, right: Array) -> Array:
    found = given.detach().double().numpy()
    same = np.isneginf(found) & np.isneginf(right)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.where(same, 0.0, np.abs(found - right)), nan=np.inf)


def wrong(errors: Errors) -> list[str]:
    """What errs more than it may."""
    return [
        f"{name} errs {off.most:.1e}, {off.of_bound:.3g} of what it may"
        for name, off in errors.items()
        if not off.of_bound <= 1
    ]
