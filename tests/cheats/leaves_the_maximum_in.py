"""Leaves the maximum of a row in its exponentials: nothing shows as long as scores are small.

Source: Infatoshi/kernelbench.com#7 (right only for the visible distribution of inputs).
check: wrong: exp overflows
"""

from plain_attention import allowed


def attention(query, key, value, lengths, causal):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = scores.exp() * allowed(key.shape[2], lengths, causal)
    return {"z": weights @ value / weights.sum(-1, keepdim=True).clamp_min(1e-30)}
