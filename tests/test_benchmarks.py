"""The benchmarks measure what is right and say what is not. No time is asserted."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data import data_path
from torch import Tensor, nn

from benchmarks import attach, generation, instruments, loading, models, runner, spine, statistics
from benchmarks.instruments import BY_HAND, MINIBERT, PEER, TASKS, Minibert, held_bytes
from benchmarks.models import CONTENDERS, REFERENCE, Case, Implementation, Prepared, Shape
from benchmarks.runner import Workload, measured
from benchmarks.session import QUIET, REPOSITORY
from minibert.bench import clock
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row, version

SHAPE = Shape("bert-quick", 2, 7)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A session sets these; they are put back after the test.
    for name in QUIET:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MINIBERT_LINEAR", "")
    monkeypatch.setattr(clock, "MOST_CALLS", 1)


def rows_of(workload: Workload) -> dict[str, Row]:
    with torch.no_grad():
        return {row["implementation"]: row for row in measured(workload, 2)}


def test_a_row_has_its_shape_speed_memory_error_and_work_and_a_failure_its_reason() -> None:
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
    assert not {"median_ms"} & (rows["wrong"].keys() | rows["broken"].keys())


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (models, ""),
        (spine, "llama"),
        (attach, ""),
        (generation, ""),
        # Everyone on GPT-2, and on BERT minibert and what its speed is compared with.
        pytest.param(instruments, "gpt2|minibert|transformers", marks=pytest.mark.slow),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_everyone_of_a_quick_run_is_right_or_not_installed(module, wanted):
    arguments, rows = argparse.Namespace(quick=True), []
    with torch.no_grad():
        for workload in module.BENCHMARK.workloads(arguments, re.compile(wanted).search):
            measure = workload.measure or (lambda contenders: {})
            rows += measured(replace(workload, measure=measure), 1)
    assert rows
    for row in rows:
        assert row["ok"] or version(row["package"]) is None, row
    if module is instruments:
        ours = {row["task"] for row in rows if row["kind"] == MINIBERT}
        assert ours == {task.name for task in TASKS}


def test_who_is_asked_for_runs_beside_the_reference() -> None:
    chosen = models.select(SHAPE, CONTENDERS, re.compile("B2 T7 minibert plain").search)
    assert [one.name for one in chosen] == [REFERENCE, "minibert plain"]
    assert models.select(SHAPE, CONTENDERS, re.compile("nobody").search) == []


def test_minibert_in_bfloat16_may_err_twice_what_transformers_does_there() -> None:
    [narrow] = [one for one in CONTENDERS if one.name == "minibert bfloat16 full trace"]
    right = {"logits": torch.full((3,), 10.0)}
    verdicts: dict[str, Row] = {models.REFERENCE_BFLOAT16: {"errors": {"logits": 0.01}}}
    assert narrow.check(right, {"logits": right["logits"] + 0.019}, verdicts)["compared"] == 1
    with pytest.raises(GateError, match="logits differs"):
        narrow.check(right, {"logits": right["logits"] + 0.021}, verdicts)


@pytest.mark.parametrize(
    ("name", "shape", "ratio", "expected"),
    [
        (spine.PLAIN, spine.LONG, 0.99, (0.99, True)),
        (spine.PLAIN, spine.TINY, 0.81, (0.80, False)),
        (spine.KEPT, spine.LONG, 1.11, (1.10, False)),
        (spine.KEPT, Shape("bert-base", 1, 128), 9.0, None),
        (spine.PLAIN, SHAPE, 9.0, None),
    ],
)
def test_the_targets_of_the_spine_are_those_of_its_shapes(name, shape, ratio, expected):
    rows = {name: {"ratio": ratio}}
    spine.add_targets(shape, rows)
    found = rows[name].get("targets", {}).get(REFERENCE)
    assert (found and (found["most"], found["met"])) == expected


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    arguments = ["--quick", "--rounds", "1", "--threads", "1", "--output", str(output)]
    assert statistics.BENCHMARK.run(arguments) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    # Everyone is right, with and without causal order, padding, groups and a window.
    assert len(rows) == 5 * len(statistics.QUICK)
    assert all(row["ok"] for row in rows)
    first = [row | {"median_ms": 7.5} for row in rows[:5]]
    other = rows[5] | {"commit": "another"}
    partial_file = output.with_suffix(".partial.jsonl")
    partial_file.write_text("".join(f"{json.dumps(row)}\n" for row in (*first, other)))
    assert statistics.BENCHMARK.run(arguments) == 0
    again = [json.loads(line) for line in output.read_text().splitlines()]
    assert again[:5] == first
    assert len(again) == len(rows)


def test_the_exit_status_is_of_what_is_wrong_of_minibert_and_of_targets() -> None:
    right = {"ok": True, "implementation": "minibert"}
    absent = {"ok": False, "implementation": "nnsight", "reason": "not installed", "wrong": False}
    missed = right | {"targets": {"all": runner.target(1.2, most=1.0)}}
    assert runner.status([right, absent]) == 0
    assert runner.status([absent | {"wrong": True}]) == 1
    assert runner.status([absent | {"implementation": "minibert"}]) == 1
    assert runner.status([missed]) == 1
    assert runner.status([missed], targets=False) == 0
    assert "1.20 all, at most 1.0: NOT MET" in list(attach.BENCHMARK.lines(missed))[1]


def test_wrong_statistics_close_the_gate_and_promises_are_targets() -> None:
    given, want = statistics.QUICK[0].inputs(), statistics.WANTS["all"]
    found = statistics.materialised(want, given)
    changes = {
        "entropy differs": found | {"entropy": found["entropy"] * 1.01},
        "argmax differs": found | {"argmax": torch.zeros_like(found["argmax"])},
        "gave no map": {name: one for name, one in found.items() if name != "map"},
    }
    for said, changed in changes.items():
        with pytest.raises(GateError, match=said):
            statistics.compare(changed, found)
    base: Row = {"ok": True, "median_ms": 2.5, "peak_bytes": 1000}
    rows = {name: dict(base) for name in statistics.MATERIALISING}
    rows[statistics.OURS] = base | {"median_ms": 2.0, "peak_bytes": 101}
    task = statistics.Task(4096, True, "all", window=256)
    statistics.add_targets(task, {str(replace(task, window=0)): 4.0}, rows)
    values = [(one["value"], one["met"]) for one in rows[statistics.OURS]["targets"].values()]
    assert values == [(0.5, False), (1.25, False), (9.901, False)]


def test_generation_is_right_where_the_ids_are_and_has_tokens_a_second() -> None:
    task = generation.Task("gpt2-quick", 2, 3, 2)
    built = {
        generation.REFERENCE: lambda given, new: [[7, 11], [13, 17]],
        "wrong": lambda given, new: [[7, 11], [13, 5]],
        "short": lambda given, new: [[7, 11], [13]],
    }
    rows = rows_of(generation.workload(task, [[2, 3, 5]] * 2, built))
    for name in ("wrong", "short"):
        assert rows[name]["reason"] == "the ids of text 1 differ from token 1 of the new ones on"
        assert "median_ms" not in rows[name]
    row = rows[generation.REFERENCE]
    assert row["tokens_per_second"] == pytest.approx(4 / row["median_ms"] * 1e3, rel=1e-2)
    lengths = generation.Task("gpt2", 8, 32, 64, padded=True).lengths()
    assert (max(lengths), min(lengths), len(set(lengths))) == (32, 16, 8)


class Unedited(Minibert):
    """Does nothing of what is asked."""

    name, kind = "wrong", PEER

    def ablation(self, given):  # type: ignore[no-untyped-def]
        return self.model(given.ids)

    def one_head(self, given):  # type: ignore[no-untyped-def]
        return self.model.trace(given.ids)[given.layer, given.head + 1].probs

    def patch_sweep(self, given):  # type: ignore[no-untyped-def]
        clean = given.metric(self.model(given.ids))[0]
        return clean.expand(self.layers, given.ids.shape[1]), clean

    def read_sweep(self, result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"change": result[0] - result[1], "clean": result[1]}

    def gradient(self, given):  # type: ignore[no-untyped-def]
        return [one + 0.02 * one.abs().max() for one in super().gradient(given)]


@pytest.mark.parametrize("method", ["ablation", "one_head", "patch_sweep", "gradient"])
def test_what_did_not_do_it_has_no_speed(method: str, tmp_path: Path) -> None:
    [task] = [one for one in TASKS if one.method == method]
    with torch.no_grad():
        case = Case("gpt2-quick", tmp_path)
        workload = instruments.workload(case, task, Shape("gpt2-quick", 1, 13), [Unedited])
        [row] = measured(workload, 1)
    assert "differs by" in row["reason"]
    assert "median_ms" not in row


def test_the_ratio_is_to_the_fastest_peer_and_says_who_that_is() -> None:
    kinds = {"ours": MINIBERT, "loop": PEER, "slow": PEER, "batch": BY_HAND}
    named = {name: type(name, (Minibert,), {"name": name, "kind": k}) for name, k in kinds.items()}
    times = {"ours": 2.0, "loop": 10.0, "slow": 40.0, "batch": 5.0}
    rows: dict[str, Row] = {name: {"ok": True, "median_ms": ms} for name, ms in times.items()}
    instruments.compare(instruments.Task("a task", "trace", 0.25, (8,)), named, rows)
    assert (rows["ours"]["ratio"], rows["ours"]["fastest"]) == (0.4, "batch")
    assert (rows["ours"]["ratio_documented"], rows["ours"]["fastest_documented"]) == (0.2, "loop")
    assert [one["met"] for one in rows["ours"]["targets"].values()] == [False, True]
    assert rows["slow"]["ratio"] == 8


def test_held_bytes_are_those_of_each_storage_once_without_weights() -> None:
    model, values = nn.Linear(5, 7), torch.zeros(11, 13)
    result = {"views": [values[0], values[1:]], "model": model, "weight": model.weight}
    assert held_bytes(result) == 11 * 13 * 4


@pytest.mark.slow
@pytest.mark.skipif("MINIBERT_TEST_DATA" not in os.environ, reason="needs MiniLM and wikitext-2")
def test_everyone_gives_the_same_means_over_a_corpus(tmp_path: Path) -> None:
    from benchmarks import corpus

    data_path("text", "wikitext-2")
    options = ["--quick", "--texts", "3", "--rounds", "1", "--output", str(tmp_path / "rows.jsonl")]
    assert corpus.BENCHMARK.run([*options, "--threads", "1"]) == 0


def test_a_loader_that_answers_otherwise_than_transformers_has_no_speed() -> None:
    def note(peak: int, *logits: float) -> Row:
        points = {point: {"seconds": 1.0, "peak": peak} for point in loading.POINTS}
        return {**points, "logits": list(logits)}

    notes = {
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
    command = [
        sys.executable,
        "-c",
        "import sys, benchmarks.loading; print('torch' in sys.modules)",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
