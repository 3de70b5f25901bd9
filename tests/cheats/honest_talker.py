"""Prints a lot, and seeds torch's random numbers: neither matters.

check: right
"""

import torch
from plain_attention import right


def attention(query, key, value, lengths, causal):
    torch.manual_seed(0)
    print("x" * 1000, "\x1b[2J", *range(1000), sep="\n")
    return {"z": right(query, key, value, lengths, causal)}
