"""Surveys beside each other: heads matched by behaviour, and changes beyond their intervals.

Assignments are tried against all of them, quantiles against Student's published table.
"""

from itertools import permutations

import numpy as np
import pytest
from survey.made_surveys import DOCUMENTS, SPREAD, survey_of

from minibert.errors import SurveyError
from minibert.survey.differences import assignment, diff
from minibert.survey.intervals import layer_intervals, student_quantile, wilson

NAMES = ("entropy", "to_previous", "to_next", "to_sep", "to_self")
SHAPE = (5, 2, 3)


def drawn(shape=SHAPE, seed=7):
    return np.random.default_rng(seed).uniform(0.05, 0.9, size=shape)


def test_a_survey_beside_itself_has_no_change():
    survey = survey_of(drawn(), NAMES)
    found = diff(survey, survey)
    assert all(a == b for a, b in found.pairs)
    assert len(found.pairs) == 6
    assert not found.distance.any()
    assert not found.change.any()
    assert not found.exceeds.any()


def test_heads_that_changed_places_are_found_again():
    means = drawn()
    order = np.random.default_rng(1).permutation(6)
    shuffled = means.reshape(5, 6)[:, order].reshape(SHAPE)
    found = diff(survey_of(means, NAMES), survey_of(shuffled, NAMES))
    for (layer, head), (other_layer, other_head) in found.pairs:
        assert order[3 * other_layer + other_head] == 3 * layer + head
    assert found.moved == tuple(a != b for a, b in found.pairs)
    assert sum(found.moved) >= 2
    np.testing.assert_allclose(found.change, 0, atol=1e-15)


def test_a_change_beyond_its_interval_is_told_from_one_within():
    means = drawn()
    later = means.copy()
    # The interval by hand: the standard deviation of ±SPREAD with n - 1, for both surveys.
    half = (
        student_quantile(DOCUMENTS - 1)
        * SPREAD
        * np.sqrt(DOCUMENTS / (DOCUMENTS - 1))
        / np.sqrt(DOCUMENTS)
    )
    margin = np.sqrt(2) * half
    later[1, 1, 2] += 1.02 * margin
    later[2, 0, 1] -= 0.98 * margin
    found = diff(survey_of(means, NAMES), survey_of(later, NAMES))
    assert all(a == b for a, b in found.pairs)
    pair = found.pairs.index(((1, 2), (1, 2)))
    assert found.margin[pair, 1] == pytest.approx(margin, rel=1e-4)
    assert found.change[pair, 1] == pytest.approx(1.02 * margin, rel=1e-9)
    assert np.argwhere(found.exceeds).tolist() == [[pair, 1]]
    # The pair that differs most comes first: by the distance in standard deviations.
    deviations = np.concatenate([means.reshape(5, 6), later.reshape(5, 6)], axis=1).std(1)
    expected = {
        ((1, 2), (1, 2)): 1.02 * margin / deviations[1],
        ((0, 1), (0, 1)): 0.98 * margin / deviations[2],
    }
    for pair, distance in zip(found.pairs, found.distance, strict=True):
        assert distance == pytest.approx(expected.get(pair, 0), abs=1e-9)
    assert list(found.distance) == sorted(found.distance, reverse=True)


def test_models_of_two_sizes_are_matched_and_the_rest_is_named():
    small, large = drawn((5, 1, 3)), drawn((5, 4, 2), seed=8)
    # The heads of the small model stand in the large one as 3-1, 0-0 and 2-0.
    for number, place in enumerate([(3, 1), (0, 0), (2, 0)]):
        large[:, *place] = small[:, 0, number]
    found = diff(survey_of(small, NAMES), survey_of(large, NAMES))
    assert sorted(found.pairs) == [((0, 0), (3, 1)), ((0, 1), (0, 0)), ((0, 2), (2, 0))]
    assert found.only_a == ()
    assert found.only_b == ((0, 1), (1, 0), (1, 1), (2, 1), (3, 0))
    turned = diff(survey_of(large, NAMES), survey_of(small, NAMES))
    assert sorted((b, a) for a, b in turned.pairs) == sorted(found.pairs)
    assert turned.only_a == found.only_b


def test_a_measure_without_rows_takes_no_part_and_has_no_number():
    means = drawn()
    a = survey_of(means, NAMES, absent=["to_sep"])
    b = survey_of(means, NAMES)
    found = diff(a, b)
    assert found.matched_by.tolist() == [True, True, True, False, True]
    assert np.isnan(found.change[:, 3]).all()
    assert not found.exceeds.any()
    written = found.to_dict()
    assert written["matched_by"] == ["entropy", "to_previous", "to_next", "to_self"]
    assert written["pairs"][0]["measures"]["to_sep"]["before"] is None
    assert written["pairs"][0]["measures"]["to_self"]["exceeds"] is False


def test_surveys_that_do_not_fit_are_refused_and_the_difference_is_named():
    means = drawn()
    one = survey_of(means, NAMES)

    def refused(other: object, message: str):
        with pytest.raises(SurveyError, match=message):
            diff(one, other)

    refused(survey_of(means[:4], NAMES[:4]), r"only in A \['to_self'\], only in B none")
    corpus = {**one.manifest, "corpus": {"sha256": "other", "documents": DOCUMENTS}}
    refused(survey_of(means, NAMES, manifest=corpus), "corpus: '5eed' and 'other'")
    options = {**one.manifest, "options": {"longest": 512, "impl": "eager"}}
    refused(survey_of(means, NAMES, manifest=options), "longest: 128 and 512")
    same = np.broadcast_to(means[:, :1, :1], SHAPE)
    with pytest.raises(SurveyError, match="no measure differs between heads"):
        diff(survey_of(same, NAMES), survey_of(same, NAMES))


def cheapest(cost):
    """The least sum over every way to give each of the rows a column of its own."""
    rows, columns = cost.shape
    ways = permutations(range(columns), rows)
    return min(sum(cost[row, column] for row, column in enumerate(way)) for way in ways)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 5), (3, 7), (7, 3), (6, 6)])
def test_no_other_assignment_is_cheaper(shape):
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
def test_what_is_no_table_of_numbers_is_refused(cost):
    with pytest.raises(SurveyError, match="finite numbers"):
        assignment(cost)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_the_published_table(degrees, expected):
    assert student_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_the_interval_of_four_documents_counted_by_hand():
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


def test_wilson_gives_the_published_interval():
    # Agresti and Coull 1998, of 0 out of 10 and of 9 out of 10.
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(9, 10) == pytest.approx((0.596, 0.982), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)
