"""Rung 3: flash attention in torch. A tile of 64 queries by 64 keys at a time.

The loop over queries is outside: the z of a tile of queries stays where it is added up, and is
written once (Dao 2023, "FlashAttention-2", algorithm 1).

minibert check docs/lessons/flash/rung3_tiled.py:attention
"""

import torch

TILE, NOTHING = 64, -1e30


def some_rows(query, key, value, rows, n_real, causal):
    """z and lse of a tile of queries; rows are their positions, n_real is (batch, 1, 1, 1)."""
    B, H, Q, D = query.shape
    largest, total = torch.full((B, H, Q, 1), NOTHING), torch.zeros(B, H, Q, 1)
    z = torch.zeros(B, H, Q, D)
    query = query.float() / D**0.5
    # In causal order the tiles to the right of the diagonal are not read.
    stop = int(rows[-1]) + 1 if causal else key.shape[2]
    for first in range(0, stop, TILE):
        key_tile = key[:, :, first : first + TILE].float()
        value_tile = value[:, :, first : first + TILE].float()
        keys = first + torch.arange(key_tile.shape[2])
        allowed = (keys < n_real) & ((keys <= rows[:, None]) | (not causal))
        scores = (query @ key_tile.mT).masked_fill(~allowed, NOTHING)
        higher = torch.maximum(largest, scores.amax(-1, keepdim=True))
        shrink = torch.exp(largest - higher)
        weights = torch.exp(scores - higher).masked_fill(~allowed, 0)
        total = total * shrink + weights.sum(-1, keepdim=True)
        z = z * shrink + weights @ value_tile
        largest = higher
    return z / total.clamp(min=1e-30), (largest + total.log())[..., 0]


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: all heads at once, a tile of queries at a time."""
    B, H, N, _ = query.shape
    z, lse = torch.empty_like(query), torch.empty(B, H, N)
    n_real = torch.full((B,), N) if lengths is None else lengths
    for first in range(0, N, TILE):
        here = slice(first, first + TILE)
        rows = torch.arange(N)[here]
        z[:, :, here], lse[:, :, here] = some_rows(
            query[:, :, here], key, value, rows, n_real[:, None, None, None], causal
        )
    return {"z": z, "lse": lse}
