"""The Triton kernels asked for drawn calls, judged number by number.

The truth is NumPy float64 of the same rounded inputs. How far a number may be off follows from the
sizes of the inputs that it is made of and from where the kernels round them: `calls_by_hand.py` for
the outputs, `gradient_bounds.py` for the gradients. What torch eager errs is no measure of that: it
is right to the last place for one key, where nothing is summed, and it keeps scores and probs of
half precision in half precision, where the kernels do not. So it only stands beside: `Errors` says
of each output whether it errs at most twice as much as eager's.

An earlier version allowed twice eager's error or a floor of 8 spacings of the dtype (2 in half
precision) of the largest sum of terms, and 4 of float32 a unit of the largest score. It had no
derivation, and was wider than the bounds here for most numbers of a call: they are each as small as
their own terms. Of 424 drawn calls none is beyond these bounds: the largest share of one is 0.15 in
float32 and 0.91 in half precision, where a single rounding of P fills it. In 224 of them every
gradient errs at most twice as much as eager's, in 377 every output.

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
TIMES_EAGER = 2.0
_EXACT = Units(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Off:
    """How far the numbers of one output are off."""

    ours: float
    eager: float
    """The largest error of each; infinite where a number is none, or −inf and should not be."""
    of_bound: float
    """The largest share of its bound that an error of ours takes; more than 1 is wrong."""

    @property
    def within_eager(self) -> bool:
        """Whether ours errs at most TIMES_EAGER times as much as eager's."""
        return self.ours <= TIMES_EAGER * self.eager


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
    found = []
    for impl in ("triton", "eager"):
        vectors = (call.query, call.key, call.value)
        given = attend(*vectors, impl=impl, want=("row_max",), **call.options)
        assert given.statistics is not None
        found.append({"z": given.z, "lse": given.lse, "row_max": given.statistics.row_max})
    return outputs_judged(call, *found)


def backward_errors(call: Drawn, seed: int) -> Errors:
    """How far the gradients of query, key and value are off."""
    z_gradient, found = z_gradient_of(call, seed), []
    for impl in ("triton", "eager"):
        leaves = {
            name: getattr(call, name).detach().clone().requires_grad_()
            for name in ("query", "key", "value")
        }
        attend(**leaves, impl=impl, **call.options).z.backward(z_gradient)
        found.append(
            {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
        )
    return gradients_judged(call, z_gradient, *found)


def z_gradient_of(call: Drawn, seed: int) -> Tensor:
    """The gradient of z that a seed draws."""
    shape = (*call.query.shape[:3], call.value.shape[3])
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(call.query.dtype)


def outputs_judged(call: Drawn, ours: dict[str, Tensor], eager: dict[str, Tensor]) -> Errors:
    """How far outputs that were given for a call are off."""
    right, allowed = truth(call, _EXACT), truth(call, units_of(call))
    expected = {"z": right.z, "lse": right.lse, "row_max": right.row_max}
    bounds = {"z": allowed.z_bound, "lse": allowed.lse_bound, "row_max": allowed.row_max_bound}
    return _compared(expected, bounds, ours, eager)


def gradients_judged(
    call: Drawn, z_gradient: Tensor, ours: dict[str, Tensor], eager: dict[str, Tensor]
) -> Errors:
    """The same of gradients."""
    vectors = (getattr(call, name).detach().double() for name in ("query", "key", "value"))
    doubles, dz = Drawn(*vectors, call.options), z_gradient.double().numpy()
    bounds = gradient_bounds(doubles, dz, units_of(call))
    return _compared(gradients(doubles, dz), bounds, ours, eager)


def _compared(
    expected: dict[str, Array],
    bounds: dict[str, Array],
    ours: dict[str, Tensor],
    eager: dict[str, Tensor],
) -> Errors:
    said = {}
    for name, right in expected.items():
        off, of_eager = (_error(one[name], right) for one in (ours, eager))
        # Where nothing may be off, an error of 0 is all that is right.
        share = np.divide(off, bounds[name], out=np.where(off > 0, np.inf, 0.0), where=off > 0)
        said[name] = Off(*(float(one.max(initial=0.0)) for one in (off, of_eager, share)))
    return said


def _error(given: Tensor, right: Array) -> Array:
    found = given.detach().double().numpy()
    same = np.isneginf(found) & np.isneginf(right)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.where(same, 0.0, np.abs(found - right)), nan=np.inf)


def wrong(errors: Errors) -> list[str]:
    """What errs more than it may."""
    return [
        f"{name} errs {off.ours:.1e}, {off.of_bound:.3g} of what it may; eager {off.eager:.1e}"
        for name, off in errors.items()
        if not off.of_bound <= 1
    ]
