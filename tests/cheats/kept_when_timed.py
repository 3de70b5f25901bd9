"""Right in the check; keeps its first result of a shape that only the clock asks for.

Source: gpu-mode/reference-kernels#148 (what is timed is not checked again) and #170.
check: right
bench: no time: right when checked, but while it was timed: wrong: error
"""

from plain_attention import right

results = {}


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    if query.shape[0] == 1:
        z = results.setdefault((tuple(query.shape), causal), z)
    return {"z": z}
