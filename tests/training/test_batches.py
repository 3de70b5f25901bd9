"""What a model reads in a step, and what it should answer there.

The ids of this corpus count up, so that each says where it comes from.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models
from torch import Tensor

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import (
    IGNORED,
    causal_batch,
    check_corpus,
    corrupt,
    masked_batch,
    pairs,
)
from minibert.training.recipe import Recipe
from minibert.training.texts import Corpus
from tests.training.small_runs import bert, gpt2

PAD, _, BEGIN, END, MASK = SPECIAL = range(5)
SENTENCE = 7
LENGTHS = (211, 149, 97)
RECIPE = Recipe(steps=50, batch=8)


def corpus_of(*lengths):
    """Documents of these lengths with a sentence every 7 tokens; each id is there once."""
    starts, firsts, begin = [], [], 0
    for length in lengths:
        firsts.append(len(starts))
        starts += range(begin, begin + max(1, length), SENTENCE)
        begin += length
    ids = torch.arange(begin) + len(SPECIAL)
    return Corpus(ids, torch.tensor(starts), torch.tensor(firsts))


CORPUS = corpus_of(*LENGTHS)


def shape(config, **changes):
    return Config(**(vars(config) | {"vocab_size": sum(LENGTHS) + len(SPECIAL)} | changes))


BERT = shape(bert(), n_positions=48)


@pytest.fixture(scope="module")
def tokenizer():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(sum(LENGTHS)))]
    backend = Backend(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    backend.add_special_tokens(names[:5])
    return Tokenizer(backend, {})


def place(token):
    return token - len(SPECIAL)


def document_of(token, corpus=CORPUS):
    return sum(place(token) >= corpus.start(n) for n in range(len(corpus.sizes))) - 1


def consecutive(ids):
    return ids == list(range(ids[0], ids[0] + len(ids)))


def parts(batch, row):
    """A and B of a row, once its special tokens and padding are seen to be right."""
    ids = batch.ids[row].tolist()
    ends = [n for n, token in enumerate(ids) if token == END]
    assert ids[0] == BEGIN
    assert ids[ends[-1] + 1 :] == [PAD] * (len(ids) - ends[-1] - 1)
    if batch.mask is not None:
        assert batch.mask[row].tolist() == [n <= ends[-1] for n in range(len(ids))]
    first, second = ids[1 : ends[0]], None
    if len(ends) > 1:
        second = ids[ends[0] + 1 : ends[1]]
        expected = [int(ends[0] < n <= ends[1]) for n in range(len(ids))]
        assert batch.segments[row].tolist() == expected
    assert len(ends) <= 2
    assert not set(first + (second or [])) & set(SPECIAL)
    return first, second


def equal(one, other):
    ours, theirs = vars(one), vars(other)
    return all(
        torch.equal(ours[k], theirs[k]) if isinstance(ours[k], Tensor) else theirs[k] is None
        for k in ours
    )


def test_the_same_step_gives_the_same_batch_whatever_came_before(tokenizer):
    forwards = [masked_batch(CORPUS, BERT, RECIPE, n, tokenizer) for n in range(6)]
    torch.manual_seed(99)
    backwards = [masked_batch(CORPUS, BERT, RECIPE, n, tokenizer) for n in reversed(range(6))]
    assert all(map(equal, forwards, reversed(backwards)))
    assert not any(equal(forwards[0], other) for other in forwards[1:])
    seeded = masked_batch(CORPUS, BERT, Recipe(steps=50, batch=8, seed=1), 0, tokenizer)
    assert not equal(seeded, forwards[0])


def test_short_steps_read_more_of_shorter_sequences(tokenizer):
    config = shape(BERT, n_positions=160)
    for short, expected in ((0.0, {(8, 160)}), (1.0, {(32, 40), (64, 20)})):
        recipe = Recipe(steps=50, batch=8, short=short)
        batches = [masked_batch(CORPUS, config, recipe, n, tokenizer) for n in range(20)]
        assert {batch.ids.shape for batch in batches} == expected
        assert {batch.labels.shape for batch in batches} == expected
    short = masked_batch(CORPUS, BERT, Recipe(steps=50, batch=8, short=1.0), 0, tokenizer)
    assert short.ids.shape == (24, 16), "16 tokens at least"


def test_labels_of_a_causal_model_are_the_next_ids_of_any_stretch_of_the_text():
    batch = causal_batch(CORPUS, shape(gpt2()), Recipe(batch=9, repeated=0.0), 3)
    assert batch.ids.shape == (9, 32)
    assert torch.equal(batch.labels, batch.ids + 1)
    assert torch.equal(batch.labels[:, :-1], batch.ids[:, 1:])
    assert batch.mask is batch.segments is batch.unrelated is None
    short = shape(gpt2(), n_positions=16)
    batch = causal_batch(corpus_of(20), short, Recipe(batch=99, repeated=0.0), 0)
    assert {place(n) for n in batch.ids[:, 0].tolist()} == {0, 1, 2, 3}
    assert place(int(batch.labels.max())) == 19


@settings(max_examples=30)
@given(st.integers(0, 2**20), st.sampled_from([16, 31, 64]))
def test_repeated_rows_repeat_and_only_what_is_known_is_predicted(step, length):
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


def test_one_text_longer_than_the_positions_is_enough():
    check_corpus(corpus_of(33, 2), gpt2(), what="texts")
    with pytest.raises(TrainingError, match=r"longest of the texts has 32 tokens.*at least 33"):
        check_corpus(corpus_of(32, 32), gpt2(), what="texts")


def drawn(tokenizer, *, seed=0, count=40, length=48, corpus=CORPUS, config=BERT, **kinds):
    """A batch of pairs, and A, B and the answer of each row."""
    generator = torch.Generator().manual_seed(seed)
    batch = pairs(corpus, config, tokenizer, count, length, generator, **kinds)
    return batch, [(*parts(batch, row), batch.unrelated[row].item()) for row in range(count)]


@settings(max_examples=20)
@given(
    st.integers(0, 2**20),
    st.sampled_from([16, 32, 48]),
    st.just(LENGTHS) | st.lists(st.integers(1, 30), min_size=2, max_size=5),
)
def test_0_means_that_the_second_text_continues_the_first(tokenizer, seed, length, lengths):
    corpus = corpus_of(*lengths)
    _, rows = drawn(tokenizer, seed=seed, length=length, corpus=corpus)
    for first, second, unrelated in rows:
        assert first
        assert consecutive(first)
        assert document_of(first[0], corpus) == document_of(first[-1], corpus)
        if second is None:
            # A short document has nothing left behind A.
            assert unrelated == IGNORED
            assert lengths is not LENGTHS
            continue
        assert consecutive(second)
        assert document_of(second[0], corpus) == document_of(second[-1], corpus)
        apart = document_of(first[0], corpus) != document_of(second[0], corpus)
        assert apart == bool(unrelated)
        assert unrelated or second[0] == first[-1] + 1
    assert lengths is not LENGTHS or {row[-1] for row in rows} == {0, 1}


def test_half_of_the_second_texts_are_from_elsewhere_and_begin_with_a_sentence(tokenizer):
    batch, rows = drawn(tokenizer, count=900)
    # Four standard deviations of a fair coin.
    assert abs(batch.unrelated.double().mean() - 0.5) <= 4 * 0.5 / 30
    starts = {int(n) for n in CORPUS.sentence_starts}
    for first, second, _ in rows:
        assert {place(first[0]), place(second[0])} <= starts
        assert len(first) % SENTENCE == 0


def test_other_texts_from_the_same_document_are_far_away(tokenizer):
    _, rows = drawn(tokenizer, same_text=1.0, length=20, count=200)
    same = [
        (first, second)
        for first, second, unrelated in rows
        if unrelated and document_of(first[0]) == document_of(second[0])
    ]
    assert len(same) > 60
    for first, second in same:
        assert not first[0] - 17 <= second[0] <= first[-1] + 1 + 17


def test_a_text_alone_has_no_answer_and_a_masked_lm_no_unrelated_pairs(tokenizer):
    batch, rows = drawn(tokenizer, alone=1.0)
    assert not batch.segments.any()
    assert all(second is None and consecutive(first) for first, second, _ in rows)
    _, related = drawn(tokenizer, config=shape(bert("masked-lm"), n_positions=48))
    assert all(second[0] == first[-1] + 1 for first, second, _ in related)
    assert {row[-1] for row in rows + related} == {IGNORED}


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_of_the_chosen_80_percent_are_masked_and_10_random(tokenizer, share):
    plain, _ = drawn(tokenizer, count=300)
    batch = corrupt(plain, BERT, share, torch.Generator().manual_seed(1), tokenizer)
    words = ~torch.isin(plain.ids, torch.tensor(SPECIAL))
    chosen = batch.labels != IGNORED
    assert torch.equal(batch.labels[chosen], plain.ids[chosen])
    assert torch.equal(batch.ids[~chosen], plain.ids[~chosen])
    # Special tokens and padding are never predicted.
    assert torch.equal(chosen & words, chosen)
    kept, masked = batch.ids == plain.ids, batch.ids == MASK
    for part, whole, wanted in (
        (chosen, words, share),
        (chosen & masked, chosen, 0.8),
        (chosen & kept, chosen, 0.1),
        (chosen & ~kept & ~masked, chosen, 0.1),
    ):
        n = int(whole.sum())
        # Four standard deviations, and one chance in 462 that a random word is the same.
        tolerance = 4 * math.sqrt(wanted * (1 - wanted) / n) + 0.001
        assert abs(int((part & whole).sum()) / n - wanted) <= tolerance
