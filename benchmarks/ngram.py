"""The best n-gram model of its kind, for a small neural one to be measured against.

Interpolated Kneser-Ney smoothing of trigrams (Kneser and Ney 1995) with the three discounts of
Chen and Goodman 1999, "Modified Kneser-Ney smoothing". A count is a column of a sorted table,
so that millions of tokens take seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from minibert.errors import MinibertError

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Discounts = tuple[float, float, float]

ORDER = 3
# What KenLM takes where the counts of counts give no usable discounts (Heafield et al. 2013).
FALLBACK: Discounts = (0.5, 1.0, 1.5)
# Keys of trigrams are whole numbers below (vocab_size + 1)³.
LARGEST_VOCABULARY = 2**21 - 2


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
    discounts: Discounts


class TrigramModel:
    """P(token | the two tokens before it), by interpolated modified Kneser-Ney smoothing.

    P(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v)  +  gamma(h) · P(w | h without its first token)

    c counts occurrences for trigrams, and below how many different tokens stand in front of
    the n-gram. D(c) is D1, D2 or D3 for c = 1, 2, 3 and more, estimated for each order; gamma(h)
    is what the discounts took away. Below the unigrams everything is equally likely. Each
    document starts after two marks that no document holds.
    """

    def __init__(self, vocab_size: int, orders: Sequence[Counts]) -> None:
        self.vocab_size = vocab_size
        # From unigrams to trigrams.
        self.orders = tuple(orders)

    @classmethod
    def train(
        cls,
        documents: Sequence[Any],
        *,
        vocab_size: int,
        discounts: Sequence[Discounts] | None = None,
    ) -> "TrigramModel":
        """The model of these documents, each a sequence of token ids.

        `discounts` are those of unigrams, bigrams and trigrams instead of the estimated ones;
        D1 = D2 = D3 is Kneser and Ney's own. Raises MinibertError where there is no token, or
        an id is no whole number from 0 to vocab_size - 1.
        """
        if not 0 < vocab_size <= LARGEST_VOCABULARY:
            raise MinibertError(
                f"vocab_size is {vocab_size}; expected 1 to {LARGEST_VOCABULARY} entries."
            )
        tokens = [_ids(document, vocab_size) for document in documents]
        if not tokens:
            raise MinibertError("There is no document to train on; give at least one.")
        base = vocab_size + 1
        keys = np.concatenate([_trigram_keys(ids, base) for ids in tokens])
        orders = []
        for order in range(ORDER, 0, -1):
            given = None if discounts is None else discounts[order - 1]
            grams, counts = np.unique(keys, return_counts=True)
            orders.append(_counts(grams, counts, base, given))
            # Each gram once: below, what counts is how many tokens stand in front.
            keys = grams % base ** (order - 1)
        return cls(vocab_size, orders[::-1])

    def losses(self, document: Any) -> Real:
        """-log P of each token of a document given those before it, in nats.

        Raises MinibertError for an empty document or ids outside the vocabulary.
        """
        ids = _ids(document, self.vocab_size)
        return -np.log(self._probabilities(_trigram_keys(ids, self.vocab_size + 1)))

    def distribution(self, context: Sequence[int]) -> Real:
        """P(· | context) over the vocabulary, from the last two tokens of a document so far."""
        mark = self.vocab_size
        before = [mark, mark, *context][-2:]
        if context:
            _ids(context, self.vocab_size)
        base = self.vocab_size + 1
        return self._probabilities((before[0] * base + before[1]) * base + np.arange(mark))

    def _probabilities(self, trigrams: Whole) -> Real:
        base = self.vocab_size + 1
        found = np.full(trigrams.shape, 1 / self.vocab_size)
        for order, counts in enumerate(self.orders, start=1):
            grams = trigrams % base**order
            totals = _look_up(counts.contexts, counts.totals, grams // base, absent=1.0)
            leaves = _look_up(counts.contexts, counts.leaves, grams // base, absent=1.0)
            kept = _look_up(counts.grams, counts.counts, grams, absent=0.0)
            found = kept / totals + leaves * found
        return found


def estimate_discounts(counts: npt.NDArray[Any]) -> Discounts:
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
    return cast(Discounts, found) if usable else FALLBACK


def _counts(grams: Whole, counts: Whole, base: int, discounts: Discounts | None) -> Counts:
    discounts = estimate_discounts(counts) if discounts is None else discounts
    taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
    # Grams are sorted, so those of one context are neighbours.
    contexts, starts = np.unique(grams // base, return_index=True)
    totals = np.add.reduceat(counts.astype(np.float64), starts)
    leaves = np.add.reduceat(taken, starts) / totals
    return Counts(grams, counts - taken, contexts, totals, leaves, discounts)


def _look_up(keys: Whole, values: Real, wanted: Whole, *, absent: float) -> Real:
    """The value of each wanted key, `absent` where there is none; `keys` are sorted."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], absent)


def _trigram_keys(ids: Whole, base: int) -> Whole:
    """Each token with the two before it as one number with three digits of `base`."""
    marked = np.concatenate([np.full(ORDER - 1, base - 1), ids])
    keys: Whole = (marked[:-2] * base + marked[1:-1]) * base + marked[2:]
    return keys


def _ids(document: Any, vocab_size: int) -> Whole:
    ids = np.asarray(document)
    if ids.ndim != 1 or not ids.size:
        raise MinibertError(
            f"A document has shape {ids.shape}; expected one axis with at least one token id."
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise MinibertError(f"Token ids are {ids.dtype}; expected whole numbers.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise MinibertError(
            f"Token id {low if low < 0 else high} is outside the vocabulary: "
            f"expected 0 to {vocab_size - 1}."
        )
    return ids.astype(np.int64)
