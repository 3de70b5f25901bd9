"""The Kneser-Ney baseline gives the probabilities of the same formulas, written slowly."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from benchmarks.ngram import FALLBACK, TrigramModel, estimate_discounts

VOCABULARY, MARK = 11, -1


def documents(seed: int = 0) -> list[list[int]]:
    """Two texts in which some tokens are frequent, some rare, and 10 never occurs."""
    generator = np.random.default_rng(seed)
    likely = 0.6 ** np.arange(10)
    likely /= likely.sum()
    return [generator.choice(10, size=n, p=likely).tolist() for n in (401, 83)]


class SlowModel:
    """The same formulas once more, one n-gram at a time."""

    def __init__(self, texts: list[list[int]]) -> None:
        trigrams: Counter[tuple[int, ...]] = Counter()
        for text in texts:
            marked = [MARK, MARK, *text]
            trigrams.update(zip(marked, marked[1:], text, strict=False))
        in_front: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in trigrams:
            in_front[gram[1:]].add(gram[0])
        bigrams = Counter({gram: len(firsts) for gram, firsts in in_front.items()})
        self.counts = [Counter(gram[1:] for gram in bigrams), bigrams, trigrams]

    def probability(self, gram: tuple[int, ...]) -> float:
        if not gram:
            return 1 / VOCABULARY
        counts, lower = self.counts[len(gram) - 1], self.probability(gram[1:])
        after = {g: c for g, c in counts.items() if g[:-1] == gram[:-1]}
        if not after:
            return lower
        discounts = estimate_discounts(np.array(list(counts.values())))
        taken = {g: discounts[min(c, 3) - 1] for g, c in after.items()}
        total = sum(after.values())
        kept = after[gram] - taken[gram] if gram in after else 0.0
        return kept / total + sum(taken.values()) / total * lower


def test_probabilities_are_those_of_dictionaries_and_sum_to_one_after_every_context() -> None:
    model, slow = TrigramModel(documents(), vocab_size=VOCABULARY), SlowModel(documents())
    pairs = [[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)]
    for context in [[], *([a] for a in range(VOCABULARY)), *pairs]:
        texts = [[*context, token] for token in range(VOCABULARY)]
        found = np.exp([-model.losses(text)[-1] for text in texts])
        wanted = [slow.probability(tuple([MARK, MARK, *text][-3:])) for text in texts]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert found.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        # 8 singles, 3 pairs, 2 triples, 1 of four: Y = 8/14.
        (
            [1] * 8 + [2] * 3 + [3] * 2 + [4, 7],
            (1 - 16 / 14 * 3 / 8, 2 - 24 / 14 * 2 / 3, 3 - 32 / 14 / 2),
        ),
        ([5, 6, 7], FALLBACK),
        ([1, 1, 2], FALLBACK),
        ([1] * 4 + [2] + [3] * 30, FALLBACK),
    ],
)
def test_discounts_are_those_of_chen_and_goodman(counts: list[int], wanted: object) -> None:
    assert estimate_discounts(np.array(counts)) == pytest.approx(wanted, rel=1e-14)
