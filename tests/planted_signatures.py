"""Attention in the conventions that people write it in, right and with a slip, as files."""

START = """
import math
import torch

def right(q, k, v, *, scale=None, causal=False, before=None, after=None, cap=None):
    '''(batch, head, position, size); the last query is at the end.'''
    Q, K, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap:
        s = cap * torch.tanh(s / cap)
    distance = torch.arange(K) - torch.arange(K - Q, K)[:, None]
    seen = torch.ones(Q, K, dtype=torch.bool)
    if causal:
        seen &= distance <= 0
    if before is not None:
        seen &= distance >= -before
    if after is not None:
        seen &= distance <= after
    return s.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0) @ v

def sides(window):
    return {name: None if n < 0 else n for name, n in zip(("before", "after"), window)}
"""
FLASH = """
def attention(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
              softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    given = sides(window_size)
    SLIP
    z = right(q, k, v, scale=softmax_scale, causal=causal, cap=softcap, **given)
    if alibi_slopes is not None:
        Q, K = q.shape[2], k.shape[2]
        distance = (torch.arange(K) - torch.arange(K - Q, K)[:, None]).abs()
        s = q @ k.mT * softmax_scale - alibi_slopes[:, None, None] * distance
        if causal:
            s = s.masked_fill(torch.arange(K) > torch.arange(K - Q, K)[:, None], -math.inf)
        z = (s.softmax(-1) @ v).to(v.dtype)
    return z.transpose(1, 2)
"""
VARLEN = """
def attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
              softmax_scale=None, causal=False, window_size=(-1, -1)):
    found = []
    for i in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        keys = slice(cu_seqlens_k[i], cu_seqlens_k[i + 1])
        SLIP
        one = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        z = right(*one, scale=softmax_scale, causal=causal, **sides(window_size))
        found.append(z[0].transpose(0, 1))
    return torch.cat(found)
"""
TRANSFORMERS = """
def attention(module, query, key, value, attention_mask, scaling, dropout=0.0):
    groups = module.num_key_value_groups
    SLIP
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    weights = query @ key.mT * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = weights.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights
"""
PLAIN = """
def attention(q, k, v, causal, sm_scale):
    SLIP
    return right(q, k, v, causal=causal, scale=sm_scale)
"""


def source(text: str, slip: str = "pass") -> str:
    """The file, with one line of a slip in it."""
    return START + text.replace("SLIP", slip)
