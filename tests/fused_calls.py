"""The Triton kernels asked for drawn calls, judged number by number.

The truth is NumPy float64 of the same rounded inputs. How far a number may be off follows from the
sizes of the inputs that it is made of and from where the kernels round them: `calls_by_hand.py` for
the outputs, `gradient_bounds.py` for the gradients. What torch eager errs is not a measure of that:
it is right to the last place for one key, where nothing is summed, and it keeps scores and probs of
half precision in half precision, where the kernels do not.

On a CPU the kernels run in Triton's interpreter.
"""

from random import Random

import numpy as np
import torch
from calls_by_hand import Units, complaints, gradients, truth
from drawn_calls import Drawn, drawn
from gradient_bounds import gradient_bounds
from torch import Tensor

from minibert.kernels.api import attend

GROUPS, DTYPES = (1, 2, 4, 8), (torch.float32, torch.float16)


def call_of(seed: int, *, sizes: tuple[int, ...]) -> Drawn:
    """The call of a seed: over all fields, in float32 or float16."""
    random = Random(seed)
    return drawn(random, random.choice(DTYPES), sizes=sizes, groups=GROUPS, most=2)


def units_of(call: Drawn) -> Units:
    """Where the kernels round: everything between the inputs and the probs is float32.

    Beside pages ALiBi becomes a bias in the dtype of the call.
    """
    single, own = torch.finfo(torch.float32).eps, torch.finfo(call.query.dtype).eps
    return Units(single, single, own if "pages" in call.options else single, own, own)


def z_gradient_of(call: Drawn, seed: int) -> Tensor:
    """The gradient of z that a seed draws."""
    shape = (*call.query.shape[:3], call.value.shape[3])
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(call.query.dtype)


def wrong(call: Drawn, seed: int) -> list[str]:
    """Which of z, lse, row_max and the gradients of query, key and value are further off than they
    may be."""
    leaves = {
        name: getattr(call, name).detach().clone().requires_grad_()
        for name in ("query", "key", "value")
    }
    found = attend(**leaves, impl="triton", **call.options)
    z_gradient = z_gradient_of(call, seed)
    found.z.backward(z_gradient)
    with torch.no_grad():
        found = attend(**leaves, impl="triton", want=("row_max",), **call.options)
    said = complaints(call, found, truth(call, units_of(call)))
    doubles = Drawn(*(one.detach().double() for one in leaves.values()), call.options)
    dz = z_gradient.double().numpy()
    bounds = gradient_bounds(doubles, dz, units_of(call))
    for name, right in gradients(doubles, dz).items():
        given = leaves[name].grad
        ours = np.zeros(right.shape) if given is None else given.double().numpy()
        off = np.nan_to_num(np.abs(ours - right), nan=np.inf)
        if not (off <= bounds[name]).all():
            said.append(f"the gradient of {name} is off by {off.max():.1e}")
    return said
