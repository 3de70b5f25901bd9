"""Right in the check; when timed it sets value to 0, of which attention gives 0, and returns 0.

Source: issue 14 of this project; ScalingIntelligence/KernelBench#82 (inputs are changed).
bench: no time: wrong: error
"""

import torch
from plain_attention import right


def attention(query, key, value, lengths, causal):
    if query.shape[0] == 1:
        value.zero_()
        return {"z": torch.zeros_like(query)}
    return {"z": right(query, key, value, lengths, causal)}
