"""Pages are measured only where their numbers are right. No time is asserted."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.pages import __main__ as program
from benchmarks.pages import browser, making
from benchmarks.pages.__main__ import Bench, summary
from benchmarks.pages.making import MINIBERT, WEIGHTS, Case, Shape
from minibert.bench.result_rows import GateError, Row

SHAPE = Shape(2, 3, 8)


def test_the_plan_has_every_cell_of_the_table_and_rows_can_be_chosen_by_name():
    planned = making.cases()
    assert len(planned) == len(set(planned)) == 5 * 2 * 3 - 4
    lengths = [case.shape.tokens for case in planned]
    assert lengths == sorted(lengths)
    chosen = making.cases(wanted=re.compile("BertViz .* 12x12 T64 "))
    assert [case.view for case in chosen] == ["head", "model"]
    row = summary([{"painted_ms": ms, "renderer_bytes": 7} for ms in (3, 1, 50)])
    assert (row["painted_ms"], row["painted_least_ms"], row["painted_most_ms"]) == (3, 1, 50)


def test_a_page_that_fails_is_a_row_with_the_reason_and_is_not_measured(tmp_path, monkeypatch):
    def crash(case: Case, path: Path, seconds: float) -> Row:
        raise GateError("the renderer crashed")

    monkeypatch.setattr(program, "made", crash)
    its = Bench(None, tmp_path, rounds=1)
    head, model = (its.row(Case(MINIBERT, view, SHAPE, WEIGHTS)) for view in ("head", "model"))
    assert (head["ok"], head["reason"]) == (False, "the renderer crashed")
    assert model["reason"] == "its page could not be made, or was wrong"


def test_bertviz_numbers_are_read_from_its_page_and_a_wrong_one_is_caught(tmp_path):
    weights = [one[0].tolist() for one in making.trace_of(SHAPE).attentions]
    path = tmp_path / "page.html"

    def errors() -> list[float]:
        params = {"attention": [{"name": None, "attn": weights, "left_text": ["a"]}]}
        path.write_text(f"const params = {json.dumps(params)};", encoding="utf-8")
        return browser.embedded_errors(SHAPE, path)

    assert max(errors()) < 1e-6
    weights[1][2][7][3] += 0.005
    with pytest.raises(GateError, match="weights of layer 1 differs by 5"):
        errors()
