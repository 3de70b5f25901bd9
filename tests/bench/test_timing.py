"""Rounds, medians, quantiles and ratios against numbers counted by hand."""

import itertools

import pytest

from minibert.bench.result_rows import Timing, interleaved, quantile


def test_everyone_has_a_turn_a_round_and_no_round_repeats_the_order_before():
    order = list(interleaved("abc", 5))
    rounds = [order[i : i + 3] for i in range(0, 15, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert all(one != other for one, other in itertools.pairwise(rounds))
    assert order == list(interleaved("abc", 5))
    assert list(interleaved(["alone"], 2)) == ["alone", "alone"]
    assert list(interleaved([], 2)) == []


def test_quantiles_lie_between_neighbours_in_proportion():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([10.0, 0.0], 0.2) == pytest.approx(2.0)
    assert quantile([0.0, 10.0, 20.0, 30.0, 40.0], 0.8) == pytest.approx(32.0)
    assert quantile([7.0], 0.8) == 7.0


def test_a_row_has_the_median_and_the_spread_of_all_calls():
    timing = Timing([[5.0, 1.0, 2.0], [3.0, 4.0, 100.0]])
    expected = {"median_ms": 3.5, "p20_ms": 2.0, "p80_ms": 5.0, "calls": 6, "rounds": 2}
    assert timing.fields() == expected
    assert timing.divided(10).fields()["median_ms"] == 0.35


def test_a_ratio_is_of_medians_and_its_spread_is_over_rounds():
    mine, base = Timing([[2.0], [6.0], [4.0]]), Timing([[1.0], [2.0], [4.0]])
    assert mine.ratios(base) == {"ratio": 2.0, "ratio_p20": 1.4, "ratio_p80": 2.6}
    assert base.ratios(base)["ratio"] == 1


def test_noise_is_the_difference_of_even_and_odd_rounds():
    assert Timing([[1.0], [1.2], [1.0], [1.2]]).noise == pytest.approx(0.2 / 1.1)
    assert Timing([[1.0, 2.0]]).noise == 0.0
