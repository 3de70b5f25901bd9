"""Right in the check and in every 20th timed call: the only one of a turn that used to be checked.

Source: gpu-mode/reference-kernels#104 (14 of 15 timed calls did nothing).
bench: no time: right when checked, but while it was timed: wrong: error
"""

import torch
from plain_attention import right

calls = []


def attention(query, key, value, lengths, causal):
    if query.shape[0] == 1:
        calls.append(query.shape)
        # The first three are those of the gate and of warming up.
        if len(calls) > 3 and len(calls) % 20 != 3:
            return {"z": torch.zeros_like(query)}
    return {"z": right(query, key, value, lengths, causal)}
