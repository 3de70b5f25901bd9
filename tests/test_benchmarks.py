"""The benchmarks measure what is right and say what is not. No time is asserted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import loading, models, spine
from benchmarks.cases import TOLERANCE, Case, Implementation, Prepared, Shape, attempt
from benchmarks.contenders import CONTENDERS, REFERENCE
from benchmarks.session import REPOSITORY
from minibert.bench import clock
from minibert.bench.gate import GateError

SHAPE = Shape("bert-quick", 2, 7)


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def broken(case: Case) -> Prepared:
    raise RuntimeError("/opt/some/place/file.py cannot be read")


def wrong(case: Case) -> Prepared:
    model = case.minibert(torch.float32, None)
    return Prepared(lambda ids: model(ids) + 1e-3, lambda logits: {"logits": logits})


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows of two real contenders, two turns each, and of two that must fail."""
    entered = [one for one in CONTENDERS if one.name in (REFERENCE, "minibert full trace")]
    failing = [
        Implementation("broken", "logits", broken),
        Implementation("wrong", "logits", wrong),
    ]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(clock, "MOST_CALLS", 1)
        found = list(models.measure("bert-quick", [SHAPE], [*entered, *failing], 2))
    return {row["implementation"]: row for row in found}


@pytest.mark.parametrize("model", ["bert-quick", "gpt2-quick"])
def test_every_contender_that_is_installed_passes_the_gate(model: str, tmp_path: Path) -> None:
    with torch.no_grad():
        case = Case(model, tmp_path)
        entered = [one for one in CONTENDERS if one.applies(Shape(model, 1, 5))]
        built = {one.name: attempt(one.prepare, case) for one in entered}
        given = models.ids(case, Shape(model, 1, 5))
        verdicts = models.judged(case, given, entered, built)
    assert list(verdicts) == [one.name for one in entered]
    for row in verdicts.values():
        assert row["ok"] or row["reason"] == "not installed", row


def test_a_row_has_its_shape_speed_memory_error_and_work(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["minibert full trace"]
    assert (row["model"], row["batch"], row["position"]) == ("bert-quick", 2, 7)
    assert 0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"]
    assert row["rounds"] == row["calls"] == 2
    # Query, key, value and z of 3 layers of 2 x 7 x 64 numbers are held when the call returns.
    assert row["peak_bytes"] >= 4 * 3 * 2 * 7 * 64 * 4
    assert row["max_error"] <= TOLERANCE
    assert {"logits", "hidden", "probs"} == set(row["errors"])
    assert rows[REFERENCE]["ratio"] == 1
    # 2 x 14 tokens x (3 layers x 32768 weights + 997 x 64 + 64²) + 4 x 3 x 2 x 7² x 64.
    assert row["flop"] == 28 * (3 * 32768 + 997 * 64 + 64 * 64) + 12 * 2 * 49 * 64


@pytest.mark.parametrize(
    ("name", "reason"),
    [("wrong", "logits differs"), ("broken", "RuntimeError: <path>")],
)
def test_a_failure_is_a_row_with_its_reason_and_no_speed(
    rows: dict[str, dict[str, Any]], name: str, reason: str
) -> None:
    assert not rows[name]["ok"]
    assert rows[name]["reason"].startswith(reason)
    assert "median_ms" not in rows[name]


def test_lossy_matmul_is_set_during_the_calls_only() -> None:
    from benchmarks.contenders import lossy_matmul

    before = torch.backends.mkldnn.matmul.fp32_precision
    with lossy_matmul():
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_a_loader_that_answers_otherwise_than_transformers_has_no_speed() -> None:
    def note(peak: int, *logits: float) -> dict[str, Any]:
        points = {point: {"seconds": 1.0, "peak": peak} for point in loading.POINTS}
        return {**points, "logits": list(logits)}

    notes: dict[str, Any] = {
        "torch": [note(100)],
        "transformers": [note(400, 1.0, 2.0)],
        "minibert": [note(200, 1.0, 2.001)],
        "transformer_lens": "not installed",
    }
    rows = {row["implementation"]: row for row in loading.summary(notes, 150)}
    assert rows["transformers"]["peak_to_weights"] == 2
    assert rows["minibert"]["reason"].startswith("logits differ")
    assert rows["transformer_lens"]["reason"] == "not installed"


def test_a_program_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(loading.PROGRAMS, "torch", "raise ValueError('no')")
    with pytest.raises(GateError, match="ValueError: no"):
        loading.started("torch", tmp_path, loading.surroundings(tmp_path, 1))


def test_measuring_processes_does_not_need_torch_in_the_parent() -> None:
    # A process inherits the peak memory of the one it was started from.
    program = "import sys, benchmarks.loading; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_targets_of_the_spine_are_those_of_its_shapes() -> None:
    def row(name: str, shape: Shape, ratio: float) -> dict[str, Any]:
        place = {"model": shape.model, "batch": shape.batch, "position": shape.position}
        return {**place, "implementation": name, "ok": True, "ratio": ratio}

    tiny, long = spine.TINY, spine.LONG
    assert spine.target(row(spine.PLAIN, long, 0.99)) == {"target": 0.99, "met": True}
    assert spine.target(row(spine.PLAIN, tiny, 0.81)) == {"target": 0.80, "met": False}
    assert spine.target(row(spine.KEPT, long, 1.11)) == {"target": 1.10, "met": False}
    assert spine.target(row(spine.KEPT, Shape("bert-base", 1, 128), 9.0)) == {}
    assert spine.target(row(spine.PLAIN, SHAPE, 9.0)) == {}
    assert {one.name for one in spine.ENTERED} == set(spine.NAMES)
