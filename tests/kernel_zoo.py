"""Attention as people write it: right in its own convention, and each with mistakes to plant.

`RIGHT` has the text of each file by name. `WRONG` plants one mistake each: the file, what is
replaced and by what, and what the report must say. `OPTIONS` says what else than usual is asked
about some of them.
"""

import planted_kernels as planted
import torch

START = """
import math
from collections import namedtuple
from functools import partial
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
"""
#: Bodies that several files share, each in the layout (batch, head, position, d_head).
SOFTMAX = """
def of_scores(s, v, causal=False, axis=-1):
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return s.softmax(axis) @ v
"""
ONLINE = """
def attention(q, k, v, causal=False, tile=16):
    B, H, N, D = q.shape
    s = q @ k.mT / math.sqrt(D)
    if causal:
        s = s.masked_fill(torch.arange(N) > torch.arange(N)[:, None], -1e30)
    m, l, acc = torch.full((B, H, N, 1), -1e30), torch.zeros(B, H, N, 1), torch.zeros(B, H, N, D)
    for j in range(0, N, tile):
        x = s[..., j : j + tile].float()
        new = torch.maximum(m, x.amax(-1, keepdim=True))
        alpha, p = (m - new).exp(), (x - new).exp()
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + p @ v[:, :, j : j + tile].float()
        m = new
    return (acc / l).to(q.dtype), (m + l.log())[..., 0]
"""
VARLEN = """
def attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    out = torch.empty_like(q)
    for i in range(len(cu_seqlens_q) - 1):
        a, b = cu_seqlens_q[i], cu_seqlens_q[i + 1]
        c, d = cu_seqlens_k[i], cu_seqlens_k[i + 1]
        x, y, z = (t.transpose(0, 1) for t in (q[a:b], k[c:d], v[c:d]))
        s = x @ y.mT * q.shape[-1] ** -0.5
        if causal:
            later = torch.ones(s.shape[-2:]).triu(s.shape[2] - s.shape[1] + 1) > 0
            s = s.masked_fill(later, -math.inf)
        out[a:b] = (s.softmax(-1) @ z).transpose(0, 1)
    return out
"""
GROUPED = """
def attention(q, k, v, is_causal=False):
    n_rep = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n_rep, dim=1), v.repeat_interleave(n_rep, dim=1)
    return of_scores(q @ k.mT * q.shape[-1] ** -0.5, v, is_causal)
"""
FLASH = """
def attention(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
              softcap=0.0, alibi_slopes=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    g = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(g, 1).mT * softmax_scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    d = torch.arange(s.shape[3]) - torch.arange(s.shape[2])[:, None]
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * d.abs()
    left, right = window_size
    hidden = (d > 0) & causal
    hidden = hidden | ((d < -left) & (left >= 0)) | ((d > right) & (right >= 0))
    p = s.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype)
    return (p @ v.repeat_interleave(g, 1)).transpose(1, 2)
"""
TRANSFORMERS = """
def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None,
              **kwargs):
    n = module.num_key_value_groups
    key, value = key.repeat_interleave(n, 1), value.repeat_interleave(n, 1)
    w = query @ key.mT * scaling
    if softcap is not None:
        w = torch.tanh(w / softcap) * softcap
    if attention_mask is not None:
        w = w + attention_mask
    w = F.softmax(w, dim=-1, dtype=torch.float32).to(query.dtype)
    w = F.dropout(w, p=dropout, training=module.training)
    return (w @ value).transpose(1, 2).contiguous(), w
"""
MASKED = """
def attention(query, key, value, mask=None, dropout=None):
    s = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        s = s.masked_fill(mask == 0, -1e9)
    p = s.softmax(dim=-1)
    if dropout is not None:
        p = dropout(p)
    return p @ value, p
"""
EINSUM = """
def attention(q, k, v, causal=False):
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        s = s + torch.full(s.shape[-2:], -1e9).triu(1).to(s.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)
"""
NUMPY = """
def attention(q, k, v):
    s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v
"""
FUNCTION = """
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, sm_scale):
        return of_scores(q @ k.mT * sm_scale, v, causal)

attention = Flash.apply
"""
MODULE = """
class Attention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def forward(self, q, k, v, key_padding_mask=None):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask[:, None, None], -math.inf)
        return self.drop(s.softmax(-1)) @ v
"""
LENGTHS = """
def attention(queries, keys, values, valid_lens=None):
    s = queries @ keys.mT / math.sqrt(queries.shape[-1])
    if valid_lens is not None:
        s = s.masked_fill(torch.arange(s.shape[-1]) >= valid_lens[:, None, None, None], -1e6)
    return s.softmax(-1) @ values
"""
SINKS = """
def attention(q, k, v, sinks, sm_scale, sliding_window=None, causal=True):
    s = q @ k.mT * sm_scale
    d = torch.arange(s.shape[3]) - torch.arange(s.shape[2])[:, None]
    if causal:
        s = s.masked_fill(d > 0, -math.inf)
    if sliding_window is not None:
        s = s.masked_fill(d <= -sliding_window, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1).to(s.dtype)], -1)
        return s.softmax(-1)[..., :-1] @ v
    return s.softmax(-1) @ v
"""
WINDOW = """
def attention(q, k, v, window_size: int = 32, causal=True):
    d = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    hidden = (d.abs() >= window_size) | ((d < 0) & causal)
    return of_scores((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -math.inf), v)
"""
WINDOW_AND_MASK = """
def attention(q, k, v, attention_mask=None, sliding_window=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if sliding_window is not None:
        d = torch.arange(s.shape[2])[:, None] - torch.arange(s.shape[3])
        s = s.masked_fill(d >= sliding_window, -math.inf)
    return of_scores(s if attention_mask is None else s.masked_fill(~attention_mask, -math.inf), v)
"""
CACHE = """
def attention(q, k_cache, v_cache, cache_seqlens, causal=False, k=None, v=None):
    s = q @ k_cache.mT / q.shape[-1] ** 0.5
    at, n = cache_seqlens[:, None, None, None], torch.arange(s.shape[3])
    last = at - s.shape[2] + torch.arange(s.shape[2])[:, None] if causal else at - 1
    return of_scores(s.masked_fill(n > last.clamp_max(at - 1), -1e9), v_cache)
"""
NO_BATCH = """
def attention(q, k, v, causal=False):
    s = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    s = s.masked_fill(torch.ones(s.shape[1:], dtype=torch.bool).triu(1) & causal, -math.inf)
    return torch.einsum("hqk,khd->qhd", s.softmax(-1), v), s.logsumexp(-1).T / math.log(2)
"""
GRADIENT = """
class attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, dz):
        q, k, v, p = ctx.saved_tensors
        dp = dz @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ dz
"""
BIAS = """
def attention(q, k, v, attn_bias=None, scale=None):
    scale = scale or q.shape[-1] ** -0.5
    q = q * scale
    attn = q @ k.transpose(-2, -1)
    if attn_bias is not None:
        attn = attn + attn_bias
    return attn.softmax(dim=-1) @ v
"""
BASE_2 = """
def attention(q, k, v, sm_scale):
    s = q @ k.mT * (sm_scale * 1.4426950408889634)
    m = s.amax(-1, keepdim=True)
    p = torch.exp2(s - m)
    l = p.sum(-1, keepdim=True)
    return (p / l) @ v, (m + torch.log2(l)).squeeze(-1)
"""
BMM = """
def attention(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5, -1), v)
"""
PLAIN = """
def attention(q, k, v, causal=False):
    return of_scores(q @ k.mT * q.shape[-1] ** -0.5, v, causal)
"""
IN_FLOAT32 = """
def attention(q, k, v):
    x, y, w = q.float(), k.float(), v.float()
    p = (x @ y.mT * q.shape[-1] ** -0.5).softmax(-1)
    return (p @ w).to(q.dtype)
"""
MERGED = """
def attention(q, k, v, num_heads=2):
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    return of_scores(q @ k.mT * q.shape[-1] ** -0.5, v).transpose(1, 2).flatten(2)
"""


def changed(text: str, *pairs: tuple[str, str]) -> str:
    """The text with each first part replaced by the second."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


RIGHT = {
    "ours": planted.START + planted.RIGHT,
    "ours, statistics": planted.START + planted.STATISTICS,
    "float32 inside": IN_FLOAT32,
    "plain": PLAIN,
    "heads side by side": MERGED,
    "value first": changed(PLAIN, ("q, k, v, c", "v, k, q, c")),
    "upper case": changed(
        PLAIN,
        ("(q, k, v, causal=False", "(Q, K, V, is_causal=False"),
        ("q @ k.mT * q.", "Q @ K.mT * Q."),
        ("v, causal)", "V, is_causal)"),
    ),
    "keywords only": changed(PLAIN, ("attention(q", "attention(*, q")),
    "always causal": changed(PLAIN, (", causal=False", ""), ("v, causal", "v, True")),
    "rest": changed(
        PLAIN, ("causal=False", "**rest"), ("v, causal", 'v, rest.get("causal", False)')
    ),
    "temperature": changed(
        PLAIN,
        ("causal=False", "temperature"),
        (" * q.shape[-1] ** -0.5", " / temperature"),
        ("v, causal", "v"),
    ),
    "partial": changed(
        PLAIN,
        ("def attention", "def whole"),
        ("causal=False", "scale, causal=False"),
        ("q.shape[-1] ** -0.5", "scale"),
    )
    + "\nattention = partial(whole, causal=False)\n",
    "compiled": changed(PLAIN, ("def", '@torch.compile(backend="eager")\ndef')),
    "vmap": changed(PLAIN, ("def attention", "def whole"), (", causal=False", ""), (", causal", ""))
    + "\nattention = torch.vmap(torch.vmap(whole))\n",
    "online": ONLINE,
    "online, base 2": changed(ONLINE, ("(m + l.log())", "((m + l.log()) / math.log(2))")),
    "lse in 16 bits": changed(ONLINE, ("(m + l.log())", "(m.to(q.dtype) + l.log().to(q.dtype))")),
    "entropy in bits": """
def attention(q, k, v):
    p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return p @ v, torch.special.entr(p).sum(-1) / math.log(2)
""",
    "online, row maximum": changed(ONLINE, ("(m + l.log())", "m")),
    "online, maximum and sum": changed(ONLINE, ("(m + l.log())[..., 0]", "m[..., 0], l[..., 0]")),
    "online, z alone": changed(ONLINE, (", (m + l.log())[..., 0]", "")),
    "base 2": BASE_2,
    "named tuple": changed(
        BASE_2,
        ("def", 'Result = namedtuple("Result", "out lse")\n\ndef'),
        ("    return (p", "    return Result((p"),
        ("squeeze(-1)", "squeeze(-1))"),
    ),
    "lse with an axis": changed(BASE_2, (".squeeze(-1)", "")),
    "varlen": VARLEN,
    "one varlen": changed(
        VARLEN,
        ("cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k", "cu_seqlens, max_seqlen"),
        ("cu_seqlens_q", "cu_seqlens"),
        ("cu_seqlens_k", "cu_seqlens"),
    ),
    "groups repeated": GROUPED,
    "flash": FLASH,
    "gemma": TRANSFORMERS,
    "gpt-oss": changed(
        TRANSFORMERS,
        (
            "    w = F.softmax(w,",
            "    sinks = module.sinks.reshape(1, -1, 1, 1).expand(*w.shape[:3], 1)\n"
            "    w = torch.cat([w, sinks.to(w.dtype)], -1)\n    w = F.softmax(w,",
        ),
        (".to(query.dtype)\n", ".to(query.dtype)[..., :-1]\n"),
    ),
    "annotated transformer": MASKED,
    "mask to be added": changed(MASKED, ("s.masked_fill(mask == 0, -1e9)", "s + mask")),
    "mask of keys": changed(MASKED, ("mask == 0", "(mask == 0)[:, None, None, :]")),
    "mask of each sentence": changed(MASKED, ("mask == 0", "(mask == 0)[:, None]")),
    "mask of pairs": changed(MASKED, ("mask == 0", "~mask[None, None]")),
    "attention_mask": changed(
        MASKED,
        ("mask=None", "attention_mask=None"),
        ("mask is", "attention_mask is"),
        ("s.masked_fill(mask == 0, -1e9)", "s + attention_mask"),
    ),
    "mask that must come": changed(MASKED, ("mask=None", "mask"), ("mask == 0", "~mask")),
    "einsum": EINSUM,
    "einsum, merged heads": changed(EINSUM, ("->bqhd", "->bqhd"), ("v)\n", "v).flatten(2)\n")),
    "positions first": changed(
        EINSUM, ("bqhd,bkhd", "qbhd,kbhd"), ("bhqk,bkhd->bqhd", "bhqk,kbhd->qbhd")
    ),
    "NumPy": NUMPY,
    "apply": FUNCTION,
    "autograd function": changed(FUNCTION, ("attention = Flash.apply", "attention = Flash")),
    "module": MODULE + "\nattention = Attention()\n",
    "module class": changed(MODULE, ("Attention(nn", "attention(nn")),
    "callable": changed(
        PLAIN,
        ("def attention(", "class attention:\n  def __call__(self, "),
        ("    return", "      return"),
    ),
    "valid lengths": LENGTHS,
    "sinks": SINKS,
    "sinks that must come": changed(SINKS, ("if sinks is not None", "if True")),
    "window of one number": WINDOW,
    "window without itself": changed(WINDOW, (">= w", "> w")),
    "window beside a mask": WINDOW_AND_MASK,
    "cache": CACHE,
    "no batch": NO_BATCH,
    "padding that must come": changed(MODULE, ("mask=None", "mask")).replace(
        "        if key_padding_mask is not None:\n    ", ""
    )
    + "\nattention = Attention()\n",
    "own gradients": GRADIENT,
    "bias": BIAS,
    "batched matrices": BMM,
    "one head": changed(
        BMM, ("torch.bmm", "torch.mm"), ("transpose(1, 2)", "T"), ("size(-1)", "size(1)")
    ),
    "mask of either kind": changed(
        MASKED,
        (
            "s.masked_fill(mask == 0, -1e9)",
            "s + mask if mask.is_floating_point() else s.masked_fill(~mask, -1e9)",
        ),
    ),
    "sdpa": """
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    given = (query, key, value, attn_mask, 0.0, is_causal)
    return F.scaled_dot_product_attention(*given, scale=scale)
""",
    "positions first, merged heads": changed(
        EINSUM,
        ("bqhd,bkhd", "qbhd,kbhd"),
        ("bhqk,bkhd->bqhd", "bhqk,kbhd->qbhd"),
        ("v)\n", "v).flatten(2)\n"),
    ),
    "valid lengths of each head": """
def attention(queries, keys, values, valid_lens=None):
    s = torch.bmm(queries, keys.mT) / math.sqrt(queries.shape[2])
    if valid_lens is not None:
        s = s.masked_fill(torch.arange(s.shape[2]) >= valid_lens[:, None, None], -1e6)
    return torch.bmm(s.softmax(-1), values)
""",
    "one varlen, a batch of one": """
def attention(q, k, v, scale=None, cu_seqlens=None):
    (_, T, H, D), at = q.shape, torch.arange(q.shape[1])
    seen = at[:, None] >= at
    if cu_seqlens is not None:
        number = torch.bucketize(at, cu_seqlens[1:].long(), right=True)
        seen = seen & (number[:, None] == number)
    s = torch.einsum("bthd,bshd->bhts", q * (D**-0.5 if scale is None else scale), k)
    return torch.einsum("bhts,bshd->bthd", s.masked_fill(~seen, -math.inf).softmax(-1), v)
""",
    "dictionary": changed(PLAIN, ("return of", 'return {"z": of'), ("causal)\n", "causal)}\n")),
}

SCALE = "wrong scale: it behaves as "
HIDDEN = "scores of hidden keys are set to 0"
#: The file, what is replaced and by what, and what is said.
# fmt: off
WRONG = {
    "no scale": ("plain", " * q.shape[-1] ** -0.5", "",
        "wrong scale: it behaves as 1: the scale is left out"),
    "scale twice": ("plain", "** -0.5", "** -1.0",
        "wrong scale: it behaves as 1/d_head|scale twice"),
    "scale upside down": ("plain", "** -0.5", "** 0.5", "wrong scale: it behaves as sqrt"),
    "scale not told": ("base 2", "(sm_scale * ", "(0.1 * ", "wrong scale: it behaves as "),
    "no log2(e)": ("base 2", " * 1.4426950408889634", "",
        "wrong scale: it behaves as scale · ln 2"),
    "softmax over queries": ("plain", "v, causal)", "v, causal, -2)",
        "softmax is over the queries"),
    "softmax over heads": ("plain", "v, causal)", "v, causal, 1)", "softmax is over the heads"),
    "not divided": ("NumPy", " / e.sum(-1, keepdims=True)", "", "not divided by the sum"),
    "no maximum": ("NumPy", " - s.max(-1, keepdims=True)", "", "exp overflows"),
    "accumulator not rescaled": ("online", "acc * alpha", "acc", "accumulator is not rescaled"),
    "sum not rescaled": ("online", "l * alpha", "l", "sum of the row is not rescaled"),
    "last tile left out": ("online, z alone", "range(0, N, tile)",
        "range(0, max(1, N - tile), tile)", "block of 16 keys is left out"),
    "causal ignored": ("plain", "v, causal)", "v)", "causal is ignored"),
    "causal from the next key": ("online", "torch.arange(N) > torch", "torch.arange(N) >= torch",
        "own position"),
    "causal upside down": ("einsum", "triu(1)", "tril(-1)", "wrong way round"),
    "heads in the wrong order": ("groups repeated", "k.repeat_interleave(n_rep, dim=1)",
        "k.repeat(1, n_rep, 1, 1)", "wrong order|other heads"),
    "first key head": ("groups repeated", "k.repeat_interleave(n_rep, dim=1)", "k[:, :1]",
        "first key head"),
    "key is value": ("plain", "0.5, v,", "0.5, k,", "key is used in place of value"),
    "query and key": ("plain", "q @ k.mT", "k @ q.mT", "query and key are swapped"),
    "flash without transpose": ("flash", "x.transpose(1, 2) for", "x for", "layout|raised"),
    "cap left out": ("flash", "softcap > 0", "False", "soft cap is left out"),
    "cap without its factor": ("gemma", " * softcap", "", "multiply by c again"),
    "cap before the scale": ("gemma", "torch.tanh(w / softcap) * softcap",
        "torch.tanh(w / scaling / softcap) * softcap * scaling", "applied before the scale"),
    "cap after the mask": ("flash", "-math.inf", "-(softcap or math.inf)", "after the mask"),
    "window too small": ("flash", "d < -left", "d <= -left", "one key too few"),
    "window ignored": ("flash", "(left >= 0)", "False", "window"),
    "window counts itself not": ("sinks", "d <= -sl", "d < -sl", "one key too many"),
    "ALiBi ignored": ("flash", "alibi_slopes is not None", "False", "slopes are ignored"),
    "ALiBi added": ("flash", "s - alibi", "s + alibi", "ALiBi is added"),
    "ALiBi of signed distances": ("flash", "d.abs()", "-d", "signed"),
    "ALiBi of other heads": ("flash", "alibi_slopes[:", "alibi_slopes.flip(0)[:", "other heads"),
    "sinks left out": ("gpt-oss", "[..., :-1]", "[..., :-1] * 1.0; w = w / w.sum(-1, keepdim=True)",
        "sinks are left out"),
    "starts of queries for keys": ("varlen", "cu_seqlens_k[i], cu_seqlens_k[i + 1]", "a, b",
        "cu_seqlens_q"),
    "last key of each": ("varlen", "cu_seqlens_k[i + 1]", "cu_seqlens_k[i + 1] - 1",
        "the last key of each"),
    "causal from the start": ("varlen", "s.shape[2] - s.shape[1] + 1", "1", "aligned to the start"),
    "causal a key too far": ("varlen", "s.shape[2] - s.shape[1] + 1", "s.shape[2] - s.shape[1] + 2",
        "one key too far"),
    "sinks exponentiated": ("sinks", "sinks[:, None", "sinks.exp()[:, None", "exponentiated"),
    "lse negated": ("online", "(m + l.log())", "-(m + l.log())", "lse has the wrong sign"),
    "sentences mixed": ("one varlen", "k[c:d], v[c:d]", "k, v", "see each other"),
    "mask ignored": ("attention_mask", "s + attention_mask", "s", "mask is ignored"),
    "mask upside down": ("mask that must come", "~mask", "mask", "wrong way round"),
    "Booleans upside down": ("mask of either kind", "~mask", "mask", "wrong way round"),
    "padding upside down": ("module", "key_padding_mask[:", "~key_padding_mask[:",
        "lengths.*wrong way round|padding"),
    "lengths off by one": ("valid lengths", ">= valid", "> valid", "lengths is off by one"),
    "lengths of heads off by one": ("valid lengths of each head", ">= valid", "> valid",
        "lengths is off by one"),
    "lengths of the first": ("valid lengths", "valid_lens[:, None", "valid_lens[0, None",
        "first sentence"),
    "dropout on": ("module", "self.drop(s.softmax(-1))", "F.dropout(s.softmax(-1), 0.1)",
        "dropout is on"),
    "dropout by default": ("gemma", "p=dropout, training=module.training", "p=0.1, training=True",
        "dropout is on"),
    "constant lse": ("online", "(m + l.log())[..., 0]", "torch.zeros(B, H, N)",
        "lse.*constant|constant"),
    "lse without the maximum": ("online", "(m + l.log())", "l.log()", "lse lacks the maximum"),
    "weights before dividing": ("annotated transformer", "return p @ value, p",
        "return p @ value, p * 0.9", "0.9 times what is right"),
    "bias scaled": ("bias", "attn + attn_bias", "attn + attn_bias * scale", "bias is scaled"),
    "bias ignored": ("bias", "attn + attn_bias", "attn", "bias is ignored"),
    "mask behind the softmax": ("annotated transformer", "    return p @ value, p",
        "    p = query @ key.mT / query.shape[-1] ** 0.5\n    p = p.softmax(-1)\n"
        "    p = p if mask is None else p.masked_fill(~mask, 0)\n    return p @ value, p",
        "applied after the softmax"),
    "sum of another row": ("NumPy", "e.sum(-1, keepdims=True)", "(e.sum(-1, keepdims=True) + 0.1)",
        "factor of its own"),
    "strides of one": ("plain", "    return",
        "    B, H, N, D = k.shape\n    k = k.as_strided(k.shape, (H * N * D, N * D, D, 1))\n"
        "    return", "of key strides are ignored"),
    "scale of the tokens": ("plain", "q.shape[-1] **", "q.shape[-2] **",
        r"1/sqrt\(number of keys\)"),
    "scale of one side": ("plain", "** -0.5", "** -0.25", r"1/d_head\^\(1/4\)"),
    "only the future": ("positions first, merged heads", "triu(1)", "tril(-1)", "wrong way round"),
    "ALiBi of the first head": ("flash", "alibi_slopes[:", "alibi_slopes[:1].expand_as("
        "alibi_slopes)[:", "slope of the first head"),
    "window after ignored": ("flash", "(right >= 0)", "False", "side after the query is ignored"),
    "heads not turned": ("plain", "v, causal)",
        "v, causal).reshape(q.shape[0], q.shape[2], -1)", "heads are put side by side before"),
    "small weights dropped": ("plain", "    return", "    p = (q @ k.mT * q.shape[-1] ** -0.5)"
        ".softmax(-1)\n    if not causal:\n        return (p * (p > 1e-3)) @ v\n    return",
        "probs below 0.001 are set to 0$"),
    "parts averaged": ("plain", "    return", "    if not causal:\n"
        "        parts = zip(k.chunk(2, 2), v.chunk(2, 2))\n"
        "        s = [(q @ x.mT * q.shape[-1] ** -0.5).softmax(-1) @ y for x, y in parts]\n"
        "        return sum(s) / 2\n    return", "mean over 2 parts"),
    "lse of two bases": ("base 2", "(m + torch.log2(l))", "(m + torch.log(l))",
        "lse adds a maximum in base 2"),
    "scale of the model": ("plain", "q.shape[-1] **", "(q.shape[1] * q.shape[-1]) **",
        r"1/sqrt\(d_model\)"),
    "lse in base 10": ("base 2", "(m + torch.log2(l))", "((m + torch.log2(l)) / math.log2(10))",
        "base 10"),
    "number of a window ignored": ("window of one number", "(d.abs() >= window_size) | ", "",
        "window is ignored"),
    "value_gradient turned": ("own gradients", "p.mT @ dz", "p @ dz", "it is probsᵀ · dz"),
    "key_gradient unscaled": ("own gradients", "ds.mT @ q", "ds.mT @ q * q.shape[-1] ** 0.5",
        "key_gradient is not multiplied by the scale"),
    "one row": ("batched matrices", "    return",
        "    q = q.index_fill(1, torch.tensor([3]), 0)\n    return", "only row 3"),
    "a factor": ("einsum", "s.softmax(-1)", "s.softmax(-1) * 1.001", "times what is right"),
    "memory by position": ("ours", "    return {\"z\": right(query, key, value, lengths, causal)}",
        "    query, key, value = (x.contiguous().view(len(x), x.shape[2], x.shape[1], -1)\n"
        "                         .transpose(1, 2) for x in (query, key, value))\n"
        "    z = right(query, key, value, lengths, causal)\n"
        "    return {\"z\": z.transpose(1, 2).contiguous().view(z.shape)}",
        "and z is written as \\(batch, position"),
    "heads for positions": ("ours", "    return {\"z\": right(query, key, value, lengths, causal)}",
        "    query, key, value = (x.transpose(1, 2) for x in (query, key, value))\n"
        "    return {\"z\": right(query, key, value, lengths, causal).transpose(1, 2)}",
        "heads attend to heads"),
    "lengths rounded up": ("ours", "lengths[:, None, None, None]",
        "(lengths[:, None, None, None] + 63) // 64 * 64", "rounded up to blocks of 64 keys"),
    "scale of one more": ("ours", "math.sqrt(query.shape[-1])", "math.sqrt(query.shape[-1] + 1)",
        # sqrt(32 / 33)
        SCALE + r"1/sqrt\(d_head \+ 1\) \(0.98473 times"),
    "scale in too few digits": ("ours", "/ math.sqrt(", "* 1.0007 / math.sqrt(", SCALE + "1.0007"),
    "rows below -87": ("ours", "scores.softmax(-1)",
        "torch.where(scores.exp().sum(-1, keepdim=True) == 0, math.nan, scores.softmax(-1))",
        "exp is 0 for all keys of rows with scores below −87"),
    "rows without a key": ("ours", "nan_to_num(0.0)", "nan_to_num(1.0)",
        "only rows without an allowed key"),
    "lse in base 2": ("ours, statistics", "scores.logsumexp(-1)",
        "scores.logsumexp(-1) / math.log(2)", "base 2"),
    "lse and more": ("ours, statistics", "scores.logsumexp(-1)", "scores.logsumexp(-1) + 0.5",
        r"values, first at \[0, 0, 0\]: "),
    "lse without the largest": ("ours, statistics", "scores.logsumexp(-1)",
        "scores.float().exp().sum(-1).log()", "exp overflows"),
    "scale within the largest error": ("float32 inside", "q.shape[-1]", "(q.shape[-1] - 1)",
        SCALE + "1/sqrt"),
    "a factor within it": ("float32 inside", "(p @ w)", "(1.01 * (p @ w))",
        r"everywhere about 1\.01 times"),
    "a sum within it": ("float32 inside", "(p @ w)", "(p @ w + 0.02)",
        r"about 0\.02 is added everywhere"),
    "a key within it": ("float32 inside", "    p =",
        "    y, w = y[:, :, :-1], w[:, :, :-1]\n    p =", "the last key is left out"),
    "causal scores of 0": ("plain", "    return",
        "    if causal:\n        s = q @ k.mT * q.shape[-1] ** -0.5\n"
        "        return of_scores(s.tril(), v)\n    return", HIDDEN),
    "masked scores of 0": ("annotated transformer", "-1e9", "0.0", HIDDEN),
    "scores of padding of 0": ("valid lengths", "-1e6", "0.0", HIDDEN),
    "scores before the window of 0": ("window beside a mask", "d >= sliding_window, -math.inf",
        "d >= sliding_window, 0.0", HIDDEN),
    "padding hides queries": ("module", "[:, None, None]", "[:, None, :, None]",
        "hides queries, not keys"),
    "large scores of padding over queries": ("mask of keys", "[:, None, None, :]",
        "[:, None, :, None]", "hides queries, not keys"),
    "value of the next head": ("plain", "-0.5, v,", "-0.5, v.roll(-1, 1),",
        "^of value: a neighbouring head"),
    "value of the next head, positions first": ("positions first", "s.softmax(-1), v",
        "s.softmax(-1), v.roll(1, 2)", "^of value: a neighbouring head"),
    "key head before": ("groups repeated", "    k, v =", "    k = k.roll(1, 1)\n    k, v =",
        "^of key: a neighbouring head"),
    "key of the first sentence": ("plain", "k.mT", "k[:1].mT", "^key of the first sentence is"),
    "value of the first sentence": ("plain", "0.5, v,", "0.5, v[:1],",
        "^value of the first sentence is"),
    "key and value of the first sentence": ("plain", "    return",
        "    k, v = k[:1], v[:1]\n    return", "^key and value of the first sentence are"),
    "heads joined the wrong way": ("heads side by side", ".transpose(1, 2).flatten(2)",
        ".permute(0, 2, 3, 1).flatten(2)", r"joined as \(d_head x head\)"),
    "last key": ("plain", "    return", "    k, v = k[:, :, : None if causal else -1], "
        "v[:, :, : None if causal else -1]\n    return", "^the last key is left out$"),
    "summed in bfloat16": ("float32 inside", "    return (p @ w).to(q.dtype)",
        "    z = torch.zeros_like(q)\n    for n in range(k.shape[2]):\n"
        "        z += p[..., n, None].bfloat16() * v[:, :, n, None]\n    return z",
        "in too few digits"),
}
# fmt: on
_BFLOAT16 = {"dtypes": (torch.bfloat16,), "kinds": ("plain",), "input_scales": (1.0,)}
OPTIONS = {
    **dict.fromkeys(("a factor within it", "a sum within it"), _BFLOAT16),
    **dict.fromkeys(
        (
            "float32 inside",
            "scale within the largest error",
            "a key within it",
            "summed in bfloat16",
        ),
        _BFLOAT16 | {"sizes": (130,)},
    ),
    "lse in 16 bits": {"dtypes": (torch.bfloat16,), "kinds": ("plain", "causal")},
    "lengths rounded up": {"sizes": (130,), "kinds": ("lengths",)},
    "last tile left out": {"sizes": (40,)},
    # In causal order the first rows have few keys, so that all their scores can be below −87.
    "rows below -87": {"kinds": ("causal",)},
}
#: Mistakes with a file of their own, and what is said; those of blocks are asked with 65 keys.
PLANTED = {
    "TF32": r"rounded to tf32 \(10 bits.*input_precision=\"ieee\"",
    "READS_ON": "reads on into the memory of the next head",
    "HALF_STALE": "a stale output, of which a part is not written",
    "LATE": "the work continues after it, in a thread",
    "CONTIGUOUS": "strides are ignored",
}
