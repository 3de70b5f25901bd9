"""Pairs of texts for a masked LM, and the tokens that it has to guess."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import IGNORED, Batch, Kinds, corrupt, pairs
from minibert.training.texts import Corpus
from tests.training.counting import (
    BERT,
    CORPUS,
    MASK,
    SENTENCE,
    SPECIAL,
    corpus_of,
    document_of,
    parts,
    place,
    shape,
    word_for_each_place,
)
from tests.training.small_runs import bert


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_for_each_place()


def consecutive(ids: list[int]) -> bool:
    return ids == list(range(ids[0], ids[0] + len(ids)))


def draw_pairs(
    tokenizer: Tokenizer,
    *,
    seed: int = 0,
    count: int = 40,
    length: int = 48,
    corpus: Corpus = CORPUS,
    config: Config = BERT,
    **kinds: float,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return pairs(corpus, config, tokenizer, count, length, generator, Kinds(**kinds))


class TestPairs:
    @settings(max_examples=20)
    @given(st.integers(0, 2**20), st.sampled_from([16, 32, 48]))
    def test_0_means_that_the_second_text_continues_the_first(
        self, tokenizer: Tokenizer, seed: int, length: int
    ) -> None:
        batch = draw_pairs(tokenizer, seed=seed, length=length)
        assert batch.unrelated is not None
        seen = set()
        for row, unrelated in enumerate(batch.unrelated.tolist()):
            first, second = parts(batch, row)
            assert second
            assert consecutive(first)
            assert consecutive(second)
            assert document_of(first[0]) == document_of(first[-1])
            assert document_of(second[0]) == document_of(second[-1])
            if unrelated:
                assert document_of(first[0]) != document_of(second[0])
            else:
                assert second[0] == first[-1] + 1
                assert document_of(first[0]) == document_of(second[0])
            seen.add(unrelated)
        assert seen == {0, 1}

    def test_half_of_the_second_texts_are_from_elsewhere(self, tokenizer: Tokenizer) -> None:
        unrelated = draw_pairs(tokenizer, count=900).unrelated
        assert unrelated is not None
        # Four standard deviations of a fair coin.
        assert abs(unrelated.double().mean() - 0.5) <= 4 * 0.5 / 30

    def test_the_first_text_is_whole_sentences_where_there_is_room(
        self, tokenizer: Tokenizer
    ) -> None:
        starts = {int(n) for n in CORPUS.sentence_starts}
        batch = draw_pairs(tokenizer)
        for row in range(40):
            first, second = parts(batch, row)
            assert second is not None
            assert place(first[0]) in starts
            assert place(second[0]) in starts
            assert len(first) % SENTENCE == 0

    def test_other_texts_from_the_same_document_are_far_away(self, tokenizer: Tokenizer) -> None:
        batch = draw_pairs(tokenizer, same_text=1.0, length=20, count=200)
        assert batch.unrelated is not None
        same = 0
        for row in batch.unrelated.nonzero()[:, 0].tolist():
            first, second = parts(batch, row)
            assert second is not None
            if document_of(first[0]) == document_of(second[0]):
                same += 1
                assert not first[0] - 17 <= second[0] <= first[-1] + 1 + 17
        assert same > 60

    def test_alone_there_is_one_text_and_no_answer(self, tokenizer: Tokenizer) -> None:
        batch = draw_pairs(tokenizer, alone=1.0)
        assert batch.unrelated is not None
        assert batch.segments is not None
        assert set(batch.unrelated.tolist()) == {IGNORED}
        assert not batch.segments.any()
        for row in range(40):
            first, second = parts(batch, row)
            assert second is None
            assert consecutive(first)

    def test_a_masked_lm_has_no_unrelated_pairs(self, tokenizer: Tokenizer) -> None:
        batch = draw_pairs(tokenizer, config=shape(bert("masked-lm"), n_positions=48))
        assert batch.unrelated is not None
        assert set(batch.unrelated.tolist()) == {IGNORED}
        for row in range(40):
            first, second = parts(batch, row)
            assert second is not None
            assert second[0] == first[-1] + 1

    @settings(max_examples=20)
    @given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(0, 99))
    def test_documents_shorter_than_the_length_are_read_too(
        self, tokenizer: Tokenizer, lengths: list[int], seed: int
    ) -> None:
        corpus = corpus_of(*lengths)
        batch = draw_pairs(tokenizer, corpus=corpus, seed=seed, count=20)
        assert batch.unrelated is not None
        for row, unrelated in enumerate(batch.unrelated.tolist()):
            first, second = parts(batch, row)
            assert first
            assert consecutive(first)
            if second is None:
                assert unrelated == IGNORED
                continue
            assert second
            apart = document_of(first[0], corpus) != document_of(second[0], corpus)
            assert apart == bool(unrelated)


class TestCorrupt:
    def batch(self, tokenizer: Tokenizer, share: float) -> tuple[Batch, Batch]:
        plain = draw_pairs(tokenizer, count=300)
        generator = torch.Generator().manual_seed(1)
        return plain, corrupt(plain, BERT, share, generator, tokenizer)

    def test_labels_are_the_original_ids_and_the_rest_is_untouched(
        self, tokenizer: Tokenizer
    ) -> None:
        plain, batch = self.batch(tokenizer, 0.2)
        chosen = batch.labels != IGNORED
        assert torch.equal(batch.labels[chosen], plain.ids[chosen])
        assert torch.equal(batch.ids[~chosen], plain.ids[~chosen])

    def test_special_tokens_and_padding_are_never_predicted(self, tokenizer: Tokenizer) -> None:
        plain, batch = self.batch(tokenizer, 1.0)
        special = torch.isin(plain.ids, torch.tensor(SPECIAL))
        assert torch.equal(batch.labels == IGNORED, special)

    @pytest.mark.parametrize("share", [0.15, 0.5])
    def test_of_the_chosen_80_percent_are_masked_and_10_random(
        self, tokenizer: Tokenizer, share: float
    ) -> None:
        plain, batch = self.batch(tokenizer, share)
        words = ~torch.isin(plain.ids, torch.tensor(SPECIAL))
        chosen = batch.labels != IGNORED
        kept = batch.ids == plain.ids
        masked = batch.ids == MASK
        expected = (
            (chosen, words, share),
            (chosen & masked, chosen, 0.8),
            (chosen & kept, chosen, 0.1),
            (chosen & ~kept & ~masked, chosen, 0.1),
        )
        for part, whole, wanted in expected:
            n = int(whole.sum())
            # Four standard deviations, and one chance in 462 that a random word is the same.
            tolerance = 4 * math.sqrt(wanted * (1 - wanted) / n) + 0.001
            assert abs(int((part & whole).sum()) / n - wanted) <= tolerance
