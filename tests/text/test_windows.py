"""A text that is cut into parts: no token is lost, and each part has its marks."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.text.tokenizer import Tokenizer
from minibert.text.windows import columns, equal_parts

WORDS = ["the", "quick", "fox", "over", "lazy", "dogs", "strawberries", "fresh", "café", "naïve"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=23).map(" ".join)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    tokenizer = minibert.load(name).tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(("name", "marks"), [("tiny-bert", 2), ("tiny-gpt2", 0)])
@given(text=texts, longest=st.integers(3, 17))
def test_equal_parts_hold_each_token_once_between_the_marks(name, marks, text, longest):
    tokens = tokenizer_of(name)(text)
    parts = [part.tolist() for part in equal_parts(tokens, longest)]
    n_text = tokens.lengths[0] - marks
    assert len(parts) == -(-n_text // (longest - marks))
    begin, end = [[0], [tokens.lengths[0] - 1]] if marks else [[], []]
    inside = [part[len(begin) : len(part) - len(end)] for part in parts]
    assert parts == [[*begin, *part, *end] for part in inside]
    assert [place for part in inside for place in part] == list(
        range(len(begin), len(begin) + n_text)
    )
    lengths = [len(part) for part in parts]
    assert max(lengths) <= min(longest, min(lengths) + 1)
    row = columns(tokens, [parts[-1]])
    assert row.ids.tolist() == [[tokens.ids[0, place].item() for place in parts[-1]]]
    assert row.strings == (tuple(tokens.strings[0][place] for place in parts[-1]),)
    assert row.texts == tokens.texts


def test_equal_parts_need_room_beside_the_marks():
    with pytest.raises(minibert.MinibertError, match=r"4 tokens .* parts of 2: 2 of each are spec"):
        equal_parts(tokenizer_of("tiny-bert")("the horse"), 2)
