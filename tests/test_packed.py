"""Packed batches: every sentence gives what it gives alone, and padding is never computed."""

import pytest
import torch

from minibert.layers.config import Config
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokens import Tokens
from tests.families import ARCHITECTURES, Sizes, batch, hf_model
from tests.test_model import as_tokens


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_each_sentence_gives_the_logits_of_its_real_tokens(family: str, name: str) -> None:
    model = from_transformers(hf_model(family, name, Sizes(), torch.float64))
    tokens = as_tokens(batch(family))
    padded, packed = model(tokens), model.packed(tokens)
    assert len(packed) == len(tokens)
    for row, length, ours in zip(padded, tokens.lengths, packed, strict=True):
        # A class of the whole text has no position axis; everything else is cut to its length.
        by_position = row.dim() > 0 and row.shape[0] == tokens.ids.shape[1]
        expected = row[:length] if by_position else row
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() <= 1e-10


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


def test_a_sentence_gives_the_same_alone_and_among_others() -> None:
    model = lengths_model()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 53, (length,), generator=generator) for length in (29, 1, 7, 17)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(29) < torch.tensor([[len(row)] for row in rows])
    packed = model.packed(Tokens.from_ids(ids, mask=mask))
    for row, ours in zip(rows, packed, strict=True):
        assert (ours - model(row[None])[0]).abs().max() <= 1e-6


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
