"""Attention between words: the sums and means of Clark et al. 2019, worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import SurveyError
from minibert.survey.probes.word_attention import check_readable, word_attention, word_traces

# [CLS] un ##real city: two words, the first of two pieces.
WORDS = (None, 0, 0, 1)
PROBS = torch.tensor(
    [
        [0.1, 0.2, 0.3, 0.4],
        [0.2, 0.1, 0.3, 0.4],
        [0.4, 0.2, 0.2, 0.2],
        [0.3, 0.3, 0.1, 0.3],
    ]
)


def test_what_is_attended_to_is_summed_over_pieces_and_what_attends_is_averaged() -> None:
    assert word_attention(PROBS, WORDS).numpy() == pytest.approx(
        np.array([[(0.4 + 0.4) / 2, (0.4 + 0.2) / 2], [0.4, 0.3]])
    )


def test_the_root_is_the_first_token_where_it_belongs_to_no_word() -> None:
    whole = word_attention(PROBS, WORDS, root=True)
    assert whole[0].tolist() == pytest.approx([0.1, 0.5, 0.4])
    assert whole[:, 0].tolist() == pytest.approx([0.1, 0.3, 0.3])
    torch.testing.assert_close(whole[1:, 1:], word_attention(PROBS, WORDS))
    torch.testing.assert_close(whole.sum(-1), torch.ones(3))
    without = word_attention(PROBS[1:, 1:], WORDS[1:], root=True)
    assert not without[0].any()
    assert not without[:, 0].any()


def test_each_head_is_its_own() -> None:
    heads = torch.stack([PROBS, PROBS.flip(-1)])
    torch.testing.assert_close(word_attention(heads, WORDS)[0], word_attention(PROBS, WORDS))


def test_a_word_without_a_token_is_refused() -> None:
    with pytest.raises(SurveyError, match="Word 1 has no token"):
        word_attention(PROBS, (None, 0, 0, 2))


def text(words: str, name: str = "a") -> SimpleNamespace:
    return SimpleNamespace(id=name, words=tuple(words.split(" ")))


def numbered(pieces: tuple[str, ...], words: tuple[str, ...]) -> list[int | None]:
    """The word that each token belongs to, found by spelling the words out."""
    numbers: list[int | None] = []
    left = list(words)
    for piece in pieces:
        if piece in ("[CLS]", "[SEP]"):
            numbers.append(None)
            continue
        letters = piece.removeprefix("##").removeprefix("Ġ")
        numbers.append(len(words) - len(left))
        assert left[0].startswith(letters)
        left[0] = left[0].removeprefix(letters)
        if not left[0]:
            left.pop(0)
    return numbers


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_every_text_comes_once_with_the_attention_it_has_alone(name: str) -> None:
    model = minibert.load(name)
    texts = [text("the horse ran unbelievably ."), text("stop !"), text("( it ( was ( here")]
    found = list(word_traces(model, iter(texts)))
    assert {one.words for one, _ in found} == {one.words for one in texts}
    for one, words in found:
        # GPT-2 has a space before the first word too, as before the others.
        alone = model.trace(" " * (name == "tiny-gpt2") + " ".join(one.words))
        numbers = numbered(alone.tokens.raw[0], one.words)
        for layer in range(model.config.n_layers):
            expected = word_attention(alone[layer].probs[0], numbers)
            torch.testing.assert_close(words.attention(layer), expected)
            assert expected.shape[-1] == len(one.words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a " * 600 + "b", "Text x has 60. tokens, more than the .* positions"),
        ("a \x01 b", r"Text x: word 1, '\\x01', becomes no token"),
    ],
)
def test_what_the_model_cannot_read_is_named_before_the_pass(words: str, message: str) -> None:
    with pytest.raises(SurveyError, match=message):
        check_readable(minibert.load(), [text("fine ."), text(words, "x")])
