"""Returns memory that it has not written, which may hold the truth of the call before.

Source: ScalingIntelligence/KernelBench#82 (memory of the reference's output is reused).
check: wrong: memory that was never written
"""

import torch


def attention(query, key, value, lengths, causal):
    return {"z": torch.empty_like(query)}
