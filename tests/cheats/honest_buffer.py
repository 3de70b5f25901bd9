"""Writes each result into the same memory, as a kernel inside a CUDA graph does.

check: right
bench: right
"""

import torch
from plain_attention import right

buffers = {}


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": buffers.setdefault((z.shape, z.dtype), torch.empty_like(z)).copy_(z)}
