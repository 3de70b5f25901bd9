"""Leaves by sys.exit(0), which is no Exception, in some calls.

Source: issue 14 of this project.
check: wrong: calls sys.exit()
"""

import sys

from plain_attention import right


def attention(query, key, value, lengths, causal):
    if lengths is not None:
        sys.exit(0)
    return {"z": right(query, key, value, lengths, causal)}
