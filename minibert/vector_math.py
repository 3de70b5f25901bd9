"""Importing this makes torch's first exp, log or square root as exact as all later ones.

Place: imported by `axes.py`, so by everything that computes.

On Intel processors torch hands these functions to a library that chooses its code at the first
call of each. When that call runs in several threads at once, one of them may take code that is
right to three or four digits only, for its part of the numbers and this once: of 60 processes that
began with an exp of 1.4 million numbers 11 were wrong by up to 1.5e-4 (torch 2.13.0;
github.com/pytorch/pytorch/issues/188792). One number is computed by one thread.
"""

import torch

__all__: list[str] = []

_FUNCTIONS = (
    torch.exp,
    torch.log,
    torch.sqrt,
    torch.tanh,
    torch.erf,
    torch.sin,
    torch.cos,
)

with torch.inference_mode():
    for _dtype in (torch.float32, torch.float64):
        _one = torch.ones(1, dtype=_dtype, device="cpu")
        for _function in _FUNCTIONS:
            _function(_one)
