"""Gives z as a view of memory in the order (batch, position, head, d_head).

check: right
bench: right
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": z.transpose(1, 2).contiguous().transpose(1, 2)}
