"""Returns NaN, which no comparison calls larger than a tolerance.

Source: gpu-mode/pygpubench#7 (NaN matches everything).
check: wrong: NaN in
"""

import math

import torch


def attention(query, key, value, lengths, causal):
    return {"z": torch.full_like(query, math.nan)}
