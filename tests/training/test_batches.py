"""What a model reads in a step, and what it should answer there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import TrainingError
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import IGNORED, Batch, causal_batch, check_corpus, masked_batch
from minibert.training.recipe import Recipe
from tests.training.counting import (
    BERT,
    CORPUS,
    PAD,
    corpus_of,
    equal,
    parts,
    place,
    shape,
    word_for_each_place,
)
from tests.training.small_runs import gpt2, masked_lm


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_for_each_place()


RECIPE = Recipe(steps=50, batch=8)


class TestMaskedBatch:
    def test_the_same_step_gives_the_same_batch_whatever_came_before(
        self, tokenizer: Tokenizer
    ) -> None:
        forwards = [masked_batch(CORPUS, BERT, RECIPE, n, tokenizer) for n in range(6)]
        torch.manual_seed(99)
        backwards = [masked_batch(CORPUS, BERT, RECIPE, n, tokenizer) for n in reversed(range(6))]
        assert all(map(equal, forwards, reversed(backwards)))
        assert not any(equal(forwards[0], other) for other in forwards[1:])
        seeded = masked_batch(CORPUS, BERT, Recipe(steps=50, batch=8, seed=1), 0, tokenizer)
        assert not equal(seeded, forwards[0])

    def test_short_steps_read_more_of_shorter_sequences(self, tokenizer: Tokenizer) -> None:
        config = shape(BERT, n_positions=160)
        for short, expected in ((0.0, {(8, 160)}), (1.0, {(32, 40), (64, 20)})):
            recipe = Recipe(steps=50, batch=8, short=short)
            batches = [masked_batch(CORPUS, config, recipe, n, tokenizer) for n in range(20)]
            assert {batch.ids.shape for batch in batches} == expected
            assert {batch.labels.shape for batch in batches} == expected
        short = masked_batch(CORPUS, BERT, Recipe(steps=50, batch=8, short=1.0), 0, tokenizer)
        assert short.ids.shape == (24, 16), "16 tokens at least"

    @pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "albert"])
    def test_every_family_reads_texts_with_labels(self, tokenizer: Tokenizer, family: str) -> None:
        config = shape(masked_lm(family), n_positions=48, pad_id=PAD)
        recipe = Recipe(steps=50, batch=8, short=0.0)
        batch = masked_batch(CORPUS, config, recipe, 0, tokenizer)
        chosen = batch.labels != IGNORED
        original = Batch(
            torch.where(chosen, batch.labels, batch.ids), batch.labels, batch.segments, batch.mask
        )
        two_texts = {parts(original, row)[1] is not None for row in range(8)}
        assert two_texts == {config.n_segments > 1}
        assert chosen.any()


class TestCausalBatch:
    def test_labels_are_the_next_ids_of_the_text(self) -> None:
        config = shape(gpt2(), n_positions=32)
        batch = causal_batch(CORPUS, config, Recipe(batch=9, repeated=0.0), 3)
        assert batch.ids.shape == (9, 32)
        assert torch.equal(batch.labels, batch.ids + 1), "ids of this corpus count up"
        assert torch.equal(batch.labels[:, :-1], batch.ids[:, 1:])
        assert batch.mask is batch.segments is batch.unrelated is None

    def test_every_stretch_of_the_text_can_come_the_last_token_too(self) -> None:
        corpus, config = corpus_of(20), shape(gpt2(), n_positions=16)
        batch = causal_batch(corpus, config, Recipe(batch=99, repeated=0.0), 0)
        assert {place(n) for n in batch.ids[:, 0].tolist()} == {0, 1, 2, 3}
        assert place(int(batch.labels.max())) == 19

    @settings(max_examples=30)
    @given(st.integers(0, 2**20), st.sampled_from([16, 31, 64]))
    def test_repeated_rows_repeat_and_only_what_is_known_is_predicted(
        self, step: int, length: int
    ) -> None:
        config = shape(gpt2(), n_positions=length)
        batch = causal_batch(CORPUS, config, Recipe(batch=7, repeated=1.0), step)
        for ids, labels in zip(batch.ids.tolist(), batch.labels.tolist(), strict=True):
            period = 1 + labels.count(IGNORED)
            assert 8 <= period <= length // 2
            assert labels[: period - 1] == [IGNORED] * (period - 1)
            assert IGNORED not in labels[period - 1 :]
            assert ids[period:] == ids[:-period]
            assert labels[period - 1 : -1] == ids[period:]
            assert labels[-1] == ids[length - period]

    @pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 2), (0.3, 2), (1.0, 8)])
    def test_the_share_of_repeated_rows_is_the_recipes(self, share: float, count: int) -> None:
        batch = causal_batch(CORPUS, shape(gpt2()), Recipe(batch=8, repeated=share), 0)
        assert int((batch.labels == IGNORED).any(1).sum()) == count
        assert batch.ids.shape == (8, 32)


class TestCheckCorpus:
    def test_one_text_longer_than_the_positions_is_enough(self) -> None:
        check_corpus(corpus_of(33, 2), gpt2(), what="texts")
        with pytest.raises(TrainingError, match=r"longest of the texts has 32 tokens.*at least 33"):
            check_corpus(corpus_of(32, 32), gpt2(), what="texts")


def test_a_batch_moves_with_all_it_has(tokenizer: Tokenizer) -> None:
    for batch in (
        masked_batch(CORPUS, BERT, RECIPE, 0, tokenizer),
        causal_batch(CORPUS, shape(gpt2()), RECIPE, 0),
    ):
        moved = batch.to(torch.device("meta"))
        for name, value in vars(batch).items():
            there = getattr(moved, name)
            assert (there is None) == (value is None)
            assert value is None or (there.device.type, there.shape) == ("meta", value.shape)
