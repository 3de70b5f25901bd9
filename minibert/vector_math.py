"""Importing this makes torch's first exp, log or square root as exact as all later ones.

On Intel processors torch uses a library for these functions, and the library chooses its code at
the first call of each. When this first call runs in several threads at once, one thread may use
code that is right to only three or four digits, for its part of the numbers. Later calls are right.
Of 60 processes that began with an exp of 1.4 million numbers, 11 were wrong by up to 1.5e-4 (torch
2.13.0; github.com/pytorch/pytorch/issues/188792). Here each function is called once with one
number, which takes only one thread.
"""

import torch

_FUNCTIONS = (torch.exp, torch.log, torch.sqrt, torch.tanh, torch.erf, torch.sin, torch.cos)

with torch.inference_mode():
    for _dtype in (torch.float32, torch.float64):
        _one = torch.ones(1, dtype=_dtype, device="cpu")
        for _function in _FUNCTIONS:
            _function(_one)
