"""What each row of attention spends, by kind of key: the numbers that all measures are made of.

A row is what one query gives to all keys, and sums to 1. `RowMasses` holds, for one layer, sums of
rows over kinds of keys: never an N x N matrix. They are made in the pass of a model
(`pass_masses.py`) or from matrices that are there (`from_matrices`), and both agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from minibert.errors import AttentionError
from minibert.survey.token_kinds import RELATIONS, SegmentTokens

__all__ = [
    "OFFSETS",
    "RowMasses",
    "from_matrices",
    "joined_rows",
    "sums_of_pairs",
    "sums_of_rows",
    "visible_keys",
]

Floats = npt.NDArray[np.floating]

#: The key's position minus the query's: the offsets that every survey has.
OFFSETS = (-1, 0, 1)


@dataclass(frozen=True, eq=False)
class RowMasses:
    """The rows of one layer over the tokens of one segment, or of several one after the other.

    tokens          what is known of the tokens
    class_mass      (head, query, class): mass on the keys of each of `tokens.class_names`
    offset_mass     (head, query, offset): mass on the key at the query's position + offset
    relation_mass   (head, query, relation): mass on the keys of each of `RELATIONS`
    entropy         (head, query), in nats; None where rows are weighed by norms
    received        (head, key): the sum over queries
    profile         (head, 2n − 1), segment by segment: sums along the diagonals, from offset 1 − n
                    to n − 1; None where it was not asked for
    by_norm         the same of rows weighed by norms: each prob times ‖f(x)‖ of its key, divided
                    by the sum of the row (Kobayashi et al. 2020); None without norms
    gradient        the same of |∂L/∂α| in place of each prob α, for the loss L of the text
                    (Clark et al. 2019, §3.3); None where it was not asked for
    all_keys        (head, query): the sum of the whole row; None where it is 1
    """

    tokens: SegmentTokens
    class_mass: Floats
    offset_mass: Floats
    relation_mass: Floats
    entropy: Floats | None = None
    received: Floats | None = None
    profile: Floats | None = None
    by_norm: "RowMasses | None" = None
    offsets: tuple[int, ...] = OFFSETS
    gradient: "RowMasses | None" = None
    all_keys: Floats | None = None

    def on(self, name: str) -> Floats:
        """(head, query): mass on the keys of a class."""
        return self.class_mass[..., self.tokens.class_names.index(name)]

    def at(self, offset: int) -> Floats:
        """(head, query): mass on the key that stands so far behind the query."""
        return self.offset_mass[..., self.offsets.index(offset)]

    def related(self, name: str) -> Floats:
        """(head, query): mass on the keys of a relation."""
        return self.relation_mass[..., RELATIONS.index(name)]

    @cached_property
    def on_other_text(self) -> Floats:
        """(head, query): mass on the tokens of the other text, of tokens of either text."""
        first, second = self.on("text_0"), self.on("text_1")
        text = self.tokens.text
        return np.where(text == 0, second, np.where(text == 1, first, 0))


def from_matrices(
    probs: Floats,
    tokens: SegmentTokens,
    *,
    norms: Floats | None = None,
    offsets: Sequence[int] = OFFSETS,
    smoothing: float = 0.0,
) -> RowMasses:
    """The masses of matrices that are there, (head, query, key), of one segment; in float64.

    norms, (head, key), are ‖f(x)‖ of each key. `smoothing` s takes the entropy of (1 − s)·p + s/n,
    as Clark et al. 2019 did with 0.0001 to keep away from ln 0; here 0·ln 0 counts as 0.
    Raises AttentionError where the shapes do not fit.
    """
    probs = np.asarray(probs, dtype=np.float64)
    n = len(tokens)
    if probs.ndim != 3 or probs.shape[1:] != (n, n) or len(tokens.lengths) != 1:
        raise AttentionError(
            f"from_matrices: probs have shape {probs.shape} beside {n} tokens in "
            f"{len(tokens.lengths)} segments; expected (head, {n}, {n}) of one segment."
        )
    if norms is not None and norms.shape != (len(probs), n):
        raise AttentionError(
            f"from_matrices: norms have shape {norms.shape}; expected ({len(probs)}, {n}), one for "
            "each head and key."
        )
    weighed = None
    if norms is not None:
        rows = probs * np.asarray(norms, dtype=np.float64)[:, None, :]
        totals = rows.sum(-1, keepdims=True)
        rows = np.divide(rows, totals, out=np.zeros_like(rows), where=totals > 0)
        weighed = sums_of_rows(rows, tokens, tuple(offsets))
    flat = (1 - smoothing) * probs + smoothing / n
    logs = np.log(flat, out=np.zeros_like(flat), where=flat > 0)
    return replace(
        sums_of_rows(probs, tokens, tuple(offsets)),
        entropy=0.0 - (flat * logs).sum(-1),
        received=probs.sum(1),
        profile=np.stack([probs.trace(k, 1, 2) for k in range(1 - n, n)], axis=-1),
        by_norm=weighed,
    )


def sums_of_rows(rows: Floats, tokens: SegmentTokens, offsets: tuple[int, ...]) -> RowMasses:
    """The sums over kinds of keys of any numbers (head, query, key) of one segment."""
    n = len(tokens)
    places = np.arange(n)[:, None] + np.array(offsets)
    inside = (places >= 0) & (places < n)
    offset_mass = rows[:, np.arange(n)[:, None], places.clip(0, n - 1)] * inside
    pairs, _ = tokens.pairs
    return RowMasses(
        tokens,
        rows @ tokens.classes.astype(rows.dtype),
        offset_mass,
        sums_of_pairs(rows[:, pairs[:, 0], pairs[:, 1]], tokens),
        offsets=offsets,
        all_keys=rows.sum(-1),
    )


def joined_rows(parts: Sequence[RowMasses], tokens: SegmentTokens) -> RowMasses:
    """The sums of segments, each made by `sums_of_rows`, as those of all their `tokens`."""
    names = ("class_mass", "offset_mass", "relation_mass", "all_keys")
    joined = {name: np.concatenate([getattr(one, name) for one in parts], 1) for name in names}
    return RowMasses(tokens, **joined, offsets=parts[0].offsets)


# Every measure asks for those of a batch, and threads measure several batches side by side.
@lru_cache(maxsize=16)
def visible_keys(tokens: SegmentTokens, offsets: tuple[int, ...]) -> RowMasses:
    """How many keys of each kind each query sees, the same for every head: the head axis is 1.

    In layers with windows the tokens say theirs.
    """
    parts = []
    for number, length in enumerate(tokens.lengths):
        own = tokens.one(number)
        before, after = (length, length) if own.window is None else own.window
        seen = np.triu(np.ones((1, length, length)), -before)
        parts.append(sums_of_rows(np.tril(seen, 0 if own.causal else after), own, offsets))
    return joined_rows(parts, tokens)


def sums_of_pairs(cells: Floats, tokens: SegmentTokens) -> Floats:
    """(head, query, relation): for each query the sum over its pairs, given (head, pair)."""
    _, members = tokens.pairs
    found = np.zeros((len(members), len(cells), len(tokens)), dtype=cells.dtype)
    for own, (queries, first), sums in zip(members, tokens.queries, found, strict=True):
        if len(own):
            sums[:, queries] = np.add.reduceat(cells[:, own], first, axis=1)
    return np.moveaxis(found, 0, -1)
