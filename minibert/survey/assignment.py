"""The cheapest way to give each row of a table a column of its own: the assignment problem."""

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError

__all__ = ["assignment"]

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def assignment(cost: Floats) -> list[tuple[int, int]]:
    """Pairs (row, column), sorted by row, with the least sum of costs; as many as the shorter side.

    No row and no column occurs twice. Exact, in O(n²·m) steps for n rows and m >= n columns: rows
    join one after the other, each by the shortest augmenting path. Raises SurveyError unless
    cost is a table of finite numbers.

    Source: Kuhn 1955, "The Hungarian method for the assignment problem"; Jonker and Volgenant 1987.
    """
    cost = np.asarray(cost, dtype=np.float64)
    if cost.ndim != 2 or not np.isfinite(cost).all():
        raise SurveyError(
            f"assignment: cost has shape {cost.shape}; expected rows and columns of finite numbers."
        )
    if cost.shape[0] > cost.shape[1]:
        return sorted((row, column) for column, row in assignment(cost.T))
    n, m = cost.shape
    of_row, of_column = np.zeros(n), np.zeros(m)
    owner = np.full(m, -1)
    for row in range(n):
        _add(cost, row, of_row, of_column, owner)
    return sorted((int(owner[column]), int(column)) for column in np.flatnonzero(owner >= 0))


def _add(cost: Floats, row: int, of_row: Floats, of_column: Floats, owner: Whole) -> None:
    """Give one more row a column; rows that have one may change theirs.

    `of_row` and `of_column` are the dual prices: cost - of_row - of_column is never below 0, and 0
    where a row has its column.
    """
    least = np.full(len(owner), np.inf)
    before = np.full(len(owner), -1)
    reached = np.zeros(len(owner), dtype=bool)
    column, length, at = -1, 0.0, row
    lengths = {row: 0.0}
    while True:
        way = length + cost[at] - of_row[at] - of_column
        shorter = ~reached & (way < least)
        least[shorter], before[shorter] = way[shorter], column
        column = int(np.where(reached, np.inf, least).argmin())
        length = float(least[column])
        if owner[column] < 0:
            break
        reached[column] = True
        at = int(owner[column])
        lengths[at] = length
    for passed, distance in lengths.items():
        of_row[passed] += length - distance
    of_column[reached] -= length - least[reached]
    while column >= 0:
        earlier = int(before[column])
        owner[column] = row if earlier < 0 else owner[earlier]
        column = earlier
