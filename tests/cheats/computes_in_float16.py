"""Computes in float16 and gives float32.

Source: BytedTsinghua-SIA/CUDA-Agent#16 (a lower precision is timed against a higher one).
check: wrong: float16 has as many): the error is what that type gives
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    given = (query.half().float(), key.half().float(), value.half().float())
    return {"z": right(*given, lengths, causal)}
