"""Packed batches and the statistics of a pass: every sentence gives what it gives alone.

The logits of every family and head are compared in tests/test_model.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import noise, zero
from tests.families import difference, hf_model


def lengths_model() -> Model:
    config = Config(
        family="bert",
        task="masked-lm",
        vocab_size=53,
        n_positions=29,
        n_layers=2,
        n_heads=3,
        d_model=15,
        d_mlp=23,
        n_segments=2,
        pad_id=0,
    )
    return Model.from_config(config, seed=3)


def test_only_real_tokens_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lengths_model()
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
    return {
        "entropy": -(probs * logs).sum(-1),
        "received": probs.sum(1),
        "max_prob": probs.max(-1),
        "offset_mass": near,
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_statistics_come_from_the_pass_and_each_text_is_read_by_itself(
    family: str, packed: bool
) -> None:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    model = Model.from_transformers(hf_model(family, name, dtype=torch.float64))
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(2, 41, (length,), generator=generator) for length in (11, 1, 5, 13)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(13) < torch.tensor([[len(row)] for row in rows])
    want = ("entropy", "received", "max_prob", ("offset_mass", (-1, 1)))
    trace = model.trace(Tokens.from_ids(ids, mask=mask), packed=packed, statistics=want)
    for index, row in enumerate(rows):
        alone, text = model.trace(row[None]), trace.text(index)
        assert difference(text.logits, alone.logits) <= 1e-10
        for layer in range(3):
            for head in range(3):
                found = text[layer, head].probs
                assert difference(found, alone[layer, head].probs) <= 1e-10
            expected = by_numpy(alone[layer].probs)
            for statistic, numbers in expected.items():
                found = getattr(text[layer].statistics, statistic)[0]
                np.testing.assert_allclose(found.numpy(), numbers, atol=1e-10, err_msg=statistic)
            entropy = text[layer, 1].statistics.entropy
            np.testing.assert_allclose(entropy[0].numpy(), expected["entropy"][1], atol=1e-10)
            assert text[layer].statistics.argmax is None


@pytest.mark.parametrize("packed", [False, True])
def test_keys_are_counted_in_each_sentence(packed: bool) -> None:
    model, texts = minibert.load(), ["the horse ran away", "a boy"]
    trace = model.trace(texts, packed=packed, statistics=(("key_mass", (-1, 0, -4)),))
    for index, text in enumerate(texts):
        alone = model.trace(text)
        for layer in range(4):
            found = trace.text(index)[layer].statistics.key_mass
            expected = alone[layer].probs[..., [-1, 0, -4]]
            assert difference(found, expected) <= 1e-6
            again = trace.text(index).rerun({})
            assert difference(again[layer].statistics.key_mass, expected) <= 1e-6


def test_the_map_of_a_shorter_sentence_is_that_of_it_alone() -> None:
    model, texts = minibert.load(), ["the horse ran away from the boy", "a boy walked"]
    trace = model.trace(texts, statistics=(("map", 3), "entropy"))
    for index, text in enumerate(texts):
        alone = model.trace(text, statistics=(("map", 3),))
        for layer in range(4):
            found = trace.text(index)[layer].statistics
            assert difference(found.map, alone[layer].statistics.map) <= 1e-6
            assert found.entropy is not None


def test_what_packed_sentences_do_not_have_is_an_error() -> None:
    model = lengths_model()
    tokens = Tokens.from_ids(torch.ones(2, 5, dtype=torch.int64))
    trace = model.trace(tokens, packed=True)
    with pytest.raises(minibert.TraceError, match=r"read trace\.text\(i\)\[layer, head\]\.probs"):
        _ = trace[0].probs
    with pytest.raises(minibert.TraceError, match="has no statistics: name them when tracing"):
        _ = trace[0].statistics
    with pytest.raises(minibert.TraceError, match="keep with packed=True"):
        model.trace(tokens, packed=True, keep=("probs",))
    with pytest.raises(minibert.EditError, match="packed sentences have no such matrix"):
        model.trace(tokens, packed=True, edit={("probs", 0): 0.1})
    with pytest.raises(minibert.EditError, match="Packed sentences are not swept"):
        trace.rerun_each([{}], lambda logits: logits[:, 0, 0])
    with pytest.raises(minibert.TraceError, match="that is a matrix; ask for it as keep"):
        model.trace(tokens, statistics=("probs",))
    with pytest.raises(minibert.TraceError, match="'profile': a trace has none of it"):
        model.trace(tokens, statistics=("profile",))
    edited = trace.rerun({("z", 1, 0): 0.5})
    assert (edited.text(1)[1, 0].z == 0.5).all()


def test_what_would_mix_sentences_is_refused(tmp_path: Path) -> None:
    model, texts = minibert.load(), ["the horse ran away", "a boy"]
    packed = model.trace(texts, packed=True, grad=True)
    packed.backward(packed.text(1).logits[0, -1, 7])
    refused = [
        lambda: packed.grad[1].scores,
        lambda: packed.mask,
        lambda: packed.pooled,
        lambda: packed[1].product(0),
        lambda: packed.text(1).backward(packed.text(1).logits[0, -1, 7]),
        lambda: packed.save(tmp_path / "trace"),
        lambda: packed.rerun({}, keep=("probs",)),
        lambda: packed.rerun({("z", 1): zero}),
        lambda: packed.rerun({("resid_post", 0): noise(3)}),
        lambda: model.trace(texts, edit={("scores", 0): noise(3)}),
        lambda: model.trace(texts, packed=True, statistics=(("key_mass", (4,)),)),
        lambda: model.trace(texts, statistics=(("key_mass", (-5,)),)),
    ]
    for call in refused:
        with pytest.raises((TraceError, EditError)):
            call()
    alone = model.trace(texts[1], grad=True)
    alone.backward(alone.logits[0, -1, 7])
    expected = alone.grad[1].z
    found = packed.grad[1].z[:, :, -expected.shape[2] :]
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
