"""The batch type, ids that come from elsewhere, and a long text cut into parts."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.errors import TokenizationError
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens, columns, equal_parts


class Alphabet:
    """A vocabulary of three: a start mark, and two letters."""

    structural_ids = frozenset({0})

    def raw(self, token_id: int) -> str:
        return ("<s>", "▁a", "▁b")[token_id]

    def string(self, token_id: int) -> str:
        return ("<s>", " a", " b")[token_id]


def batch() -> Tokens:
    ids = [[0, 1, 2, 1, 2], [0, 2, 1, 9, 9], [0, 9, 9, 9, 9]]
    mask = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
    return Tokens.from_ids(ids, mask=mask, tokenizer=Alphabet())


@pytest.mark.parametrize(
    "given",
    [
        [[3, 1, 4], [1, 5, 9]],
        np.array([[3, 1, 4], [1, 5, 9]]),
        *(torch.tensor([[3, 1, 4], [1, 5, 9]], dtype=kind) for kind in (torch.int8, torch.int32)),
    ],
)
def test_ids_alone_are_tokens_of_the_first_text_in_any_form(given):
    tokens = Tokens.from_ids(given)
    assert tokens.ids.tolist() == [[3, 1, 4], [1, 5, 9]]
    assert tokens.ids.dtype is torch.int64
    assert tokens.strings == (("3", "1", "4"), ("1", "5", "9"))
    assert tokens.mask.all()
    assert not tokens.segments.any()
    assert tokens.special == ((False,) * 3,) * 2
    assert tokens.spans == tokens.words == ((None,) * 3,) * 2
    assert tokens.texts == ()
    for kind in (torch.bool, torch.int64, torch.int32):
        mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).to(kind)
        assert Tokens.from_ids(given, mask=mask).lengths == (2, 3)


def test_a_tokenizer_gives_the_strings_and_tells_which_ids_are_special():
    tokens = batch()
    assert tokens.raw == (("<s>", "▁a", "▁b", "▁a", "▁b"), ("<s>", "▁b", "▁a"), ("<s>",))
    assert tokens.strings[1] == ("<s>", " b", " a")
    assert tokens.special[1] == (True, False, False)


def test_one_sentence_of_a_batch_has_no_padding_and_keeps_its_batch_axis():
    tokens = batch()
    one = tokens[1]
    assert one.ids.tolist() == [[0, 2, 1]]
    assert one.mask.tolist() == [[True] * 3]
    assert one.raw == (tokens.raw[1],)
    assert tokens[-2].raw == one.raw
    assert tokens.lengths == (5, 3, 1) == tuple(tokens.mask.sum(dim=1).tolist())
    for i in (3, -4):
        with pytest.raises(IndexError, match="batch of 3"):
            tokens[i]


def test_tokens_move_to_a_device_whole():
    moved = batch().to("meta")
    assert {moved.ids.device.type, moved.mask.device.type, moved.segments.device.type} == {"meta"}
    assert moved.strings == batch().strings


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "empty"),
        ([[], []], "row 0"),
        (torch.zeros(0, 5, dtype=torch.long), "empty"),
        ([3, -1], "row 0, position 1 holds -1"),
        ([0.5, 1.0], "torch.float32"),
        ([True, False], "torch.bool"),
        ([[1, 2], 3], "row 1 is 3"),
        ([[1, 2], []], "row 1"),
        ([2**70], "whole numbers"),
        ("abc", "whole numbers"),
        ([[[1]]], r"is \[\[1\]\]; expected a list"),
        (torch.tensor(3), r"shape \(\)"),
    ],
)
def test_ids_that_are_no_table_of_whole_numbers_are_an_error(ids, message):
    with pytest.raises(TokenizationError, match=message):
        Tokens.from_ids(ids)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 1], r"shape \(1, 2\).*\(2, 3\)"),
        ([[1, 1, 2], [1, 1, 1]], "other values"),
        ([[1.0, 1, 0], [1, 1, 1]], "float32"),
        ([[1, 1, 1], [0, 1, 1]], "row 1"),
        ([[1, 0, 1], [1, 1, 1]], "row 0"),
        ([[1, 1, 1], [0, 0, 0]], "row 1"),
    ],
)
def test_a_mask_that_does_not_fit_or_pads_on_the_left_is_an_error(mask, message):
    with pytest.raises(TokenizationError, match=message):
        Tokens.from_ids([[3, 1, 4], [1, 5, 9]], mask=mask)


@pytest.mark.parametrize("segments", [[0, 1], [0, 0, -1], [0.0, 0.0, 1.0]])
def test_segments_that_do_not_fit_are_an_error(segments):
    with pytest.raises(TokenizationError, match="segments"):
        Tokens.from_ids([3, 1, 4], segments=segments)


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
