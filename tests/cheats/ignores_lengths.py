"""Leaves the mask out: nothing shows as long as all sentences are of full length.

Source: Infatoshi/kernelbench.com#7 (right only for the inputs that are visible).
check: wrong: lengths is ignored
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    return {"z": right(query, key, value, None, causal)}
