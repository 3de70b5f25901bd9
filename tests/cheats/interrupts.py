"""Raises KeyboardInterrupt, as if a person had ended the command.

Source: issue 14 of this project.
check: wrong: raises KeyboardInterrupt
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    if lengths is not None:
        raise KeyboardInterrupt
    return {"z": right(query, key, value, lengths, causal)}
