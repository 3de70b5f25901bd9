"""Confidence intervals, against Student's published table."""

import numpy as np
import pytest

from minibert.survey.intervals import mean_interval, student_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_the_published_table(degrees: int, expected: float) -> None:
    assert student_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_the_interval_of_four_documents_counted_by_hand() -> None:
    values = np.array([[0.2], [0.4], [0.4], [0.6]])
    found = mean_interval(4, values.sum(0), (values**2).sum(0))
    half = 3.18245 * np.sqrt(0.08 / 3 / 4)
    np.testing.assert_allclose(found, [[0.4], [0.4 - half], [0.4 + half]], atol=1e-5)


def test_too_few_documents_have_no_interval() -> None:
    assert np.isnan(mean_interval(0, np.zeros(2), np.zeros(2))).all()
    one = mean_interval(1, np.full(2, 0.3), np.full(2, 0.09))
    assert (one.mean == 0.3).all()
    assert np.isnan([one.low, one.high]).all()
