"""The benchmarks measure what is right and say what is not. No time is asserted."""

import argparse
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import generation, instruments, loading, measuring, models, runner, statistics
from benchmarks.instruments import TASKS, Hooks, Minibert
from benchmarks.loading import Checkpoint
from benchmarks.models import CONTENDERS, REFERENCE, Case, Implementation, Prepared, Shape
from benchmarks.runner import Workload, measured
from benchmarks.session import QUIET
from minibert.bench import contest
from minibert.bench.result_rows import GateError, Row, WrongError, version

SHAPE = Shape("bert-quick", 2, 7)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    # A session sets these; they are put back after the test.
    for name in QUIET:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MINIBERT_LINEAR", "")
    monkeypatch.setattr(contest, "MOST_CALLS", 1)


def rows_of(workload: Workload) -> dict[str, Row]:
    with torch.no_grad():
        return {row["implementation"]: row for row in measured(workload, 2)}


def test_a_row_has_its_shape_speed_memory_error_and_work_and_a_failure_its_reason():
    def broken(case: Case) -> Prepared:
        raise RuntimeError("/opt/some/place/file.py cannot be read")

    def wrong(case: Case) -> Prepared:
        model = case.minibert()
        return lambda ids: model(ids) + 1e-3, lambda logits: {"logits": logits}

    entered = [one for one in CONTENDERS if one.name in (REFERENCE, "minibert full trace")]
    entered += [Implementation("broken", "", broken), Implementation("wrong", "", wrong)]
    # The checkpoint lies in its folder until the next workload is asked for.
    made = models.workloads([SHAPE], entered, lambda name: True)
    rows = rows_of(next(made))
    row = rows["minibert full trace"]
    assert (row["model"], row["batch"], row["position"]) == ("bert-quick", 2, 7)
    assert 0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"]
    assert row["rounds"] == row["calls"] == 2
    # Query, key, value and z of 3 layers of 2 x 7 x 64 numbers are held when the call returns.
    assert row["peak_bytes"] >= 4 * 3 * 2 * 7 * 64 * 4
    assert {"logits", "hidden", "probs"} == set(row["errors"])
    assert rows[REFERENCE]["ratio"] == 1
    # 2 x 14 tokens x (3 layers x 32768 weights + 997 x 64 + 64²) + 4 x 3 x 2 x 7² x 64.
    assert row["flop"] == 28 * (3 * 32768 + 997 * 64 + 64 * 64) + 12 * 2 * 49 * 64
    assert rows["wrong"]["wrong"]
    assert rows["wrong"]["reason"].startswith("logits differs")
    assert rows["broken"]["reason"].startswith("RuntimeError: <path>")
    absent = {"ok": False, "implementation": "nnsight", "reason": "not installed"}
    assert [runner.status([one]) for one in (row, rows["wrong"], absent)] == [0, 1, 0]
    assert runner.status([absent | {"implementation": "minibert"}]) == 1
    assert not {"median_ms"} & (rows["wrong"].keys() | rows["broken"].keys())


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (models, ""),
        (generation, ""),
        (measuring, ""),
        # Everyone on GPT-2, and on BERT minibert and what its speed is compared with.
        pytest.param(instruments, "gpt2|minibert|transformers", marks=pytest.mark.slow),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_everyone_of_a_quick_run_is_right_or_not_installed(module, wanted):
    arguments, rows = argparse.Namespace(quick=True), []
    with torch.no_grad():
        for workload in module.BENCHMARK.workloads(arguments, re.compile(wanted).search):
            rows += measured(workload, 0)
    assert rows
    for row in rows:
        assert row["ok"] or version(row["package"]) is None, row
    if module is instruments:
        ours = {row["task"] for row in rows if row["implementation"] == "minibert"}
        assert ours == {task.name for task in TASKS}


def test_minibert_in_bfloat16_may_err_twice_what_transformers_does_there():
    [narrow] = [one for one in CONTENDERS if one.name == "minibert bfloat16 full trace"]
    right = {"logits": torch.full((3,), 10.0)}
    verdicts: dict[str, Row] = {models.REFERENCE_BFLOAT16: {"errors": {"logits": 0.01}}}
    assert narrow.check(right, {"logits": right["logits"] + 0.019}, verdicts)["compared"] == 1
    with pytest.raises(GateError, match="logits differs"):
        narrow.check(right, {"logits": right["logits"] + 0.021}, verdicts)


def test_a_run_writes_its_rows_and_everyone_is_right(tmp_path):
    output = tmp_path / "rows.jsonl"
    arguments = ["--quick", "--rounds", "1", "--threads", "1", "--output", str(output)]
    assert statistics.BENCHMARK.run(arguments) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 2 * len(statistics.QUICK)
    # An archive of the sources has no commit.
    checkout = (Path(__file__).parents[1] / ".git").exists()
    assert all(row["ok"] and bool(row["commit"]) == checkout for row in rows)
    assert list(tmp_path.glob("*.partial.jsonl")) == []


def test_wrong_statistics_close_the_gate():
    given, want = statistics.QUICK[0].inputs(), statistics.WANTS["all"]
    found = statistics.in_place(want, given)
    changes = {
        "entropy differs": found | {"entropy": found["entropy"] * 1.01},
        "argmax differs": found | {"argmax": torch.zeros_like(found["argmax"])},
        "gave no map": {name: one for name, one in found.items() if name != "map"},
    }
    for said, changed in changes.items():
        with pytest.raises(GateError, match=said):
            statistics.compare(changed, found)


def test_generation_is_right_where_the_ids_are_and_has_tokens_a_second():
    task = generation.Task("gpt2-quick", 2, 3, 2)
    built = {
        generation.REFERENCE: lambda given, new: [[7, 11], [13, 17]],
        "wrong": lambda given, new: [[7, 11], [13, 5]],
        "short": lambda given, new: [[7, 11], [13]],
    }
    rows = rows_of(generation.workload(task, torch.tensor([[2, 3, 5]] * 2), built))
    for name in ("wrong", "short"):
        assert rows[name]["reason"] == "the ids of text 1 differ from token 1 of the new ones on"
        assert "median_ms" not in rows[name]
    row = rows[generation.REFERENCE]
    assert row["tokens_per_second"] == pytest.approx(4 / row["median_ms"] * 1e3, rel=1e-2)


class Unedited(Minibert):
    """Does nothing of what is asked."""

    name = "wrong"

    def ablation(self, given):
        return self.model(given.ids)

    def one_head(self, given):
        return self.model.trace(given.ids)[given.layer, given.head + 1].probs

    def head_sweep(self, given):
        clean = given.metric(self.model(given.ids))[0]
        return clean.expand(self.layers, self.heads), clean

    def read_sweep(self, result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"change": result[0] - result[1], "clean": result[1]}

    def gradient(self, given):
        return [one + 0.02 * one.abs().max() for one in super().gradient(given)]


@pytest.mark.parametrize("method", ["ablation", "one_head", "head_sweep", "gradient"])
def test_what_did_not_do_it_has_no_speed(method, tmp_path):
    [task] = [one for one in TASKS if one.method == method]
    with torch.no_grad():
        case = Case("gpt2-quick", tmp_path)
        workload = instruments.workload(case, task, Shape("gpt2-quick", 1, 13), [Unedited, Hooks])
        row, right = measured(workload, 1)
    assert right["ratio"] == 1
    assert "differs by" in row["reason"]
    assert "median_ms" not in row


def test_memory_is_beyond_that_of_torch_and_times_are_beside_those_of_transformers():
    def noted(peak: float, seconds: float) -> list[loading.Notes]:
        step = {"seconds": seconds, "moment": seconds, "peak_bytes": peak, "anonymous_bytes": 5.0}
        return [{"imports": step | {"moment": 0.5}, "load": step}]

    checkpoint = Checkpoint("a model", Path(), [1.0, 2.0])
    checkpoint.check([1.0, 2.00005])
    with pytest.raises(WrongError, match="differs by"):
        checkpoint.check([1.0, 2.001])
    failed = {"ok": False, "wrong": False, "reason": "not installed"}
    found = {"torch alone": noted(100, 1.0), "minibert": noted(250, 2.0)}
    rows = list(loading.summary({**found, "transformers": noted(400, 4.0)}, 150))
    [ours] = [row for row in rows if (row["implementation"], row["step"]) == ("minibert", "load")]
    assert (ours["peak_to_weights"], ours["ratio"], ours["after_imports_ms"]) == (1, 0.5, 1500)
    alone = list(loading.summary({**found, "transformers": failed}, 150))
    assert alone[-1]["reason"] == "not installed"
    assert "ratio" not in alone[0]
