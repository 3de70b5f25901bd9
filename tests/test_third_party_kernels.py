"""Attention that nobody here wrote gets the right verdict: as it is, and with one planted fault.

FlexAttention and a NumPy transcription of FlashAttention's Algorithm 1 are always here; the others
where they are installed (CONTRIBUTING.md, "Other people's kernels"). Nothing is copied: a
file imports them and hands over what they expect, and the fault is planted in what is handed over.
"""

import importlib.util
import re

import pytest
from called_here import report

#: By name: the module that has to be there, the options of the check, the file, the fault in the
#: place of SLIP, and what the report must say of it.
KERNELS = {
    "torch-flex": (
        "torch",
        {"kinds": ("groups", "causal", "soft cap", "window")},
        """
from torch.nn.attention.flex_attention import flex_attention

def attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False):
    SLIP
    return flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa)
""",
        "groups = query.shape[1] // key.shape[1]; key, value = "
        "(x.repeat(1, groups, 1, 1) for x in (key, value))",
        "heads are repeated in the wrong order, interleaved",
    ),
    "numpy-algorithm-1": (
        "numpy",
        {"kinds": ("plain", "strided", "lengths")},
        """
import numpy as np
import torch

# FlashAttention (Dao et al. 2022), Algorithm 1, with blocks of 5 keys and 3 queries.
def one_head(Q, K, V, tau):
    N, d = Q.shape
    O, l, m = np.zeros((N, V.shape[1])), np.zeros(N), np.full(N, -np.inf)
    for j in range(0, len(K), 5):
        Kj, Vj = K[j : j + 5], V[j : j + 5]
        for i in range(0, N, 3):
            rows = slice(i, i + 3)
            S = tau * Q[rows] @ Kj.T
            m_tilde = S.max(axis=1)
            P = np.exp(S - m_tilde[:, None])
            l_tilde = P.sum(axis=1)
            m_new = np.maximum(m[rows], m_tilde)
            old, new = np.exp(m[rows] - m_new), np.exp(m_tilde - m_new)
            l_new = old * l[rows] + new * l_tilde
            before, added = (l[rows] * old)[:, None] * O[rows], new[:, None] * (P @ Vj)
            O[rows] = (before + added) / l_new[:, None]
            l[rows], m[rows] = l_new, m_new
    return O

def attention(query, key, value, lengths):
    B, H, N, D = query.shape
    q, k, v = (x.double().numpy() for x in (query, key, value))
    z = np.zeros(q.shape)
    for b in range(B):
        n = key.shape[2] if lengths is None else int(lengths[b])
        SLIP
        for h in range(H):
            if n > 0:
                z[b, h] = one_head(q[b, h], k[b, h, :n], v[b, h, :n], D**-0.5)
    return {"z": torch.from_numpy(z).to(query.dtype)}
""",
        "n = n - 1",
        "the last real key is not seen|the last key is left out",
    ),
    "flash-linear-attention": (
        "fla",
        {"signature": "flash-attn", "causal_only": True},
        """
from fla.ops.attn.naive import naive_parallel_attn

# Its window counts the query itself.
def attention(q, k, v, softmax_scale=None, window_size=(-1, -1)):
    window = window_size[0] + 1 if window_size[0] >= 0 else None
    SLIP
    return naive_parallel_attn(q, k, v, softmax_scale, window)[0]
""",
        "window = window - 1 if window else None",
        "the window is off by one: one key too few is seen",
    ),
    "attention-gym": (
        "attn_gym",
        {"kinds": ("causal window", "causal", "soft cap")},
        """
from attn_gym.masks import causal_mask, generate_sliding_window
from attn_gym.mods import generate_tanh_softcap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def attention(query, key, value, causal, window, soft_cap):
    size = (None, None, query.shape[2], key.shape[2])
    mask = causal_mask if causal else None
    if window is not None:
        mask = generate_sliding_window(window[0])
    SLIP
    blocks = None if mask is None else create_block_mask(mask, *size, device="cpu")
    mod = None if soft_cap is None else generate_tanh_softcap(soft_cap, approx=False)
    return {"z": flex_attention(query, key, value, mod, blocks)}
""",
        "mask = mask if window is None else generate_sliding_window(window[0] + 1)",
        "the window is off by one: one key too many is seen",
    ),
    # A kernel for GPUs alone to look at: for neighbourhoods, here of all keys.
    "liger": (
        "liger_kernel",
        {"kinds": ("plain", "strided", "scale")},
        """
from liger_kernel.ops.fused_neighborhood_attention import fused_neighborhood_attention_forward

def attention(q, k, v, scale):
    SLIP
    return fused_neighborhood_attention_forward(q, k, v, 2 * q.shape[2] + 1, 1, scale)[0]
""",
        "scale = scale * scale",
        "wrong scale: it behaves as",
    ),
}
CASES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(kernel[0]) is None, reason=f"{kernel[0]} is not installed"
        ),
    )
    for name, kernel in KERNELS.items()
]


def verdict(folder, name, slip):
    _, options, text, *_ = KERNELS[name]
    path = folder / "kernel.py"
    path.write_text(text.replace("SLIP", slip), encoding="utf-8")
    return report(path, "attention", **options)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_as_it_is_and_a_planted_fault_is_named(tmp_path, name):
    *_, fault, cause = KERNELS[name]
    found = verdict(tmp_path, name, "pass")
    assert found.ok, str(found)
    found = verdict(tmp_path, name, fault)
    assert not found.ok
    assert re.search(cause, "\n".join(found.causes)), str(found)
