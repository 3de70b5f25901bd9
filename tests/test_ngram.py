"""The Kneser-Ney baseline: its probabilities sum to 1 and agree with a slow one by dictionaries."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.ngram import FALLBACK, Discounts, TrigramModel, estimate_discounts
from minibert.errors import MinibertError

VOCABULARY = 11
MARK = -1
PLAIN: Sequence[Discounts] = [(0.0, 0.0, 0.0), (0.75, 0.75, 0.75), (0.75, 0.75, 0.75)]


def documents(seed: int = 0) -> list[list[int]]:
    """Two texts in which some tokens are frequent, some rare, and 10 never occurs."""
    generator = np.random.default_rng(seed)
    likely = 0.6 ** np.arange(10)
    likely /= likely.sum()
    return [generator.choice(10, size=n, p=likely).tolist() for n in (401, 83)]


class SlowModel:
    """The same formulas once more, one n-gram at a time."""

    def __init__(self, texts: Sequence[Sequence[int]], discounts: Sequence[Discounts]) -> None:
        self.discounts = discounts
        trigrams: Counter[tuple[int, ...]] = Counter()
        for text in texts:
            marked = [MARK, MARK, *text]
            trigrams.update(zip(marked, marked[1:], text, strict=False))
        in_front: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in trigrams:
            in_front[gram[1:]].add(gram[0])
        bigrams = Counter({gram: len(firsts) for gram, firsts in in_front.items()})
        unigrams = Counter(gram[1:] for gram in bigrams)
        self.counts = [unigrams, bigrams, trigrams]

    def probability(self, gram: tuple[int, ...]) -> float:
        if not gram:
            return 1 / VOCABULARY
        lower = self.probability(gram[1:])
        after = {g: c for g, c in self.counts[len(gram) - 1].items() if g[:-1] == gram[:-1]}
        if not after:
            return lower
        taken = {g: self.discounts[len(gram) - 1][min(c, 3) - 1] for g, c in after.items()}
        total = sum(after.values())
        kept = after[gram] - taken[gram] if gram in after else 0.0
        return kept / total + sum(taken.values()) / total * lower


@pytest.fixture(scope="module")
def model() -> TrigramModel:
    return TrigramModel.train(documents(), vocab_size=VOCABULARY)


def contexts() -> list[list[int]]:
    pairs = [[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)]
    return [[], *([a] for a in range(VOCABULARY)), *pairs]


def test_probabilities_sum_to_one_after_every_context_seen_or_not(model: TrigramModel) -> None:
    for context in contexts():
        found = model.distribution(context)
        assert found.shape == (VOCABULARY,)
        assert (found > 0).all()
        assert found.sum() == pytest.approx(1, abs=1e-12)


def test_it_agrees_with_dictionaries_after_every_context(model: TrigramModel) -> None:
    slow = SlowModel(documents(), [order.discounts for order in model.orders])
    for context in contexts():
        before = tuple([MARK, MARK, *context][-2:])
        wanted = [slow.probability((*before, token)) for token in range(VOCABULARY)]
        np.testing.assert_allclose(model.distribution(context), wanted, rtol=1e-12)


def test_a_loss_is_minus_the_logarithm_of_the_probability_given_what_came_before(
    model: TrigramModel,
) -> None:
    text = documents(seed=1)[1]
    wanted = [-math.log(model.distribution(text[:i])[token]) for i, token in enumerate(text)]
    np.testing.assert_allclose(model.losses(text), wanted, rtol=1e-12)


def test_kneser_ney_by_hand() -> None:
    # 0 1 0 1 2: after 0 comes 1 twice; bigrams (M 0) (0 1) (1 0) (1 2), one token before each
    # except (0 1), which follows the mark and 1.
    model = TrigramModel.train([[0, 1, 0, 1, 2]], vocab_size=4, discounts=PLAIN)
    unigrams = [2 / 4, 1 / 4, 1 / 4, 0]
    after_1 = [(1 - 0.75) / 2, 0, (1 - 0.75) / 2, 0]
    bigrams = [kept + 0.75 * lower for kept, lower in zip(after_1, unigrams, strict=True)]
    wanted = [kept + 0.75 * lower for kept, lower in zip(after_1, bigrams, strict=True)]
    # Both occurrences of (0 1) are followed by something else, so its trigrams count 1 each.
    np.testing.assert_allclose(model.distribution([0, 1]), wanted, rtol=1e-14)
    # (3 1) was never seen: the bigrams alone.
    np.testing.assert_allclose(model.distribution([3, 1]), bigrams, rtol=1e-14)


def test_discounts_by_hand() -> None:
    # 8 singles, 3 pairs, 2 triples, 1 of four: Y = 8/14.
    counts = np.array([1] * 8 + [2] * 3 + [3] * 2 + [4] + [7])
    y = 8 / 14
    wanted = (1 - 2 * y * 3 / 8, 2 - 3 * y * 2 / 3, 3 - 4 * y * 1 / 2)
    assert estimate_discounts(counts) == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize(
    "counts",
    [[5, 6, 7], [1, 1, 2], [1] * 4 + [2] + [3] * 30, [1] * 4 + [2] * 3 + [3] + [4] * 30],
    ids=["no singles", "no triples", "D2 negative", "D3 negative"],
)
def test_unusable_counts_of_counts_give_the_fallback(counts: list[int]) -> None:
    assert estimate_discounts(np.array(counts)) == FALLBACK


def test_the_largest_vocabulary_fits_into_the_keys() -> None:
    size = 2**21 - 2
    model = TrigramModel.train([[size - 1] * 3], vocab_size=size)
    assert model.losses([size - 1] * 3).max() < math.log(size)
    with pytest.raises(MinibertError, match="vocab_size is 2097151; expected 1 to 2097150"):
        TrigramModel.train([[0]], vocab_size=size + 1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no document"),
        ([[0, 1], []], "at least one token id"),
        ([[[0, 1]]], r"shape \(1, 2\)"),
        ([[0, 4]], "Token id 4 is outside the vocabulary: expected 0 to 3"),
        ([[0, -2]], "Token id -2"),
        ([[0.5]], "float64; expected whole numbers"),
    ],
)
def test_texts_that_cannot_be_counted_are_errors(texts: list[list[int]], message: str) -> None:
    with pytest.raises(MinibertError, match=message):
        TrigramModel.train(texts, vocab_size=4)


def test_reading_ids_outside_the_vocabulary_is_an_error(model: TrigramModel) -> None:
    with pytest.raises(MinibertError, match="Token id 11"):
        model.losses([0, 11])
    with pytest.raises(MinibertError, match="Token id 11"):
        model.distribution([11])
