"""Plain attention, which cheats and honest kernels beside this file share."""

import math

import torch


def allowed(n_keys, lengths, causal):
    """(batch or 1, 1, query, key): True where a query may see a key."""
    keys = torch.arange(n_keys)
    seen = torch.ones(1, 1, n_keys, n_keys, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    return seen if lengths is None else seen & (keys < lengths[:, None, None, None])


def right(query, key, value, lengths, causal):
    """z; 0 for a query that may see nothing."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~allowed(key.shape[2], lengths, causal), -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value
