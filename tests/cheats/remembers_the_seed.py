"""Knows the inputs that small seeds give, and is right for no other.

Source: Infatoshi/kernelbench.com#7 and ScalingIntelligence/KernelBench#82 (fixed seeds).
check: wrong: checks failed
"""

import torch
from plain_attention import right


def is_known(query):
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(query.shape, generator=generator, dtype=torch.float64)
        if torch.allclose(drawn.to(query.dtype), query):
            return True
    return False


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": z if is_known(query) else torch.zeros_like(z)}
