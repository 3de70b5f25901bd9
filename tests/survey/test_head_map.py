"""Points, clusters and nearness in layers, against answers that are known without them."""

import itertools

import numpy as np
import pytest

from minibert.errors import AttentionError
from minibert.survey.distances import HeadDistances
from minibert.survey.head_map import (
    classical_scaling,
    layer_closeness,
    metric_scaling,
)


def distances_of(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points, axis=-1)


def drawn(n: int, dimensions: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dimensions))


def test_points_of_a_plane_are_recovered_up_to_rotation() -> None:
    given = distances_of(drawn(17, 2))
    for points in (classical_scaling(given), metric_scaling(given).points):
        np.testing.assert_allclose(distances_of(points), given, atol=1e-9)
    assert metric_scaling(given).stress < 1e-9


def test_the_stress_of_an_equilateral_tetrahedron_in_the_plane_is_the_known_one() -> None:
    # The best four points are a square of side a and diagonal √2·a, with Σ d·δ = Σ d²:
    # a = (2 + √2)/4, and the stress is √(Σ(d - 1)²/Σ d²).
    found = metric_scaling(1.0 - np.eye(4))
    side = (2 + np.sqrt(2)) / 4
    distances = np.array([side] * 4 + [side * np.sqrt(2)] * 2)
    expected = np.sqrt(((distances - 1) ** 2).sum() / (distances**2).sum())
    assert found.stress == pytest.approx(expected, abs=1e-6)


def test_no_step_of_smacof_makes_the_stress_larger_and_the_end_is_a_minimum() -> None:
    given = distances_of(drawn(13, 5))

    def raw(points: np.ndarray) -> float:
        return float(((distances_of(points) - given) ** 2).sum())

    course = [raw(metric_scaling(given, most_steps=n).points) for n in range(30)]
    assert all(after <= before for before, after in itertools.pairwise(course))
    end = metric_scaling(given).points
    for step in drawn(40, 26, seed=1).reshape(40, 13, 2):
        assert raw(end + 1e-3 * step) > raw(end)


def test_heads_of_one_layer_that_lie_together_are_seen() -> None:
    points = np.array([[0.0], [1.0], [7.0], [9.0]])
    mean = distances_of(points)
    found = layer_closeness(HeadDistances((2, 2), mean, mean, 5, 3))
    assert found == (1.5, (7 + 9 + 6 + 8) / 4, 1.0, 1 / 3)
    apart = layer_closeness(HeadDistances((2, 2), mean[[0, 2, 1, 3]][:, [0, 2, 1, 3]], mean, 5, 3))
    assert apart.nearest == 0.0


@pytest.mark.parametrize(
    "distances",
    [np.ones((2, 3)), np.ones((2, 2)), np.array([[0, np.nan], [np.nan, 0]]), -1 + np.eye(2)],
    ids=["not square", "not 0 to itself", "nan", "negative"],
)
def test_what_is_no_matrix_of_distances_is_refused(distances: np.ndarray) -> None:
    for function in (metric_scaling, classical_scaling):
        with pytest.raises(AttentionError, match="distances"):
            function(distances)
