"""tokenizer.py: text that cannot become tokens, and what the error says."""

import pytest
from vocabularies import word_piece

from minibert.errors import TokenizationError
from minibert.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    return Tokenizer.from_folder(word_piece(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "the text is empty"),
        ((["a", ""],), "text 1 of the batch is empty"),
        (([],), "batch is empty"),
        ((["a", "b", " "],), "text 2 of the batch gives no token"),
        (("\x00",), "the text gives no token"),
        (("a", " "), "the second text gives no token"),
        ((["a", "b"], ["c", "\t"]), "the second text of pair 1 of the batch gives no token"),
        ((["a", "b"], ["c"]), "2 texts and 1 in pair"),
        ((["a"], "b"), "both one str or both lists"),
        (("a", ["b"]), "both one str or both lists"),
        ((b"a",), "not bytes"),
        ((None,), "not NoneType"),
        ((["a", None],), "text 1 of the batch must be a str, not NoneType"),
        ((["a", ("b", "c")],), "text 1 of the batch must be a str, not tuple"),
        (("ab\ud800c",), r"U\+D800, at character 2"),
        ((["a", "🦙\udfff"],), r"text 1 of the batch.*U\+DFFF, at character 1"),
    ],
)
def test_text_that_gives_no_tokens_is_an_error_that_says_where(bert, arguments, message):
    with pytest.raises(TokenizationError, match=message):
        bert(*arguments)


def test_a_surrogate_is_an_error_in_encode_too(bert):
    with pytest.raises(TokenizationError, match="at character 1"):
        bert.encode("a\ud83d")


def test_a_text_over_the_limit_is_an_error_that_names_the_limit_and_the_way_out(bert):
    assert bert("a b c", max_positions=5).lengths == (5,)
    with pytest.raises(TokenizationError, match=r"6 tokens.*limit is 5.*truncate=True"):
        bert("a b c .", max_positions=5)
    with pytest.raises(TokenizationError, match="sentence 1 of the batch has 6"):
        bert(["a", "a b c ."], max_positions=5)


def test_a_limit_without_room_for_text_is_an_error(bert):
    with pytest.raises(TokenizationError, match="at least 3"):
        bert("a b c", truncate=True, max_positions=2)
    with pytest.raises(TokenizationError, match="at least 5"):
        bert("a b c", "d", truncate=True, max_positions=4)


def test_truncation_without_a_limit_is_an_error(bert):
    with pytest.raises(TokenizationError, match="max_positions"):
        bert("a", truncate=True)
