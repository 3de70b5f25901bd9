"""How far one attention matrix follows each of the five patterns: the formulas.

Each score is the mean, over the rows that count, of the attention that goes where the pattern says.
Every axis of `probs` but the last two is left alone.
"""

import torch
from torch import Tensor

from minibert.analysis.pattern_kinds import KINDS
from minibert.errors import AttentionError
from minibert.quantities import Bool, Float

__all__ = [
    "delimiter_score",
    "duplicate_score",
    "induction_score",
    "next_score",
    "previous_score",
]


def previous_score(
    probs: Float[Tensor, "*lead query key"], *, rows: Bool[Tensor, "*#lead query"] | None = None
) -> Float[Tensor, "*lead"]:
    """The mean of probs[i, i - 1] over the rows i from 1 on, or over those that are True in `rows`.

    nan where no row counts. Raises AttentionError unless probs is square.

    Source: Clark et al. 2019, section 3.1, who divide by the number of all rows instead.
    """
    return _diagonal_mean(probs, KINDS["previous"].offset_in(0), rows)


def next_score(
    probs: Float[Tensor, "*lead query key"], *, rows: Bool[Tensor, "*#lead query"] | None = None
) -> Float[Tensor, "*lead"]:
    """The mean of probs[i, i + 1] over all rows i but the last, or over the True ones in `rows`.

    nan where no row counts. Raises AttentionError unless probs is square.

    Source: Clark et al. 2019, section 3.1, who divide by the number of all rows instead.
    """
    return _diagonal_mean(probs, KINDS["next"].offset_in(0), rows)


def duplicate_score(
    probs: Float[Tensor, "*lead query key"], *, length: int, start: int = 0
) -> Float[Tensor, "*lead"]:
    """The mean of probs[i, i - length] over the rows i of the second half of a repeated sequence.

    `probs` is of a sequence of `length` tokens that begins at position `start` and comes twice:
    start + length <= i < start + 2·length.
    Raises AttentionError unless probs is square and holds both halves.

    Source: Wang et al. 2022, section 3 (duplicate token heads); TransformerLens' head detector
    marks the same cells.
    """
    offset = KINDS["duplicate"].offset_in(length)
    return _diagonal_mean(probs, offset, _second_half(probs, start, length))


def induction_score(
    probs: Float[Tensor, "*lead query key"], *, length: int, start: int = 0
) -> Float[Tensor, "*lead"]:
    """The mean of probs[i, i - length + 1] over the second half, as for `duplicate_score`.

    The key is the token after the previous occurrence of token i. Raises as `duplicate_score`.

    Source: Olsson et al. 2022 (prefix matching). TransformerLens' head detector marks the same
    cells; ARENA takes the mean of the whole diagonal at offset 1 - length, which has one row of
    the first half as well.
    """
    offset = KINDS["induction"].offset_in(length)
    return _diagonal_mean(probs, offset, _second_half(probs, start, length))


def delimiter_score(
    probs: Float[Tensor, "*lead query key"],
    delimiters: Bool[Tensor, "*#lead key"],
    *,
    rows: Bool[Tensor, "*#lead query"] | None = None,
) -> Float[Tensor, "*lead"]:
    """The mean, over rows that are no delimiters themselves, of the sum of probs on `delimiters`.

    `rows` says which rows count instead. nan where none does.

    Rows of delimiters are left out: heads that look at [SEP] from everywhere spend over 90 % of
    [SEP]'s own attention on [SEP], which says nothing about other tokens.

    Source: Clark et al. 2019, section 3.2; this is the mass from other tokens of their code.
    """
    _check_square(probs)
    mass = torch.where(delimiters[..., None, :], probs, 0).sum(-1, dtype=_wide(probs))
    return mean_of_rows(mass, ~delimiters if rows is None else rows)


def _diagonal_mean(probs: Tensor, offset: int, rows: Tensor | None) -> Tensor:
    """The mean of probs[i, i + offset] over the rows that count and have such a key."""
    _check_square(probs)
    cells = probs.diagonal(offset, -2, -1)
    if rows is not None:
        first = max(0, -offset)
        rows = rows[..., first : first + cells.shape[-1]]
    return mean_of_rows(cells.to(_wide(probs)), rows)


def mean_of_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """The mean of one number a row over the rows that count; nan where none does."""
    if rows is None:
        return values.mean(-1)
    # Not a product with the mask: what stands in rows that do not count must not matter.
    return torch.where(rows, values, 0).sum(-1) / rows.sum(-1)


def _wide(probs: Tensor) -> torch.dtype:
    return torch.promote_types(probs.dtype, torch.float32)


def _second_half(probs: Tensor, start: int, length: int) -> Tensor:
    _check_square(probs)
    n = probs.shape[-2]
    if length < 2 or start < 0 or start + 2 * length > n:
        raise AttentionError(
            f"start={start}, length={length}: two halves of at least 2 tokens must fit the "
            f"{n} rows of probs."
        )
    position = torch.arange(n, device=probs.device)
    return (position >= start + length) & (position < start + 2 * length)


def _check_square(probs: Tensor) -> None:
    if probs.shape[-1] != probs.shape[-2]:
        raise AttentionError(
            f"probs has shape {tuple(probs.shape)}; expected as many keys as queries, since a "
            "pattern speaks of positions of one sequence."
        )
