# ruff: noqa: N803 - the capital is a size the compiler knows, as in the kernels.
"""A softmax of rows that calls jitted functions: its own, and those of Triton."""

import triton
import triton.language as tl


@triton.jit
def shares(row):
    """The softmax of a row."""
    weights = tl.exp(row - tl.max(row, 0))
    return weights / tl.sum(weights, 0)


@triton.jit
def softmax(rows, out, N: tl.constexpr):
    """One program for a row."""
    place = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + place, shares(tl.load(rows + place)))
