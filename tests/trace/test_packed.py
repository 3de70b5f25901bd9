"""Packed batches and the statistics of a pass: every sentence gives what it gives alone.

The logits of every family and head are compared in tests/test_verification.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import EditError, TraceError
from minibert.model import from_transformers
from minibert.text.tokens import Tokens
from minibert.trace.edit import noise, zero
from tests.families import difference, hf_model
from tests.small_traces import small_trace


def test_only_real_tokens_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_trace().model
    seen = []
    layer = model.body.layers[0]
    original = layer.mlp.forward
    monkeypatch.setattr(
        layer.mlp, "forward", lambda x, *a, **k: seen.append(x.shape[:2]) or original(x, *a, **k)
    )
    ids = torch.ones(3, 11, dtype=torch.int64)
    mask = torch.arange(11) < torch.tensor([[11], [2], [5]])
    model.packed(Tokens.from_ids(ids, mask=mask))
    assert seen == [(1, 18)]


def by_numpy(probs: Any) -> dict[str, Any]:
    """The statistics of one sentence, from its matrix of each head."""
    probs = probs[0].numpy()
    length = probs.shape[-1]
    near = np.zeros((*probs.shape[:2], 2))
    for column, offset in enumerate((-1, 1)):
        for query in range(length):
            if 0 <= query + offset < length:
                near[:, query, column] = probs[:, query, query + offset]
    logs = np.log(np.where(probs > 0, probs, 1))
    # Of masked keys, whose weight is 0, none is given.
    keys = np.argsort(-probs, -1)[..., :2]
    top = np.take_along_axis(probs, keys, -1)
    missing = ((0, 0), (0, 0), (0, 2 - keys.shape[-1]))
    return {
        "top_keys": np.pad(np.where(top > 0, keys, -1), missing, constant_values=-1),
        "top_probs": np.pad(top, missing),
        "entropy": -(probs * logs).sum(-1),
        "received": probs.sum(1),
        "max_prob": probs.max(-1),
        "offset_mass": near,
        "key_mass": probs[..., [-1, 0]],
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_statistics_come_from_the_pass_and_each_text_is_read_by_itself(
    family: str, packed: bool
) -> None:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    model = from_transformers(hf_model(family, name, dtype=torch.float64))
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(2, 41, (length,), generator=generator) for length in (11, 1, 5, 13)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(13) < torch.tensor([[len(row)] for row in rows])
    want: Any = ("entropy", "received", "max_prob", ("offset_mass", (-1, 1)), ("key_mass", (-1, 0)))
    want += (("top_keys", 2), ("top_probs", 2))
    # A map of packed sentences would have cells of two of them.
    want += () if packed else (("map", 3),)
    trace = model.trace(Tokens.from_ids(ids, mask=mask), packed=packed, statistics=want)
    for index, row in enumerate(rows):
        alone, text = model.trace(row[None], statistics=(("map", 3),)), trace.text(index)
        # Every layer is computed again, with what this sentence asked for.
        again = text.rerun({"embed": lambda embed: embed})
        assert difference(text.logits, alone.logits) <= 1e-10
        for layer in range(3):
            for head in range(3):
                found = text[layer, head].probs
                assert difference(found, alone[layer, head].probs) <= 1e-10
            expected = by_numpy(alone[layer].probs)
            for statistic, numbers in expected.items():
                for each in (text, again):
                    found = getattr(each[layer].statistics, statistic)[0]
                    np.testing.assert_allclose(found.numpy(), numbers, atol=1e-10)
            entropy = text[layer, 1].statistics.entropy
            np.testing.assert_allclose(entropy[0].numpy(), expected["entropy"][1], atol=1e-10)
            assert text[layer].statistics.argmax is None
            if not packed:
                ours, wanted = text[layer].statistics.map, alone[layer].statistics.map
                assert difference(ours, wanted) <= 1e-10


def test_what_would_mix_sentences_is_refused(tmp_path: Path) -> None:
    model, texts = minibert.load(), ["the horse ran away", "a boy"]
    packed = model.trace(texts, packed=True, grad=True)
    packed.backward(packed.text(1).logits[0, -1, 7])
    refused: list[tuple[Any, str]] = [
        (lambda: packed[0].probs, r"read trace\.text\(i\)\[layer, head\]\.probs"),
        (lambda: packed[0].statistics, "has no statistics: name them when tracing"),
        (lambda: model.trace(texts, packed=True, keep=("probs",)), "keep with packed=True"),
        (
            lambda: model.trace(texts, packed=True, edit={("probs", 0): 0.1}),
            "packed sentences have no such matrix",
        ),
        (lambda: packed.rerun_each([{}], lambda x: x[:, 0, 0]), "Packed sentences are not swept"),
        (lambda: model.trace(texts, statistics=("probs",)), "a matrix; ask for it as keep"),
        (lambda: model.trace(texts, statistics=("profile",)), "'profile': a trace cannot have it"),
        (lambda: packed.grad[1].scores, "gradient of scores .*trace without packed"),
        (lambda: packed.mask, "mask of packed sentences is one each"),
        (lambda: packed.pooled, "pooled of packed sentences is one each"),
        (lambda: packed.text(1).backward(packed.text(1).logits[0, -1, 7]), "that text.. was"),
        (lambda: packed.text(1).text(0).grad, "that text.. was called on"),
        (lambda: packed.save(tmp_path / "trace"), "are not saved as one file"),
        (lambda: packed.rerun({}, keep=("probs",)), "have no matrix of all"),
        (lambda: packed.rerun({("z", 1): zero}), "and an edit of .z, 1."),
        (lambda: packed.rerun({("resid_post", 0): noise(3)}), "depends on the batch"),
        (lambda: model.trace(texts, edit={("scores", 0): noise(3)}), "depends on the batch"),
        (
            lambda: model.trace(texts, packed=True, statistics=(("key_mass", (4,)),)),
            "no key 4; expected 0 to 3",
        ),
        (lambda: model.trace(texts, statistics=(("key_mass", (-5,)),)), "no key -5"),
    ]
    for call, words in refused:
        with pytest.raises((TraceError, EditError), match=words):
            call()
    edited = model.trace(texts, packed=True).rerun({("z", 1, 0): 0.5})
    assert (edited.text(1)[1, 0].z == 0.5).all()
    alone = model.trace(texts[1], grad=True)
    alone.backward(alone.logits[0, -1, 7])
    expected = alone.grad[1].z
    found = packed.grad[1].z[:, :, -expected.shape[2] :]
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
