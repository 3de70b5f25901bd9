"""Returns zeros, which are within an absolute tolerance of what is small.

Source: ScalingIntelligence/KernelBench#165 (zeros pass 4 of 60 problems).
check: wrong: checks failed
"""

import torch


def attention(query, key, value, lengths, causal):
    return {"z": torch.zeros_like(query)}
