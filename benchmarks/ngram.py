"""The best n-gram model of its kind, for a small neural one to be measured against.

Interpolated Kneser-Ney smoothing of trigrams (Kneser and Ney 1995) with the three discounts of
Chen and Goodman 1999, "Modified Kneser-Ney smoothing". A count is a column of a sorted table,
so that millions of tokens take seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

ORDER = 3
# What KenLM takes where the counts of counts give no usable discounts (Heafield et al. 2013).
FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Counts:
    """All n-grams of one order with their counts, and what each context leaves to the order below.

    grams      sorted keys; the last token is the last digit, the context the digits before it
    counts     discounted already: c - D(c)
    contexts   sorted keys of the contexts seen
    totals     sum of the counts after each context, before discounting
    leaves     gamma, the part of the probability that goes to the order below
    """

    grams: Whole
    counts: Real
    contexts: Whole
    totals: Real
    leaves: Real


class TrigramModel:
    """P(token | the two tokens before it), by interpolated modified Kneser-Ney smoothing.

    P(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v)  +  gamma(h) · P(w | h without its first token)

    c counts occurrences for trigrams, and below how many different tokens stand in front of
    the n-gram. D(c) is D1, D2 or D3 for c = 1, 2, 3 and more, estimated for each order; gamma(h)
    is what the discounts took away. Below the unigrams everything is equally likely. Each
    document starts after two marks that no document holds.
    """

    def __init__(self, documents: Sequence[Sequence[int]], *, vocab_size: int) -> None:
        """The model of these documents, whose ids are below `vocab_size`, at most 2²¹ - 2."""
        self.vocab_size, self.base = vocab_size, vocab_size + 1
        keys = np.concatenate([_trigram_keys(ids, self.base) for ids in documents])
        orders = []
        for order in range(ORDER, 0, -1):
            grams, counts = np.unique(keys, return_counts=True)
            orders.append(_counts(grams, counts, self.base))
            # Each gram once: below, what counts is how many tokens stand in front.
            keys = grams % self.base ** (order - 1)
        # From unigrams to trigrams.
        self.orders = orders[::-1]

    def losses(self, document: Sequence[int]) -> Real:
        """-log P of each token of a document given those before it, in nats."""
        trigrams = _trigram_keys(document, self.base)
        found = np.full(trigrams.shape, 1 / self.vocab_size)
        for order, counts in enumerate(self.orders, start=1):
            grams = trigrams % self.base**order
            contexts = grams // self.base
            totals = _look_up(counts.contexts, counts.totals, contexts, absent=1.0)
            leaves = _look_up(counts.contexts, counts.leaves, contexts, absent=1.0)
            kept = _look_up(counts.grams, counts.counts, grams, absent=0.0)
            found = kept / totals + leaves * found
        return -np.log(found)


def estimate_discounts(counts: npt.NDArray[Any]) -> tuple[float, ...]:
    """D1, D2 and D3 from how many n-grams occur once, twice, three and four times.

    D_k = k - (k + 1) · Y · n_{k+1} / n_k with Y = n_1 / (n_1 + 2 n_2) (Chen and Goodman 1999).
    Where that is undefined or outside 0 < D_k <= k, as few counts of counts make it: KenLM's
    0.5, 1 and 1.5.
    """
    n = [int((counts == k).sum()) for k in range(1, 5)]
    if not all(n[:3]):
        return FALLBACK
    y = n[0] / (n[0] + 2 * n[1])
    found = tuple(k - (k + 1) * y * n[k] / n[k - 1] for k in (1, 2, 3))
    usable = all(0 < discount <= k for k, discount in enumerate(found, start=1))
    return found if usable else FALLBACK


def _counts(grams: Whole, counts: Whole, base: int) -> Counts:
    taken = np.array([0.0, *estimate_discounts(counts)])[np.minimum(counts, 3)]
    # Grams are sorted, so those of one context are neighbours.
    contexts, starts = np.unique(grams // base, return_index=True)
    totals = np.add.reduceat(counts.astype(np.float64), starts)
    leaves = np.add.reduceat(taken, starts) / totals
    return Counts(grams, counts - taken, contexts, totals, leaves)


def _look_up(keys: Whole, values: Real, wanted: Whole, *, absent: float) -> Real:
    """The value of each wanted key, `absent` where there is none; `keys` are sorted."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], absent)


def _trigram_keys(ids: Sequence[int], base: int) -> Whole:
    """Each token with the two before it as one number with three digits of `base`."""
    marked = np.concatenate([np.full(ORDER - 1, base - 1), np.asarray(ids, dtype=np.int64)])
    keys: Whole = (marked[:-2] * base + marked[1:-1]) * base + marked[2:]
    return keys
