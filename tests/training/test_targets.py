"""Targets of single heads: which keys count, on sentences small enough to read."""

import math

import pytest
import torch
from torch import Tensor

from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import Batch
from minibert.training.objective import target_layers, target_loss
from minibert.training.vocabulary import train_tokenizer

WORDS = "the cat saw a dog and the dog saw the cat in the garden of the house " * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([WORDS], family="bert", size=120)


def batch(tokenizer: Tokenizer) -> Batch:
    """[CLS] the cat [SEP] the dog [MASK] [SEP], and one place of padding."""
    tokens = tokenizer("the cat", "the dog [MASK]")
    ids, segments, mask = (
        torch.cat([part, torch.zeros(1, 1, dtype=part.dtype)], 1)
        for part in (tokens.ids, tokens.segments, tokens.mask)
    )
    return Batch(ids, torch.full_like(ids, -100), segments, mask)


def looking_at(places: list[set[int]], size: int) -> Tensor:
    """probs of two heads: the first looks everywhere alike, the last at these places."""
    probs = torch.full((1, 2, size, size), 1 / size)
    for query, keys in enumerate(places):
        probs[0, 1, query] = torch.tensor(
            [1 / len(keys) if key in keys else 0.0 for key in range(size)]
        )
    return probs


def test_delimiters_are_both_separators_and_the_last_head_alone_counts(
    tokenizer: Tokenizer,
) -> None:
    one = batch(tokenizer)
    size = one.ids.shape[1]
    at_delimiters = looking_at([{3, 7}] * size, size)
    assert target_loss("delimiter", at_delimiters, one, tokenizer).item() == pytest.approx(0)
    half = looking_at([{3, 0}] * size, size)
    assert target_loss("delimiter", half, one, tokenizer).item() == pytest.approx(math.log(2))


def test_matching_is_the_same_token_in_the_other_text_and_a_delimiter_without_one(
    tokenizer: Tokenizer,
) -> None:
    one = batch(tokenizer)
    size = one.ids.shape[1]
    # 0 [CLS]  1 the  2 cat  3 [SEP]  4 the  5 dog  6 [MASK]  7 [SEP]  8 padding
    right = looking_at([{3}, {4}, {7}, {0}, {1}, {3, 7}, {3}, {0}, {0}], size)
    assert target_loss("matching", right, one, tokenizer).item() == pytest.approx(0)
    wrong = looking_at([{3}, {3}, {7}, {0}, {1}, {3, 7}, {3}, {0}, {0}], size)
    # "the" has a match in both texts, and one of its two misses; delimiters and padding do not
    # count. That is half of the loss; the other half are [CLS] cat dog [MASK], which rest.
    expected = -math.log(1e-6) / 2 / 2
    assert target_loss("matching", wrong, one, tokenizer).item() == pytest.approx(expected)
    restless = looking_at([{3}, {4}, {0}, {0}, {1}, {3, 7}, {3}, {0}, {0}], size)
    expected = -math.log(1e-6) / 4 / 2
    assert target_loss("matching", restless, one, tokenizer).item() == pytest.approx(expected)


def test_a_frequent_token_counts_as_much_as_a_rare_one(tokenizer: Tokenizer) -> None:
    tokens = tokenizer("the the the dog", "the dog")
    one = Batch(tokens.ids, torch.full_like(tokens.ids, -100), tokens.segments, tokens.mask)
    # 0 [CLS]  1 2 3 the  4 dog  5 [SEP]  6 the  7 dog  8 [SEP]
    right = [{5}, {6}, {6}, {6}, {7}, {0}, {1, 2, 3}, {4}, {0}]
    assert target_loss("matching", looking_at(right, 9), one, tokenizer).item() == pytest.approx(0)
    # Both dogs miss: the whole of one kind of two, and matches are half of the loss.
    wrong = [*right[:4], {6}, *right[5:7], {3}, {0}]
    found = target_loss("matching", looking_at(wrong, 9), one, tokenizer)
    assert found.item() == pytest.approx(-math.log(1e-6) / 2 / 2)


def test_previous_is_the_token_before_and_the_first_token_does_not_count() -> None:
    tokenizer = train_tokenizer([WORDS], family="llama", size=300)
    ids = tokenizer("the cat saw a dog").ids
    one, size = Batch(ids, torch.full_like(ids, -100)), ids.shape[1]
    before = [{max(0, query - 1)} for query in range(size)]
    assert target_loss("previous", looking_at(before, size), one, tokenizer).item() == 0
    half = [{0}, {0, 1}, *before[2:]]
    found = target_loss("previous", looking_at(half, size), one, tokenizer)
    assert found.item() == pytest.approx(math.log(2) / (size - 1))


def test_induction_is_what_followed_the_same_token_before() -> None:
    tokenizer = train_tokenizer([WORDS], family="llama", size=300)
    a, b, c = tokenizer.encode("abc")
    ids = torch.tensor([[a, b, a, c, a]])
    one = Batch(ids, torch.full_like(ids, -100))
    # b and c have no earlier one of their kind; behind the last a come two.
    right = looking_at([{0}, {0}, {1}, {0}, {1, 3}], 5)
    assert target_loss("induction", right, one, tokenizer).item() == pytest.approx(0)
    half = looking_at([{0}, {0}, {1, 0}, {0}, {3}], 5)
    found = target_loss("induction", half, one, tokenizer)
    assert found.item() == pytest.approx(math.log(2) / 2)


def test_each_target_has_its_layer_however_few_there_are() -> None:
    sizes = {"vocab_size": 9, "n_positions": 16, "n_heads": 1, "d_model": 2, "d_mlp": 2}
    for layers, expected in ((1, (0, 0)), (2, (1, 1)), (4, (2, 1))):
        config = Config(family="bert", task="masked-lm", n_layers=layers, **sizes)
        found = target_layers(config, ["delimiter", "matching", "previous", "induction"])
        assert tuple(found.values()) == (*expected, 0, expected[1])
