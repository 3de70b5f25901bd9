"""The cheapest assignment, against trying all of them."""

from itertools import permutations

import numpy as np
import pytest

from minibert.errors import SurveyError
from minibert.survey.differences import assignment


def cheapest(cost: np.ndarray) -> float:
    """The least sum over every way to give each of the rows a column of its own."""
    rows, columns = cost.shape
    ways = permutations(range(columns), rows)
    return min(sum(cost[row, column] for row, column in enumerate(way)) for way in ways)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 5), (3, 7), (7, 3), (6, 6)])
def test_no_other_assignment_is_cheaper(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(sum(shape))
    for trial in range(20):
        cost = generator.normal(size=shape)
        if trial % 2:
            # Many equal sums.
            cost = np.rint(2 * cost)
        pairs = assignment(cost)
        rows, columns = zip(*pairs, strict=True)
        assert len(set(rows)) == len(set(columns)) == len(pairs) == min(shape)
        least = cheapest(cost if shape[0] <= shape[1] else cost.T)
        assert sum(cost[pair] for pair in pairs) == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("cost", [np.zeros(3), np.full((2, 2), np.nan), np.full((2, 2), np.inf)])
def test_what_is_no_table_of_numbers_is_refused(cost: np.ndarray) -> None:
    with pytest.raises(SurveyError, match="finite numbers"):
        assignment(cost)
