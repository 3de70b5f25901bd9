"""Rung 1: attention as the formula says it, in NumPy. All scores of a head are held at once.

z = softmax(query·keyᵀ / sqrt(d_head))·value

minibert check docs/lessons/flash/rung1_naive.py:attention
"""

import numpy as np
import torch

NOTHING = -1e30


def one_head(query, key, value, allowed):
    """z of one head, (query, d_head); allowed is (query, key), True where a query may look."""
    scores = query @ key.T / query.shape[1] ** 0.5
    scores = np.where(allowed, scores, NOTHING)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True)) * allowed
    total = weights.sum(axis=1, keepdims=True)
    # A row without an allowed key has the total 0, and z = 0.
    return weights @ value / np.maximum(total, 1e-30)


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: head by head, in float32."""
    B, H, N, _ = query.shape
    z = torch.empty_like(query)
    places = np.arange(N)
    for b in range(B):
        n_real = N if lengths is None else int(lengths[b])
        last = places[:, None] if causal else N
        allowed = (places < n_real) & (places <= last) & np.ones((N, 1), dtype=bool)
        for h in range(H):
            head = [one[b, h].float().numpy() for one in (query, key, value)]
            z[b, h] = torch.from_numpy(one_head(*head, allowed))
    return {"z": z}
