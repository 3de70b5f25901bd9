"""Rung 2: the online softmax, in NumPy. One key after another, and no row of scores is held.

For each query m is the largest score so far, l = sum exp(s − m), and zl = sum exp(s − m)·value.
When m moves to m', both are multiplied by exp(m − m') (Milakov & Gimelshein 2018).

minibert check docs/lessons/flash/rung2_online.py:attention
"""

import numpy as np
import torch

NOTHING = -1e30


def one_head(query, key, value, allowed):
    """z, (query, d_head), and lse, (query), of one head."""
    N, D = query.shape
    largest, total = np.full(N, NOTHING, np.float32), np.zeros(N, np.float32)
    z = np.zeros_like(query)
    for j in range(len(key)):
        scores = np.where(allowed[:, j], query @ key[j] / D**0.5, NOTHING)
        higher = np.maximum(largest, scores)
        shrink = np.exp(largest - higher)
        weights = np.exp(scores - higher) * allowed[:, j]
        total = total * shrink + weights
        z *= shrink[:, None]
        z += np.outer(weights, value[j])
        largest = higher
    z /= np.maximum(total, 1e-30)[:, None]
    with np.errstate(divide="ignore"):
        return z, largest + np.log(total)


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: head by head, in float32."""
    B, H, N, _ = query.shape
    z, lse = torch.empty_like(query), torch.empty(B, H, N)
    places = np.arange(N)
    for b in range(B):
        n_real = N if lengths is None else int(lengths[b])
        last = places[:, None] if causal else N
        allowed = (places < n_real) & (places <= last) & np.ones((N, 1), dtype=bool)
        for h in range(H):
            head = [one[b, h].float().numpy() for one in (query, key, value)]
            found = one_head(*head, allowed)
            z[b, h], lse[b, h] = map(torch.from_numpy, found)
    return {"z": z, "lse": lse}
