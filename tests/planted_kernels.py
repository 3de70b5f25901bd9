"""Attention kernels as a user writes them, right and wrong on purpose, as text of a file."""

import subprocess
from pathlib import Path

import pytest

#: For what only namespaces of its own keep a worker from, where this machine allows them.
alone = pytest.mark.skipif(
    subprocess.run(["unshare", "-Upmrf", "true"], capture_output=True, check=False).returncode != 0,
    reason="namespaces are not allowed here",
)
START = """
import math
import torch

def allowed(n, lengths, causal):
    seen = torch.ones(1, 1, n, n, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    return seen if lengths is None else seen & (torch.arange(n) < lengths[:, None, None, None])

def right(query, key, value, lengths, causal, mask=None):
    seen = allowed(key.shape[2], lengths, causal)
    seen = seen if mask is None else seen | mask
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value
"""
RIGHT = """
def attention(query, key, value, lengths, causal):
    return {"z": right(query, key, value, lengths, causal)}
"""
STATISTICS = """
def attention(query, key, value, lengths, causal):
    scores = (query.double() @ key.double().transpose(-2, -1)) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~allowed(key.shape[2], lengths, causal), -math.inf)
    probs = scores.softmax(-1).nan_to_num(0.0)
    entropy = -(probs * probs.clamp_min(1e-300).log()).sum(-1)
    z = (probs @ value.double()).to(value.dtype)
    rows = {"lse": scores.logsumexp(-1), "entropy": entropy, "max_prob": probs.amax(-1)}
    return {"z": z} | {name: row.float() for name, row in rows.items()}
"""
TF32 = """
def tf32(x):
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

def attention(query, key, value, lengths, causal):
    scores = tf32(query) @ tf32(key).transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~allowed(key.shape[2], lengths, causal), -math.inf)
    maximum = scores.amax(-1, keepdim=True).nan_to_num(0.0, neginf=0.0)
    weights = (scores - maximum).exp()
    total = weights.sum(-1, keepdim=True)
    return {"z": tf32(weights) @ tf32(value) / total.masked_fill(total == 0, 1.0)}
"""
LAST_BLOCK = """
def attention(query, key, value, lengths, causal):
    N = key.shape[2]
    last = torch.arange(N) >= (N - 1) // 64 * 64
    return {"z": right(query, key, value, lengths, causal, mask=last)}
"""
READS_ON = """
def attention(query, key, value, lengths, causal):
    B, H, N, D = query.shape
    extra = -N % 64
    def on(x):
        memory = torch.cat([x.reshape(-1, D), torch.full((64, D), 3.0)])
        place = torch.arange(B * H)[:, None] * N + torch.arange(N + extra)
        return memory[place].reshape(B, H, N + extra, D)
    allowed = torch.ones(1, 1, N, N + extra, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    if lengths is not None:
        allowed = allowed & (torch.arange(N + extra) < lengths[:, None, None, None])
    allowed = allowed | (torch.arange(N + extra) >= N)
    scores = query @ on(key).transpose(-2, -1) / math.sqrt(D)
    return {"z": scores.masked_fill(~allowed, -math.inf).softmax(-1) @ on(value)}
"""
HALF_STALE = """
buffers = {}

def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    out = buffers.setdefault((tuple(query.shape), query.dtype), z.clone())
    out[:, :, : query.shape[2] // 2] = z[:, :, : query.shape[2] // 2]
    return {"z": out}
"""
CACHED = """
results = {}

def attention(query, key, value, lengths, causal):
    name = (query.data_ptr(), key.data_ptr(), tuple(query.shape), query.dtype, causal)
    if name not in results:
        results[name] = right(query, key, value, lengths, causal)
    return {"z": results[name]}
"""
LATE = """
import threading, time

def attention(query, key, value, lengths, causal):
    z = torch.zeros_like(query)
    def work():
        time.sleep(0.002)
        z.copy_(right(query, key, value, lengths, causal))
    threading.Thread(target=work).start()
    return {"z": z}
"""
CONTIGUOUS = """
def attention(query, key, value, lengths, causal):
    def as_if(x):
        return x.as_strided(x.shape, torch.empty(x.shape).stride())
    return {"z": right(as_if(query), as_if(key), as_if(value), lengths, causal)}
"""


#: 1 % too much from the fifth head on: with fewer heads it is right.
LATE_HEADS = """
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    z[:, 4:] *= 1.01
    return {"z": z}
"""


def written(folder: Path, source: str, name: str = "kernel.py") -> str:
    """The target, FILE.py:attention, of a file with this source."""
    path = folder / name
    path.write_text(START + source, encoding="utf-8")
    return f"{path}:attention"
