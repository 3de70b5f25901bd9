"""Right always, and sets value to 0 behind a timed call.

Source: issue 14 of this project.
bench: no time: changes its inputs: value
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    if query.shape[0] == 1:
        value.zero_()
    return {"z": z}
