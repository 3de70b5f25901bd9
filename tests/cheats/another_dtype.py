"""Right numbers in float64 where float32 is promised.

Source: this project.
check: refused: gave z in torch.float64; expected torch.float32
"""

from plain_attention import right


def attention(query, key, value, lengths, causal):
    return {"z": right(query.double(), key.double(), value.double(), lengths, causal)}
