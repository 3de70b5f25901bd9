"""What the rows of `make gpu` come to: ratios beside their targets, and the exit status."""

from typing import Any

import pytest
from gpu_results import row

from benchmarks.gpu import table
from benchmarks.gpu.__main__ import status


def about(rows: list[dict[str, Any]], words: str) -> table.Finding:
    (found,) = (one for one in table.findings(rows) if words in one.about)
    return found


def test_speed_is_against_the_best_other_and_flex_is_divided_by_its_own_plain() -> None:
    rows = [
        row("forward X", "plain", 2.0),
        row("forward X", "cudnn", 2.2),
        row("forward X", "flash", 3.0),
        row("flex X", "plain", 4.0),
        row("flex X", "flex", 3.8),
    ]
    found = about(rows, "forward X: speed")
    assert found.about.endswith("flex")
    assert found.value == pytest.approx(0.95)
    assert found.met is False
    assert about(rows[:3], "forward X: speed").value == pytest.approx(1.1)


def test_a_baseline_that_failed_is_no_baseline_and_without_any_there_is_no_speed() -> None:
    rows = [row("forward X", "plain", 2.0), row("forward X", "cudnn", None)]
    assert table.findings(rows) == []


@pytest.mark.parametrize(("positions", "met"), [(512, True), (2048, False)])
def test_t1_may_cost_more_where_the_text_is_short(positions: int, met: bool) -> None:
    rows = [
        row("statistics X", n, ms, positions=positions) for n, ms in (("plain", 1), ("T1", 1.12))
    ]
    assert about(rows, "T1 / plain").met is met


def test_eager_is_the_faster_of_two_ways_and_causal_asks_for_more() -> None:
    times = {"T1": 1.0, "by hand": 30.0, "eager": 50.0}
    rows = [row("eager X", name, ms, causal=True) for name, ms in times.items()]
    found = about(rows, "by hand / T1")
    assert (found.value, found.target, found.met) == (30.0, ">= 35", False)


def test_a_ratio_never_mixes_two_runs() -> None:
    monday = [row("statistics X", "plain", 1.0), row("statistics X", "T1", 1.0)]
    tuesday = [row("statistics X", "plain", 2.0, run="tuesday")]
    tuesday += [row("statistics X", "T1", 2.1, run="tuesday")]
    assert about([*monday, *tuesday], "T1 / plain").value == pytest.approx(1.05)
    failed = [row("statistics X", "plain", None, run="wednesday")]
    assert about([*monday, *failed], "T1 / plain").value == 1.0


def test_twelve_shapes_are_counted_and_bytes_and_a_million_have_their_lines() -> None:
    rows = []
    for place in range(12):
        rows += [row(f"forward {place}", "plain", 1.0)]
        rows += [row(f"forward {place}", "flash", 1.01 if place < 8 else 0.98)]
    rows += [row("statistics X", "T1", 1.0, extra_bytes_per_row=36.0)]
    rows += [row("million X", "T1", 700.0, peak_bytes=2**28)]
    count = about(rows, "as fast as the best")
    assert (count.value, count.met) == (8, True)
    assert about(rows, "bytes a row").met is True
    assert about(rows, "million").detail == "256 MiB at most"


def test_the_table_shouts_when_something_is_wrong_and_lists_what_failed() -> None:
    rows = [row("forward X", "plain", None, wrong=True, reason="z differs by 1")]
    said = table.shown(rows)
    assert said.startswith("WRONG, so trust no number below: forward X | plain")
    assert "1 rows failed" in said
    assert "z differs by 1" in said


def test_the_exit_status_follows_what_is_ours() -> None:
    assert status([]) == 0
    assert status([row("forward X", "plain", 1.0), row("forward X", "cudnn", None)]) == 0
    assert status([row("forward X", "plain", None), row("forward X", "cudnn", 1.0)]) == 1
    assert status([row("forward X", "plain", 1.0), row("f X", "T1", None, wrong=True)]) == 1
