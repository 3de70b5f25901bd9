"""`make gpu` without a GPU: plan, rows, clock, gate, table, and all on tiny inputs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import contenders, gate, matrix, measure, table
from benchmarks.gpu.__main__ import main, status
from benchmarks.gpu.journal import Journal, read, sources
from benchmarks.gpu.matrix import KINDS_ASKED, drawn
from benchmarks.gpu.plan import (
    D_HEADS,
    DTYPES,
    EAGER,
    FORWARD,
    Shape,
    Task,
    first_minutes,
    order,
    plan,
)
from benchmarks.session import REPOSITORY
from minibert.bench.contest import Clock
from minibert.bench.result_rows import WrongError
from minibert.kernels.check.parity import Finding, ParityReport


def row(task: str, contender: str, ms: float | None, **fields: Any) -> dict[str, Any]:
    timed = {} if ms is None else {"median_ms": ms, "warm_ms": ms, "noise": 0.01}
    part = task.split()[0]
    start = {
        "key": f"{task} | {contender}",
        "part": part,
        "task": task,
        "implementation": contender,
    }
    return {**start, "ok": ms is not None, "positions": 4096, "run": "monday", **timed, **fields}


STAMP = {"device": "Fast 1", "sources": "abc", "versions": {"torch": "2"}, "run": "monday"}


def test_the_plan_asks_what_is_right_then_what_is_fast_and_everything_in_the_end() -> None:
    """The faults: nine minutes ended inside FlexAttention; d_head 64 only; no packed, no mask."""
    tasks, cells = plan(), {(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES}
    keys = [key for task in tasks for key in task.row_keys()]
    assert len(set(keys)) == len(keys)
    shapes = [task.shape for task in tasks if task.part == "forward"]
    assert {(one.positions, one.causal) for one in shapes if one} == {
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


@pytest.mark.parametrize("backward", [False, True])
def test_a_cell_draws_the_call_of_its_kind(backward: bool) -> None:
    given = ("causal lengths", 32, "float16", torch.device("cpu"))
    one, again = (drawn(*given, backward=backward) for _ in range(2))
    assert torch.equal(one.query, again.query)
    assert (one.query.shape[3], one.query.dtype, one.causal) == (32, torch.float16, True)
    assert one.lengths is not None
    assert (one.z_gradient is not None) == backward


def test_what_was_measured_is_left_out_and_what_failed_comes_last() -> None:
    first, second, third = (Task("forward", FORWARD, Shape(1, 1, n)) for n in (1, 2, 3))
    left = order([first, second, third], [*first.row_keys(), *second.row_keys()], second.row_keys())
    assert left == [third, first]


def test_rows_survive_a_cut_off_line_and_count_where_sources_and_machine_are_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    journal = Journal(path, STAMP)
    journal.write(row("forward A", "plain", 1.0))
    with path.open("a") as lines:
        lines.write('{"key": "forward A | cu')
    again = Journal(path, {**STAMP, "run": "tuesday"})
    again.write(row("forward A", "flash", 2.0, worst=float("nan"), all=(float("inf"), 1.0)))
    assert [one["implementation"] for one in read(path)] == ["plain", "flash"]
    assert (read(path)[1]["worst"], read(path)[1]["all"]) == (None, [None, 1.0])
    assert again.done() == {"forward A | plain", "forward A | flash"}
    again.write(row("forward A", "plain", None))
    assert again.tried() - again.done() == {"forward A | plain"}
    for name in ("device", "sources", "versions"):
        assert Journal(path, {**STAMP, name: "other"}).tried() == set()


@pytest.mark.parametrize("path", ["kernels/fused/new/one.py", "minibert/bench/one.py"])
def test_a_changed_kernel_or_clock_is_measured_again(path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    before = sources(tmp_path)
    file.write_text("a = 2")
    assert sources(tmp_path) != before


SMALL = Shape(1, 2, 32, 16, dtype="float32")


class FakeClock(Clock):
    """Every call of `run` says how long it took, half as long with a warm cache."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.turns: list[tuple[str, bool]] = []

    def calls(self, run: Any, fewest: int = 1) -> int:
        return 3

    def turn(self, run: Any, *, calls: int, cold: bool = False, **options: Any) -> Any:
        name, milliseconds = run()
        self.turns.append((name, cold))
        return [milliseconds if cold else milliseconds / 2] * calls, None


def test_contenders_take_turns_with_a_cold_cache_and_then_with_a_warm_one() -> None:
    fake = FakeClock()
    found = measure.times({"a": lambda: ("a", 2.0), "b": lambda: ("b", 30.0)}, fake)
    assert found["a"]["median_ms"] == found["a"]["p80_ms"] == 2.0
    assert found["b"]["warm_ms"] == 15.0
    assert found["a"]["noise"] == 0.0
    assert found["b"]["rounds"] == 2
    assert [sorted(fake.turns[i : i + 2]) for i in range(0, 8, 2)] == [
        [("a", cold), ("b", cold)] for cold in (True, True, False, False)
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_the_statistics_of_eager_pass_the_gate(causal: bool) -> None:
    shape = Shape(2, 3, 37, 16, causal, "float32")
    given = contenders.inputs(shape, torch.device("cpu"))
    built = contenders.build("eager", given)
    found = gate.check(built, built.run(), given)
    assert set(found["errors"]) == {"z", "lse", *built.want}


def wrong_results() -> dict[str, Any]:
    def future(found: dict[str, Any]) -> None:
        found["z"][..., -1, :] += 0.01

    def nan(found: dict[str, Any]) -> None:
        found["entropy"][-1, -1, -1] = float("nan")

    return {
        "z differs": future,
        "entropy differs": nan,
        "no max_prob": lambda found: found.pop("max_prob"),
        "no lse": lambda found: found.pop("lse"),
    }


@pytest.mark.parametrize("said", list(wrong_results()))
def test_the_gate_names_what_is_wrong(said: str) -> None:
    given = contenders.inputs(SMALL, torch.device("cpu"))
    built = contenders.build("eager", given)
    found = built.run()
    wrong_results()[said](found)
    with pytest.raises(WrongError, match=said):
        gate.check(built, found, given)


def test_received_and_gradients_are_compared_with_float64() -> None:
    given = contenders.inputs(SMALL, torch.device("cpu"))
    want = {"received": (), "map": (8,)}
    built = contenders.registered("eager", given, want)
    found = built.run()
    assert set(gate.check(built, found, given)["errors"]) >= {"received", "map"}
    found["received"][-1, -1, 0] *= 1.1
    with pytest.raises(WrongError, match="received"):
        gate.check(built, found, given)
    backward = contenders.build("flash backward", given)
    gradients = backward.run()
    assert set(gate.check(backward, gradients, given)["errors"]) == {"query", "key", "value"}
    gradients["key"] = gradients["key"] * 1.1
    with pytest.raises(WrongError, match="key"):
        gate.check(backward, gradients, given)


def test_a_contender_that_fails_is_a_row_and_the_others_are_timed() -> None:
    begun: list[str] = []
    task = Task("eager", ("no such contender", *EAGER[1:]), SMALL)
    rows = list(measure.group(task, torch.device("cpu"), begun.append))
    by_name = {one["implementation"]: one for one in rows}
    assert by_name["no such contender"]["ok"] is False
    assert "no contender is called" in by_name["no such contender"]["reason"]
    assert by_name["eager"]["median_ms"] > 0
    assert by_name["eager"]["tflops"] >= 0
    assert begun == [*task.contenders, "the clock"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written_and_one_line_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path)]) == 1
    assert "no GPU" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def dry(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick"]
    command += ["--output", str(tmp_path), *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)


def test_a_dry_run_writes_rows_and_a_second_one_only_tries_again_what_failed(
    tmp_path: Path,
) -> None:
    done = dry(tmp_path, "--only", "ceilings|forward.*full", "--minutes", "3")
    (path,) = tmp_path.iterdir()
    rows = {one["implementation"]: one for one in read(path)}
    assert {"matrix product", "copy", "plain", "cudnn", "flash"} == set(rows), done.stderr
    assert rows["flash"]["ok"], done.stderr
    # cuDNN runs on NVIDIA's GPUs alone.
    assert not rows["cudnn"]["ok"]
    assert all(one["sources"] == sources() for one in rows.values())
    again = dry(tmp_path, "--only", "ceilings|forward.*full", "--minutes", "3")
    assert again.stdout.startswith("1 of 2 tasks to do")
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--table", str(path)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    assert re.search(r"ceilings \| copy .* B/s", printed.stdout)


# A task of each part; `--quick` without --only runs all. The dry run above has the forward.
PARTS = "matrix|statistics.*causal|short|backward B.*causal|million|flex.*full"


@pytest.mark.slow
def test_every_part_runs_through_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = dry(tmp_path, "--minutes", "10", "--only", PARTS)
    (path,) = tmp_path.iterdir()
    parts = {one["key"].split()[0] for one in read(path)}
    others = {"ceilings", "forward", "eager"}
    assert parts | others == {task.part.split()[0] for task in plan(quick=True)}
    failed = {one["key"]: one["reason"] for one in read(path) if not one["ok"]}
    assert {key for key in failed if "cudnn" not in key} == set(), failed
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # FlexAttention is divided by its own plain, gradients by ours, and what failed by nothing.
        ([("flex X", "plain", 4.0), ("flex X", "flex", 3.8)], {"plain": 1.0, "flex": 0.95}),
        (
            [("backward X", "backward", 2.0), ("backward X", "flash backward", 5.0)],
            {"backward": 1.0, "flash backward": 2.5},
        ),
        ([("eager X", "T1", 1.0), ("eager X", "eager", 30.0)], {"T1": 1.0, "eager": 30.0}),
        ([("forward X", "plain", 2.0), ("forward X", "cudnn", None)], {"plain": 1.0}),
        ([("forward X", "plain", None), ("forward X", "cudnn", 1.0)], {}),
    ],
)
def test_a_ratio_is_to_the_base_of_its_part(
    rows: list[tuple[str, str, float | None]], expected: dict[str, float]
) -> None:
    [group] = table.groups([row(*one) for one in rows]).values()
    assert table.ratios(group) == expected


def test_a_ratio_never_mixes_two_runs_and_one_that_failed_hides_none_before() -> None:
    rows = [row("statistics X", name, 1.0) for name in ("plain", "T1")]
    rows += [row("statistics X", *one, run="tuesday") for one in (("plain", 2.0), ("T1", 2.1))]
    rows.append(row("statistics X", "plain", None, run="wednesday"))
    [group] = table.groups(rows).values()
    assert table.ratios(group)["T1"] == pytest.approx(1.05)
    assert "ratio 1.050, noise 0.010" in table.shown(rows)


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


def test_a_cell_with_an_error_over_its_tolerance_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("causal, 17 x 17", torch.float32, "z", 2.0, 1.0, "causal is ignored")
    monkeypatch.setattr(matrix, "check", lambda *_, **__: ParityReport("triton", (finding,)))
    found = matrix.row("causal", 16, "float32", torch.device("cpu"))
    assert (found["ok"], found["wrong"], found["failures"]) == (False, True, 1)
    assert found["causes"] == ["causal is ignored"]
