"""`make gpu` without a GPU: plan, rows, what is looked at, table, and all on tiny inputs."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import measure, rows
from benchmarks.gpu.__main__ import main, status
from benchmarks.gpu.plan import (
    CLOCK,
    D_HEADS,
    DTYPES,
    KINDS_ASKED,
    PEERS,
    Task,
    first_minutes,
    order,
    plan,
)
from benchmarks.session import REPOSITORY
from minibert.bench.contest import Clock
from minibert.kernels.check.parity import Finding, ParityReport
from minibert.kernels.check.workload import Workload, inputs_of

CPU = torch.device("cpu")
SMALL = Workload(1, 2, 32, 16, "float32", False)
STAMP = {"device": "Fast 1", "sources": "abc", "versions": {"torch": "2"}, "run": "monday"}


def row(task: str, contender: str, ms: float | None, **fields: Any) -> dict[str, Any]:
    timed = {} if ms is None else {"median_ms": ms, "tflops": 1.0, "noise": 0.01, "ratio": 1.05}
    key = {"key": f"{task} | {contender}", "implementation": contender}
    return {**key, "ok": ms is not None, **timed, **fields}


def test_the_plan_asks_what_is_right_then_what_is_fast_and_everything_in_the_end():
    """The faults: nine minutes ended inside FlexAttention; d_head 64 only; no packed, no mask."""
    tasks, cells = plan(), {(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES}
    keys = [key for task in tasks for key in task.row_keys()]
    assert len(set(keys)) == len(keys)
    works = [task.work for task in tasks if task.part == "forward"]
    assert {(one.tokens, one.causal) for one in works if one} == {
        (size, causal) for size in (512, 1024, 2048, 4096, 8192, 16384) for causal in (False, True)
    }
    first = first_minutes(tasks, 9)
    parts = list(dict.fromkeys(task.part for task in first))
    assert parts[:6] == ["ceilings", "matrix", "matrix first", "forward", "statistics", "backward"]
    assert "million" in parts
    assert "flex" not in parts
    assert {task.cell for task in first if task.cell} == cells
    asked = {(task.cell, one) for task in tasks if task.cell for one in task.contenders}
    assert asked == {(cell, option) for cell in cells for option in KINDS_ASKED}
    assert all(task.limit >= task.seconds for task in tasks)


def test_what_was_measured_is_left_out_and_what_failed_comes_last():
    first, second, third = (Task("forward", PEERS, replace(SMALL, tokens=n)) for n in (1, 2, 3))
    left = order([first, second, third], [*first.row_keys(), *second.row_keys()], second.row_keys())
    assert left == [third, first]


def test_rows_survive_a_cut_off_line_and_count_where_sources_and_machine_are_the_same(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows.Journal(path, STAMP).write(row("A", "plain", 1.0))
    with path.open("a") as lines:
        lines.write('{"key": "A | cu')
    again = rows.Journal(path, {**STAMP, "run": "tuesday"})
    again.write(row("A", "flash", 2.0, worst=float("nan"), all=(float("inf"), 1.0)))
    assert [one["implementation"] for one in rows.read(path)] == ["plain", "flash"]
    assert (rows.read(path)[1]["worst"], rows.read(path)[1]["all"]) == (None, [None, 1.0])
    assert again.done() == {"A | plain", "A | flash"}
    again.write(row("A", "plain", None))
    assert again.tried() - again.done() == {"A | plain"}
    for name in ("device", "sources", "versions"):
        assert rows.Journal(path, {**STAMP, name: "other"}).tried() == set()


@pytest.mark.parametrize("path", ["kernels/fused/new/one.py", "minibert/bench/one.py"])
def test_a_changed_kernel_or_clock_is_measured_again(path, tmp_path):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    before = rows.sources(tmp_path)
    file.write_text("a = 2")
    assert rows.sources(tmp_path) != before


def future(found: dict[str, torch.Tensor]) -> None:
    found["z"] += 0.01


def nan(found: dict[str, torch.Tensor]) -> None:
    found["entropy"][:] = float("nan")


def unsummed(found: dict[str, torch.Tensor]) -> None:
    found["received"][-1, -1, 0] += 1.0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(None, ""), (future, "error of z"), (nan, "error of entropy"), (unsummed, "receive 1 more")],
)
def test_what_is_wrong_at_the_size_that_is_timed_has_no_time(spoil, said, monkeypatch):
    """Eager in our place: T3 looks at rows of z and statistics, and at the sums over queries."""

    def build(name: str, work: Workload, problem: Any) -> measure.Contender:
        problem = replace(problem, want=measure.wanted("T3", problem.n_keys))
        one = measure.baseline("eager", work, problem)

        def run() -> Any:
            found: Any = one.run()
            if spoil is not None:
                spoil(found)
            return found

        return replace(one, run=run)

    monkeypatch.setattr(measure, "build", build)
    *told, last = measure.messages(Task("statistics", ("T3",), SMALL), CPU)
    if spoil is None:
        assert last["errors"].keys() >= {"z", "lse", "entropy", "row_max", "max_prob"}
        assert last["median_ms"] > 0
        assert told == ["T3", CLOCK]
    else:
        failed = told[1]
        assert said in failed["reason"]
        assert "median_ms" not in failed


def test_gradients_are_looked_at_and_one_that_fails_is_a_row():
    work = replace(SMALL, backward=True)
    *told, last = measure.messages(Task("backward", ("no one", "flash"), work), CPU)
    assert [one for one in told if isinstance(one, str)] == ["no one", "flash", CLOCK]
    assert "no baseline no one" in told[1]["reason"]
    assert last["errors"].keys() >= {"z", "query_gradient", "key_gradient", "value_gradient"}
    assert last["flop"] == work.flop
    problem, one = inputs_of(work, CPU), measure.baseline("flash", work, inputs_of(work, CPU))
    with pytest.raises(measure.WrongError, match="gradient"):
        # As if it had been given another gradient of z.
        measure._looked_at(one, work, replace(problem, z_gradient=-problem.z_gradient), Clock(CPU))


def test_a_cell_with_an_error_over_its_tolerance_is_wrong(monkeypatch):
    finding = Finding("causal, 17 x 17", torch.float32, "z", 2.0, 1.0, "causal is ignored")
    monkeypatch.setattr(measure, "check", lambda *_, **__: ParityReport("triton", (finding,)))
    (_, found) = measure.messages(Task("matrix", ("causal",), cell=(16, "float32")), CPU)
    assert (found["ok"], found["wrong"], found["failures"]) == (False, True, 1)
    assert found["causes"] == ["causal is ignored"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written_and_one_line_says_so(tmp_path, capfd):
    assert main(["--output", str(tmp_path)]) == 1
    assert "no GPU" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def dry(tmp_path: Path, only: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick"]
    command += ["--output", str(tmp_path), "--minutes", "10", "--only", only]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)


FIRST = "ceilings|forward.*full"
# A task of each part; `--quick` without --only runs all.
PARTS = f"{FIRST}|matrix|statistics.*causal|short|backward.*causal|million|flex.*full"


@pytest.mark.slow
def test_a_dry_run_has_rows_of_every_part_and_a_second_one_tries_again_what_failed(tmp_path):
    """Through Triton's interpreter."""
    pytest.importorskip("triton")
    done = dry(tmp_path, PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    found = rows.read(path)
    assert {one["part"] for one in found} | {"eager"} == {one.part for one in plan(quick=True)}
    failed = {one["key"]: one["reason"] for one in found if not one["ok"]}
    # cuDNN runs on NVIDIA's GPUs alone.
    assert any(key.endswith("cudnn") for key in failed)
    assert all(key.endswith(("cudnn", "flex")) for key in failed), failed
    assert all(one["sources"] == rows.sources() for one in found)
    assert re.search(r"ceilings \| device .*memory [\d.e+]+/s", rows.shown(found))
    assert dry(tmp_path, FIRST).stdout.startswith("1 of 2 tasks to do")
    assert all(one["task"].startswith("forward") for one in rows.read(path)[len(found) :])


def test_the_table_shouts_when_something_is_wrong_and_lists_what_failed():
    said = rows.shown([row("X", "plain", None, wrong=True, reason="z differs by 1")])
    assert said.startswith("WRONG, so trust no number below: X | plain")
    assert "1 rows failed" in said
    assert "z differs by 1" in said
    assert "ratio 1.050, noise 0.010" in rows.shown([row("X", "T1", None), row("X", "T1", 2.0)])


def test_the_exit_status_follows_what_is_ours():
    assert status([]) == 0
    assert status([row("X", "plain", 1.0), row("X", "cudnn", None)]) == 0
    assert status([row("X", "plain", None), row("X", "cudnn", 1.0)]) == 1
    assert status([row("X", "plain", 1.0), row("X", "T1", None, wrong=True)]) == 1
