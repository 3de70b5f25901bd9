"""Delegates to torch, which is allowed: the question is how fast, not whose it is.

check: right
bench: right
"""

from plain_attention import allowed
from torch.nn.functional import scaled_dot_product_attention


def attention(query, key, value, lengths, causal):
    mask = allowed(key.shape[2], lengths, causal)
    z = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return {"z": z.nan_to_num(0.0)}
