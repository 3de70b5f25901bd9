"""Pages are measured only where their numbers are right. No time is asserted."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from benchmarks.pages import __main__ as program
from benchmarks.pages import browser, making
from benchmarks.pages.__main__ import Bench, summary
from benchmarks.pages.making import DEFAULT, MINIBERT, WEIGHTS, Case, Shape
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import GateError, Row

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
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


needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}; install it or set CHROMIUM"
)


@pytest.mark.browser
@needs_chromium
def test_a_wrong_number_on_a_page_of_minibert_is_caught(tmp_path, monkeypatch):
    path, case = tmp_path / "page.html", Case(MINIBERT, "head", SHAPE, DEFAULT)
    making.minibert_page("head", DEFAULT, SHAPE)(path)

    def checked() -> Row:
        # In a thread, as other tests may have Playwright running in this one.
        with sync_playwright() as playwright:
            return browser.checked(case, path, playwright, 30)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(checked).result()["max_error"] < 4e-3
        right = browser.layer

        def otherwise(shape: Shape, number: int) -> browser.Numbers:
            changed = right(shape, number).copy()
            changed[-1, 5, 2] += 0.01 * (number == SHAPE.layers - 1)
            return changed

        monkeypatch.setattr(browser, "layer", otherwise)
        with pytest.raises(GateError, match="decoded weights of 1-2 differs"):
            pool.submit(checked).result()


@pytest.mark.browser
@pytest.mark.slow
@needs_chromium
def test_both_views_of_minibert_are_measured_in_chromium(tmp_path):
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.pages", "--quick", "--rows", "minibert .* T8 "]
    done = subprocess.run(
        [*command, "--output", str(path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    nothing, *pages = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert nothing["what"] == "nothing"
    assert {(row["view"], row["holds"]) for row in pages} == {
        (view, holds) for view in ("head", "model") for holds in (DEFAULT, WEIGHTS)
    }
    for row in pages:
        assert row["ok"], row
        assert row["max_error"] <= 4e-3
        assert {"bytes", "python_s", "painted_ms", "renderer_bytes"} <= set(row)
        assert ("layer_ms" in row) == (row["view"] == "head")
        assert row["commit"]
        assert row["versions"]["chromium"]
