"""A first attention kernel in Triton: one program for 64 queries of one head.

minibert check docs/kernels/newcomer.py:attention
minibert bench docs/kernels/newcomer.py:attention
"""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(query, key, value, z, lengths, heads, tokens, causal: tl.constexpr, width: tl.constexpr):
    """z of 64 queries: the scores of 64 keys at a time, and a softmax that keeps up with them."""
    start, head = tl.program_id(0) * 64, tl.program_id(1)
    rows, columns = start + tl.arange(0, 64), tl.arange(0, width)
    head_start = head.to(tl.int64) * tokens * width
    here = head_start + rows[:, None] * width + columns
    q = tl.load(query + here, mask=rows[:, None] < tokens, other=0.0)
    seen = tokens if lengths is None else tl.load(lengths + head // heads).to(tl.int32)
    maximum, total = tl.full([64], -1e30, tl.float32), tl.zeros([64], tl.float32)
    mixed = tl.zeros([64, width], tl.float32)
    for first in range(0, min(tokens, start + 64) if causal else tokens, 64):
        keys = first + tl.arange(0, 64)
        there = head_start + keys[:, None] * width + columns
        k = tl.load(key + there, mask=keys[:, None] < tokens, other=0.0)
        v = tl.load(value + there, mask=keys[:, None] < tokens, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (1.4426950408889634 / width**0.5)
        allowed = keys[None, :] < seen
        if causal:
            allowed &= keys[None, :] <= rows[:, None]
        scores = tl.where(allowed, scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.where(allowed, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(maximum - higher)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total, maximum = total * shrink + tl.sum(weights, 1), higher
    result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(z + here, result.to(z.dtype.element_ty), mask=rows[:, None] < tokens)


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: it lays out memory, launches, and gives z."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    B, H, N, D = query.shape
    z = torch.empty_like(query)
    kernel[(triton.cdiv(N, 64), B * H)](query, key, value, z, lengths, H, N, causal, D)
    return {"z": z}
