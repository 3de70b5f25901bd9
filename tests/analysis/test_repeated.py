"""Random sequences that are said twice."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import SPECIAL, VOCABULARY, SmallTokenizer

from minibert.analysis.patterns import Halves, draws_for, find_halves, repeated_ids
from minibert.errors import TokenizationError
from minibert.layers.config import Config
from minibert.loading import load
from minibert.model import Model


@settings(max_examples=25)
@given(
    length=st.integers(2, 13),
    draws=st.integers(1, 5),
    low=st.integers(0, 3),
    first=st.none() | st.just(40),
    last=st.none() | st.just(41),
    seed=st.integers(0, 9),
)
def test_each_row_is_one_sequence_of_different_allowed_ids_twice(
    length: int, draws: int, low: int, first: int | None, last: int | None, seed: int
) -> None:
    exclude = {5, 7}
    ids = repeated_ids(
        43,
        length=length,
        draws=draws,
        low=low,
        exclude=exclude,
        first=first,
        last=last,
        seed=seed,
    )
    start = int(first is not None)
    assert ids.shape == (draws, start + 2 * length + (last is not None))
    for row in ids.tolist():
        half = row[start : start + length]
        ends = [[] if end is None else [end] for end in (first, last)]
        assert row == ends[0] + half + half + ends[1]
        assert len(set(half)) == length
        assert not set(half) & {*exclude, first, last}
        assert low <= min(half)
        assert max(half) < 43
    assert find_halves(ids) == Halves(start, length)


def test_a_seed_names_the_sequences() -> None:
    assert torch.equal(repeated_ids(199, seed=3), repeated_ids(199, seed=3))
    assert not torch.equal(repeated_ids(199, seed=3), repeated_ids(199, seed=4))
    assert repeated_ids(199).shape == (100, 2 * 50)


def test_every_allowed_id_is_as_likely_as_any_other() -> None:
    n, draws, length = 11, 4001, 5
    counts = repeated_ids(n, length=length, draws=draws).flatten().bincount(minlength=n) / 2
    expected = draws * length / n
    # Five standard deviations of a hypergeometric count.
    bound = 5 * (draws * (length / n) * (1 - length / n)) ** 0.5
    assert (counts - expected).abs().max() < bound


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(TokenizationError, match=r"length=5 needs as many.* and 4 can be drawn"):
        repeated_ids(7, length=5, low=1, first=3, exclude=[5])
    for wrong in ({"length": 1}, {"draws": 0}, {"low": -1}):
        with pytest.raises(TokenizationError, match="expected a whole number"):
            repeated_ids(97, **wrong)


@pytest.mark.parametrize("row", [[1, 2, 3, 1, 2, 4], [1, 2, 1], [3, 3], [9, 8, 1, 2, 1, 2, 7]])
def test_ids_that_are_not_said_twice_are_refused(row: list[int]) -> None:
    with pytest.raises(TokenizationError, match="no sequence followed by itself"):
        find_halves(torch.tensor([row]))


def small_config(**changes: Any) -> Config:
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 2, "d_mlp": 2, "n_positions": 100}
    return Config(**({"family": "bert", "task": "none", "vocab_size": 97, **sizes} | changes))


def test_a_bert_reads_the_sequences_between_its_own_special_tokens() -> None:
    model = load()
    assert model.tokenizer is not None
    ids = draws_for(model)
    assert ids.shape == (100, 102)
    assert set(ids[:, 0].tolist()) == {model.tokenizer.cls_id}
    assert set(ids[:, -1].tolist()) == {model.tokenizer.sep_id}
    assert not set(ids[:, 1:-1].flatten().tolist()) & model.tokenizer.special_ids


def test_a_model_without_tokenizer_reads_the_sequences_alone_and_never_its_padding() -> None:
    ids = draws_for(Model(small_config(pad_id=13, vocab_size=51)))
    assert ids.shape == (100, 100)
    assert not (ids == 13).any()


def test_a_causal_model_reads_the_sequences_alone_from_its_tokenizers_vocabulary() -> None:
    model = Model(small_config(family="gpt2", causal=True, vocab_size=VOCABULARY + 40))
    model.tokenizer = SmallTokenizer()  # type: ignore[assignment]
    ids = draws_for(model)
    assert ids.shape == (100, 100)
    # Rows of the embedding beyond the tokenizer's vocabulary are no tokens.
    assert set(ids.flatten().tolist()) == set(range(VOCABULARY)) - SPECIAL


def test_a_model_with_too_few_positions_or_tokens_is_refused_with_the_way_out() -> None:
    with pytest.raises(TokenizationError, match=r"99 positions.*draws_for\(model, length=49\)"):
        draws_for(Model(small_config(n_positions=99)))
    assert draws_for(Model(small_config(n_positions=99)), length=49).shape == (100, 98)
    with pytest.raises(TokenizationError, match="length=50 needs as many different ids, and 41"):
        draws_for(Model(small_config(vocab_size=41)))
