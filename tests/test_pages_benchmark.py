"""Pages are measured only where their numbers are right. No time is asserted."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import sync_playwright

from benchmarks.pages import __main__ as program
from benchmarks.pages import browser, making
from benchmarks.pages.__main__ import Bench, summary
from benchmarks.pages.making import (
    BERTVIZ,
    DEFAULT,
    MINIBERT,
    THUMBNAILS,
    WEIGHTS,
    Case,
    Shape,
    bertviz_page,
    minibert_page,
)
from benchmarks.session import REPOSITORY
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row, version, write_rows

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SHAPE = Shape(2, 3, 8)


def page_row(program: str, view: str, tokens: int, **fields: Any) -> Row:
    about = {"what": "page", "program": program, "view": view, "layers": 12, "heads": 12}
    return {**about, "tokens": tokens, "holds": DEFAULT, "ok": True, **fields}


def test_the_plan_has_both_programs_at_every_size_and_minibert_alone_elsewhere() -> None:
    planned = making.cases()
    assert len(planned) == len(set(planned)) == 2 * (4 * 10 + 9)
    for case in planned:
        if case.program == BERTVIZ:
            views = [one.view for one in planned if one.shape == case.shape]
            assert views.count(case.view) >= 2
            assert case.view in ("head", "model")
    lengths = [case.shape.tokens for case in planned if case.shape.heads == 12]
    assert lengths == sorted(lengths)
    assert {case.holds for case in planned if case.shape.tokens == 512} == {
        DEFAULT,
        THUMBNAILS,
        WEIGHTS,
    }
    defaults = [case for case in planned if case.holds == DEFAULT]
    assert len(defaults) == 2 * 5 * 6


def test_rows_can_be_chosen_by_name() -> None:
    chosen = making.cases(wanted=re.compile("BertViz .* 24x16 T64 "))
    assert [case.view for case in chosen] == ["head", "model"]


def test_the_attention_given_is_the_softmax_of_the_vectors_given() -> None:
    query, key, _ = making.vectors(SHAPE, 1)
    scores = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) / 8
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(making.probs(SHAPE, 1).numpy(), weights, atol=1e-6)
    assert not np.allclose(making.probs(SHAPE, 0), making.probs(SHAPE, 1))


def test_some_of_the_attention_given_is_sharp_and_some_is_broad() -> None:
    largest = making.probs(Shape(1, 12, 64), 0).amax(-1).mean(-1)
    assert largest.max() > 0.5
    assert largest.min() < 0.3


def test_the_table_shows_numbers_and_reasons() -> None:
    fields = {"bytes": 2_500_000, "python_s": 0.25, "painted_ms": 123.4, "elements": 99}
    row = page_row(MINIBERT, "head", 16, **fields, problems={"hover": "no"})
    assert program.page_line(row).split()[-5:] == ["2.50", "0.25", "123", "99", "failed"]
    failed = {**row, "ok": False, "reason": "not painted after 60 s"}
    assert program.page_line(failed).endswith("not painted after 60 s")
    assert "123" not in program.page_line({**failed, "painted_ms": 123.4})


def test_a_row_is_the_median_of_its_visits() -> None:
    visits = [
        {"painted_ms": ms, "renderer_bytes": 7, "elements": 5, "problems": {}} for ms in (3, 1, 50)
    ]
    row = summary(visits)
    assert (row["painted_ms"], row["painted_least_ms"], row["painted_most_ms"]) == (3, 1, 50)
    assert row["visits"] == 3
    assert "hover_ms" not in row


def bench(folder: Path, playwright: Any = None, **options: Any) -> Bench:
    settings = {"limit": 60, "rounds": 1, "bertviz_weights": 10**7, **options}
    return Bench(playwright, folder, dict, **settings)


def test_what_would_take_minutes_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "require", lambda package: None)

    def crash(self: Bench, case: Case) -> None:
        raise GateError("the renderer crashed")

    monkeypatch.setattr(Bench, "make", crash)
    its = bench(tmp_path)
    large = its.row(Case(BERTVIZ, "model", Shape(24, 16, 512), WEIGHTS))
    assert large["reason"] == "not tried: 101 million weights, --bertviz-weights 10"
    first, second = (Case(BERTVIZ, "model", Shape(12, 12, n), WEIGHTS) for n in (16, 64))
    assert its.row(first)["reason"] == "the renderer crashed"
    assert its.row(second)["reason"] == "not tried: at 16 tokens the renderer crashed"
    other = its.row(Case(BERTVIZ, "head", Shape(12, 12, 64), WEIGHTS))
    assert other["reason"] == "the renderer crashed"


def test_an_absent_bertviz_is_a_row_with_the_reason(tmp_path: Path) -> None:
    if version("bertviz") is not None:
        pytest.skip("bertviz is installed")
    row = bench(tmp_path).row(Case(BERTVIZ, "head", SHAPE, WEIGHTS))
    assert (row["ok"], row["reason"]) == (False, "not installed")


def test_bertviz_numbers_are_read_from_its_page_and_a_wrong_one_is_caught(tmp_path: Path) -> None:
    weights = [one[0].tolist() for one in making.attention(SHAPE)]
    path = tmp_path / "page.html"

    def write() -> None:
        params = {"attention": [{"name": None, "attn": weights, "left_text": ["a"]}]}
        path.write_text(f"const params = {json.dumps(params)};", encoding="utf-8")

    write()
    assert max(browser.embedded_errors(SHAPE, path)) < 1e-6
    weights[1][2][7][3] += 0.005
    write()
    with pytest.raises(GateError, match="weights of layer 1 differs by 5"):
        browser.embedded_errors(SHAPE, path)


def test_bertviz_own_page_passes(tmp_path: Path) -> None:
    pytest.importorskip("bertviz")
    path = tmp_path / "page.html"
    bertviz_page("head", WEIGHTS, SHAPE)(path)
    assert max(browser.embedded_errors(SHAPE, path)) < 1e-6


def test_a_row_of_an_earlier_run_counts_only_when_all_was_the_same(tmp_path: Path) -> None:
    facts = dict.fromkeys(program.SAME, "same")
    rows = [{"what": "page", **facts}, {"what": "page", **facts, "commit": "x"}]
    path = tmp_path / "rows.partial.jsonl"
    write_rows([*rows, {"what": "ratio", **facts}], path)
    assert program.earlier(path, facts) == rows[:1]
    assert program.earlier(tmp_path / "absent", facts) == []


needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}; install it or set CHROMIUM"
)


def checked(case: Case, path: Path) -> Row:
    """What the gate says; in a thread, as other tests may have Playwright running in this one."""

    def check() -> Row:
        with sync_playwright() as playwright:
            return browser.checked(case, path, playwright, 30)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(check).result()


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("holds", [WEIGHTS, DEFAULT])
def test_a_wrong_number_on_a_page_of_minibert_is_caught(
    holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, case = tmp_path / "page.html", Case(MINIBERT, "head", SHAPE, holds)
    minibert_page("head", holds, SHAPE)(path)
    right = browser.probs
    assert checked(case, path)["max_error"] < 4e-3

    def otherwise(shape: Shape, layer: int) -> torch.Tensor:
        changed = right(shape, layer)
        changed[-1, 5, 2] += 0.01 * (layer == SHAPE.layers - 1)
        return changed

    monkeypatch.setattr(browser, "probs", otherwise)
    with pytest.raises(GateError, match="decoded weights of 1-2 differs"):
        checked(case, path)


@pytest.mark.browser
@pytest.mark.slow
@needs_chromium
def test_every_view_of_minibert_is_measured_in_chromium(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.pages", "--quick", "--rows", "minibert .* T8 "]
    done = subprocess.run(
        [*command, "--output", str(path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pages = {row["view"]: row for row in found if row["what"] == "page"}
    assert {row["holds"] for row in found if row["what"] == "page"} == {DEFAULT, WEIGHTS}
    assert set(pages) == {"head", "model", "map", "text", "neuron", "arithmetic"}
    for view, row in pages.items():
        assert row["ok"], row
        assert "problems" not in row, row
        assert row["max_error"] <= 4e-3
        assert row["elements"] <= 3000
        assert {"bytes", "python_s", "painted_ms", "renderer_bytes", "hover_ms"} <= set(row)
        assert ("opened_ms" in row) == (view == "model")
        assert ("layer_ms" in row) == (view != "model")
    assert "An empty page" in done.stdout
    assert all(row["commit"] and row["versions"]["chromium"] for row in found)


def test_the_table_of_the_page_on_speed_is_that_of_the_result_file_it_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (REPOSITORY / "docs" / "speed.md").read_text(encoding="utf-8")
    name = re.findall(r"\[`(pages-\S+\.jsonl)`\]", page)[0]
    assert program.main(["--table", str(REPOSITORY / "benchmarks" / "results" / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines) in page
    assert sum(", minibert, default |" in line for line in lines) == 5
    assert sum(", BertViz |" in line for line in lines) == 5
