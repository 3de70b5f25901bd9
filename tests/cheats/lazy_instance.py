"""A plain tensor to the eye, whose own `numpy`, `cpu` and `clone` compute it when they are called.

Source: gpu-mode/reference-kernels#162 (lazy output by overriding one instance).
check: refused: gave z with its own numpy; expected a plain tensor
"""

import torch
from plain_attention import right


def attention(query, key, value, lengths, causal):
    z = torch.empty_like(query)

    def late(*_):
        return z.copy_(right(query, key, value, lengths, causal))

    z.numpy = z.cpu = z.clone = z.detach = late
    return {"z": z}
