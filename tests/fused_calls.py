"""The Triton kernels asked for drawn calls: at most twice as wrong as torch eager in that dtype.

Both are compared with NumPy float64 of the same rounded inputs, `calls_by_hand.py`. Where eager is
right by luck, some roundings are allowed of the largest sum of absolute terms: FLOOR spacings of
the dtype, and OF_SCORES spacings of float32 for each unit of the largest score, since exp turns the
rounding of a score into a relative error. On a CPU the kernels run in Triton's interpreter.
"""

from random import Random

import numpy as np
import torch
from calls_by_hand import Array, Units, _flat, gradients, truth
from drawn_calls import Drawn, drawn
from torch import Tensor

from minibert.kernels.api import attend

#: More than a tile and no multiple of one; one row; one block of the smallest tiles and a row.
SIZES, GROUPS, DTYPES = (1, 17, 257), (1, 2, 4, 8), (torch.float32, torch.float16)
TIMES_EAGER = 2.0
#: Spacings of the dtype: a sum of hundreds takes some in float32, and is rounded once to float16.
FLOOR = {torch.float32: 8.0, torch.float16: 2.0}
#: A score in base 2 is rounded when it is scaled and when lse is taken off it; lse when it is kept.
OF_SCORES = 4.0
#: Of lse and row_max, kept in float32: a logarithm to base 2 is turned into one to base e.
FINE = 64.0
_EXACT = Units(0.0, 0.0, 0.0, 0.0, 0.0)
Errors = dict[str, tuple[float, float, float]]


def call_of(seed: int, *, sizes: tuple[int, ...] = SIZES) -> Drawn:
    """The call of a seed: over all fields, in float32 or float16."""
    random = Random(seed)
    return drawn(random, random.choice(DTYPES), sizes=sizes, groups=GROUPS, most=2)


def forward_errors(call: Drawn) -> Errors:
    """(Triton's error, eager's, the floor) of z, lse and row_max."""
    right, found = truth(call, _EXACT), {}
    for impl in ("triton", "eager"):
        vectors = (call.query, call.key, call.value)
        given = attend(*vectors, impl=impl, want=("row_max",), **call.options)
        assert given.statistics is not None
        found[impl] = {"z": given.z, "lse": given.lse, "row_max": given.statistics.row_max}
    expected = {"z": right.z, "lse": right.lse, "row_max": right.row_max}
    sizes = {name: max(1.0, _most(one)) for name, one in expected.items()}
    sizes["z"] = max(1.0, float(call.value.abs().max())) if call.value.numel() else 1.0
    floors = {"z": _floor(call), "lse": FINE * 2.0**-23, "row_max": FINE * 2.0**-23}
    return _compared(expected, found["triton"], found["eager"], floors, sizes)


def backward_errors(call: Drawn, seed: int) -> Errors:
    """The same of the gradients of query, key and value."""
    random = torch.Generator().manual_seed(seed)
    Q, heads = call.query.shape[2], call.query.shape[1]
    shape = (call.query.shape[0], heads, Q, call.value.shape[3])
    z_gradient = torch.randn(shape, generator=random).to(call.query.dtype)
    vectors = {name: getattr(call, name) for name in ("query", "key", "value")}
    found = {}
    for impl in ("triton", "eager"):
        leaves = {name: one.detach().clone().requires_grad_() for name, one in vectors.items()}
        attend(**leaves, impl=impl, **call.options).z.backward(z_gradient)
        found[impl] = {
            n: torch.zeros_like(one) if one.grad is None else one.grad for n, one in leaves.items()
        }
    doubles = Drawn(*(one.double() for one in vectors.values()), call.options)
    expected = gradients(doubles, z_gradient.double().numpy())
    floors = dict.fromkeys(expected, _floor(call))
    sizes = _terms(doubles, z_gradient.double().numpy())
    return _compared(expected, found["triton"], found["eager"], floors, sizes)


def _floor(call: Drawn) -> float:
    scores = float(np.abs(_finite(truth(call, _EXACT).row_max)).max(initial=0.0))
    rounded = FLOOR[call.query.dtype] * torch.finfo(call.query.dtype).eps
    return rounded + OF_SCORES * 2.0**-23 * scores


def _terms(call: Drawn, z_gradient: Array) -> dict[str, float]:
    """The largest sum of the absolute terms of each gradient: `gradients` without a sign."""
    probs = truth(call, _EXACT).probs
    whole = Drawn(*(one.abs() for one in (call.query, call.key, call.value)), call.options)
    query, (key, value) = whole.query.numpy(), _flat(whole)
    group, scale = (
        query.shape[1] // key.shape[1],
        abs(call.options.get("scale", key.shape[3] ** -0.5)),
    )
    keys, values = (np.repeat(one, group, axis=1) for one in (key, value))
    of_probs = np.einsum("bhqd,bhkd->bhqk", np.abs(z_gradient), values)
    of_scores = probs * (of_probs + (probs * of_probs).sum(-1, keepdims=True))
    of_query = scale * np.einsum("bhqk,bhkd->bhqd", of_scores, keys)
    of_key = group * scale * np.einsum("bhqk,bhqd->bhkd", of_scores, query)
    of_value = group * np.einsum("bhqk,bhqd->bhkd", probs, np.abs(z_gradient))
    return {"query": _most(of_query), "key": _most(of_key), "value": _most(of_value)}


def _finite(numbers: Array) -> Array:
    return np.where(np.isfinite(numbers), numbers, 0.0)


def _most(numbers: Array) -> float:
    return float(np.abs(_finite(numbers)).max(initial=0.0))


def _compared(
    expected: dict[str, Array],
    ours: dict[str, Tensor],
    eager: dict[str, Tensor],
    floors: dict[str, float],
    sizes: dict[str, float],
) -> Errors:
    said = {}
    for name, right in expected.items():
        off = [_largest(one[name].detach().double().numpy(), right) for one in (ours, eager)]
        said[name] = (off[0], off[1], floors[name] * sizes[name])
    return said


def _largest(found: Array, right: Array) -> float:
    """The largest error; infinite where a number is none, or -inf and should not be."""
    same = np.isneginf(found) & np.isneginf(right)
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(found - right))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))


def wrong(errors: Errors) -> list[str]:
    """What errs more than it may."""
    return [
        f"{name} errs {ours:.1e}, eager {eager:.1e}, the floor is {floor:.1e}"
        for name, (ours, eager, floor) in errors.items()
        if not ours <= max(TIMES_EAGER * eager, floor)
    ]
