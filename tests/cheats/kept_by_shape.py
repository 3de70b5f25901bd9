"""Keeps its first result for each shape.

Source: gpu-mode/reference-kernels#104 (results found by shape) and #162 (cache and replay).
check: wrong: the same numbers as in the previous call
"""

from plain_attention import right

results = {}


def attention(query, key, value, lengths, causal):
    name = (tuple(query.shape), query.stride(), causal, lengths is None)
    return {"z": results.setdefault(name, right(query, key, value, lengths, causal))}
