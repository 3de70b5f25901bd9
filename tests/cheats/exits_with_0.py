"""Ends the process with status 0 before there is a verdict.

Source: gpu-mode/pygpubench#7 (the process is ended, and its result written over).
check: refused: ended the process with status 0, at
"""

import os

from plain_attention import right


def attention(query, key, value, lengths, causal):
    if lengths is not None:
        os._exit(0)
    return {"z": right(query, key, value, lengths, causal)}
