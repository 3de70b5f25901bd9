"""Confidence intervals, against Student's published table."""

import numpy as np
import pytest

from minibert.survey.intervals import layer_intervals, student_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_the_published_table(degrees: int, expected: float) -> None:
    assert student_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_the_interval_of_four_documents_counted_by_hand() -> None:
    values = np.array([[0.2], [0.4], [0.4], [0.6]])
    # Only the second layer has all four; the first has none and the third one.
    total, squares = values.sum(0), (values**2).sum(0)
    found = layer_intervals(
        np.array([0, 4, 1]),
        np.stack([0 * total, total, values[0]]),
        np.stack([0 * total, squares, values[0] ** 2]),
    )
    half = 3.18245 * np.sqrt(0.08 / 3 / 4)
    expected = [[np.nan, 0.4, 0.2], [np.nan, 0.4 - half, np.nan], [np.nan, 0.4 + half, np.nan]]
    np.testing.assert_allclose(np.stack(found)[..., 0], expected, atol=1e-5)
