"""Real weights: MiniLM, and the GPT-2 that sorts."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from data import data_path

import minibert
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.eager import attention_probs

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "No.",
    "I see leaves fall in late autumn",
    "Time flies like an arrow; fruit flies like a banana.",
    "The strawberries, picked at dawn by seven sleepy students, were sold before noon.",
    "naïve café, 東京, 1314151",
    "Why?!",
    "At the store, I bought fresh strawberries, and then I went home to read about attention.",
]


def off(trace: Any, output: Any, real: torch.Tensor) -> float:
    """The largest difference of the hidden states and attentions, in the rows of real tokens."""
    found = 0.0
    for name in ("hidden_states", "attentions"):
        for ours, theirs in zip(getattr(trace, name), output[name], strict=True):
            assert ours.shape == theirs.shape
            rows = (ours - theirs).abs()
            rows = rows[real] if rows.dim() == 3 else rows.transpose(1, 2)[real]
            found = max(found, float(rows.max()))
    return found


@pytest.fixture(scope="module")
def minilm():
    return data_path("models", "all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def trace(minilm):
    return minibert.load(minilm).trace(SENTENCES)


@torch.no_grad()
def test_minilm_gives_every_hidden_state_and_attention_of_transformers(minilm, trace):
    """Rows of padding in double precision alone: [PAD] stands where the weights never had it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    mask = inputs["attention_mask"].bool()
    assert torch.equal(trace.tokens.ids, inputs["input_ids"])
    assert torch.equal(trace.tokens.mask, mask)
    assert len(set(trace.tokens.lengths)) >= 8
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    asked = {"output_hidden_states": True, "output_attentions": True}
    output = theirs(**inputs, **asked)
    assert off(trace, output, mask) <= 1e-5
    assert (trace.pooled - output.pooler_output).abs().max() <= 1e-5
    ours = minibert.load(minilm, dtype=torch.float64).trace(trace.tokens)
    assert off(ours, theirs.double()(**inputs, **asked), torch.ones_like(mask)) <= 1e-10


def test_minilm_gives_the_published_cosines(minilm, trace):
    real = trace.tokens.mask[:3, :, None]
    mean = (trace.hidden[:3] * real).sum(1) / real.sum(1)
    unit = mean / mean.norm(dim=-1, keepdim=True)
    cosines = [round((unit[a] @ unit[b]).item(), 4) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert cosines == [0.6660, 0.1046, 0.1411]


def test_the_sorter_sorts_all_729():
    model = minibert.load(data_path("models", "minigpt-nano-sort"))
    given = list(itertools.product(range(3), repeat=6))
    ids = torch.tensor(given)
    for _ in range(6):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    sorted_ids = [tuple(row) for row in ids[:, 6:].tolist()]
    assert sorted_ids == [tuple(sorted(row)) for row in given]


def test_softmax_of_the_scores_of_the_real_gpt2_is_its_attention():
    """Numbers of TransformerExplainer; queries and keys of gpt2 are in tests/kernels."""
    with np.load(data_path("refs", "gpt2__te0.npz"), allow_pickle=False) as arrays:
        raw, scores, expected = (
            torch.from_numpy(arrays[name]) for name in ("scores", "scores_scaled", "attn")
        )
    ids = torch.zeros(1, scores.shape[-1], dtype=torch.long)
    rows = AllowedKeys.of(None, causal=True, ids=ids).rows()
    assert (attention_probs(scores, rows) - expected).abs().max() <= 1e-6
    allowed = AllowedKeys.of(None, causal=True, ids=ids).full()
    off = (raw / 8 - scores)[:, :, allowed[0, 0]].abs().max()
    assert off <= 1e-5 * raw.abs().max(), "the scale of gpt2 is 1 / sqrt(64)"
