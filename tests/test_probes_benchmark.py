"""The committed results of the probes say what is claimed of them, and their figure is drawn."""

from pathlib import Path

import pytest

from benchmarks.probes import draw
from benchmarks.session import RESULTS
from minibert.bench.result_rows import Row, read_rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    paths = sorted(RESULTS.glob("probes-*.jsonl"))
    if not paths:
        pytest.skip("no results of the probes are committed; run python -m benchmarks.probes")
    return read_rows(paths[-1])


def scores(rows: list[Row], probe: str, on: str) -> list[Row]:
    found = [row["scores"] for row in rows if (row["probe"], row["on"]) == (probe, on)]
    if not found:
        pytest.skip(f"no row of the {probe} probe is committed; run python -m benchmarks.probes")
    return found[0]


def test_ten_relations_and_more_have_a_head_surely_better_than_any_distance(
    rows: list[Row],
) -> None:
    relations = scores(rows, "dependency", "EWT test")
    better = [one["relation"] for one in relations if one["low"] > one["offset_accuracy"]]
    assert len(relations) >= 20
    assert len(better) >= 10


def test_attention_alone_beats_branching_distances_and_random_weights_clearly(
    rows: list[Row],
) -> None:
    found = {one["name"]: one["score"] for one in scores(rows, "parser", "EWT test")}
    attention = found.pop("attention")
    with_words = found.pop("attention and words")
    assert attention > found.pop("next word (right-branching)") + 0.1
    assert attention > found.pop("previous word (left-branching)") + 0.1
    assert attention > found.pop("distances") + 0.1
    assert attention > found.pop("attention of random weights") + 0.1
    assert with_words > max(attention, *found.values()) + 0.05


def test_the_figure_has_a_bar_for_every_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "probes.svg"
    ways = [{"name": "distances", "score": 0.234}, {"name": "attention", "score": 0.567}]
    draw([{"probe": "parser", "model": "a model", "on": "some text", "scores": ways}], path)
    drawn = path.read_text()
    # The published score of attention is a mark; of distances without words there is none.
    expected = ("distances", "attention", "23", "57", "a model, some text", "Clark et al.")
    for written in expected:
        assert written in drawn
