"""Sets value to 0 after reading it, so that a truth computed later is 0 as well.

Source: ScalingIntelligence/KernelBench#82 (inputs are changed).
check: wrong: changes its inputs: value
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    value.zero_()
    return {"z": z}
