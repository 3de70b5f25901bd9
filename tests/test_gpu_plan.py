"""`make gpu` before it measures: the plan, the file of rows, and what outlives a worker."""

import json
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_results import row

from benchmarks.gpu.journal import Journal, path_of, read, sources
from benchmarks.gpu.matrix import KINDS_ASKED, drawn
from benchmarks.gpu.plan import (
    D_HEADS,
    DTYPES,
    FORWARD,
    Shape,
    Task,
    first_minutes,
    from_message,
    order,
    plan,
)
from benchmarks.gpu.supervisor import Supervisor, Worker, WorkerError

STAMP = {"device": "Fast 1", "sources": "abc", "versions": {"torch": "2"}, "run": "monday"}


def test_every_key_of_the_plan_is_its_own_and_ours_is_gated_before_it_is_timed() -> None:
    tasks = plan()
    keys = [key for task in tasks for key in task.row_keys()]
    assert len(set(keys)) == len(keys)
    assert len({task.name for task in tasks}) == len(tasks)
    parts = [task.part for task in tasks]
    assert parts.index("matrix") < parts.index("forward")


def test_the_plan_asks_for_the_twelve_shapes_of_the_table() -> None:
    shapes = [task.shape for task in plan() if task.part == "forward"]
    assert {(one.positions, one.causal) for one in shapes if one} == {
        (size, causal) for size in (512, 1024, 2048, 4096, 8192, 16384) for causal in (False, True)
    }
    assert {one.batch * one.positions for one in shapes if one} == {16384}
    flex = [task.shape for task in plan() if task.part == "flex"]
    assert set(flex) == set(shapes)


def test_the_first_nine_minutes_are_what_is_right_then_speed_and_flex_comes_after() -> None:
    """The fault: they ended inside FlexAttention, and whole parity was left for after."""
    tasks = plan()
    first = first_minutes(tasks, 9)
    parts = list(dict.fromkeys(task.part for task in first))
    assert parts[:6] == ["ceilings", "matrix", "matrix first", "forward", "statistics", "backward"]
    assert "million" in parts
    assert "flex" not in parts
    cells = {task.cell for task in first if task.cell}
    assert cells == {(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES}
    assert {16, 32, 64, 128, 256} == set(D_HEADS)


def test_in_the_end_every_option_is_asked_about_in_every_cell() -> None:
    """The fault: d_head 64 only; no packed, lengths, mask, bias; backward of float32 never."""
    asked = {(task.cell, one) for task in plan() if task.cell for one in task.contenders}
    cells = [(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES]
    assert asked == {(cell, option) for cell in cells for option in KINDS_ASKED}
    named = {"lengths", "mask", "bias", "packed", "groups", "window", "soft cap", "alibi", "sinks"}
    assert named | {"paged", "prefix"} <= KINDS_ASKED.keys()


@pytest.mark.parametrize("backward", [False, True])
def test_a_cell_draws_the_call_of_its_kind(backward: bool) -> None:
    given = ("causal lengths", 32, "float16", torch.device("cpu"))
    one, again = (drawn(*given, backward=backward) for _ in range(2))
    assert torch.equal(one.query, again.query)
    assert (one.query.shape[3], one.query.dtype, one.causal) == (32, torch.float16, True)
    assert one.lengths is not None
    assert (one.z_gradient is not None) == backward


def test_what_matters_most_fits_in_the_first_five_minutes() -> None:
    tasks = plan()
    seconds = 0.0
    for task in tasks:
        seconds += task.seconds
        if task.part == "backward":
            break
    assert seconds < 300
    assert all(task.limit >= task.seconds for task in tasks)


def test_a_task_survives_being_told_to_a_worker() -> None:
    for task in plan():
        assert from_message(json.loads(json.dumps(task.message()))) == task


def test_flop_counts_half_of_the_cells_where_attention_is_causal() -> None:
    full = Shape(2, 3, 5, 7)
    assert full.flop == 4 * 2 * 3 * 5 * 5 * 7
    assert Shape(2, 3, 5, 7, causal=True).flop == full.flop / 2


def test_what_was_measured_is_left_out_and_what_failed_comes_last() -> None:
    first, second, third = (Task("forward", FORWARD, Shape(1, 1, n)) for n in (1, 2, 3))
    left = order([first, second, third], [*first.row_keys(), *second.row_keys()], second.row_keys())
    assert left == [third, first]


def test_rows_survive_a_run_that_was_cut_off_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    journal = Journal(path, STAMP)
    journal.write(row("forward A", "plain", 1.0))
    with path.open("a") as lines:
        lines.write('{"key": "forward A | cu')
    again = Journal(path, STAMP)
    again.write(row("forward A", "flash", 2.0))
    assert [one["implementation"] for one in read(path)] == ["plain", "flash"]
    assert again.done() == {"forward A | plain", "forward A | flash"}


def test_a_row_that_failed_is_tried_and_not_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl", STAMP)
    journal.write(row("forward A", "plain", 1.0))
    journal.write(row("forward A", "plain", None))
    assert journal.tried() == {"forward A | plain"}
    assert journal.done() == set()


@pytest.mark.parametrize("field", ["device", "sources", "versions"])
def test_rows_of_other_sources_or_machines_do_not_count(field: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Journal(path, STAMP).write(row("forward A", "plain", 1.0))
    assert Journal(path, {**STAMP, field: "other"}).done() == set()
    assert Journal(path, {**STAMP, "run": "tuesday"}).done() == {"forward A | plain"}


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Journal(path, {}).write({"key": "a", "worst": float("nan"), "all": [float("inf"), (1.0,)]})
    assert json.loads(path.read_text()) == {"key": "a", "worst": None, "all": [None, [1.0]]}


def test_the_file_is_named_after_the_accelerator_and_the_day() -> None:
    moment = datetime(2027, 3, 2, tzinfo=UTC)
    assert path_of(Path("x"), "NVIDIA H200", moment) == Path("x/nvidia-h200-2027-03-02.jsonl")


@pytest.mark.parametrize(
    "path",
    [
        "kernels/one.py",
        "kernels/fused/one.py",
        "kernels/check/one.py",
        "kernels/fused/new/one.py",
        "benchmarks/gpu/one.py",
        "minibert/bench/one.py",
    ],
)
def test_a_changed_kernel_or_clock_is_measured_again(path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    before = sources(tmp_path)
    file.write_text("a = 2")
    assert sources(tmp_path) != before


OBEDIENT = """
    import json, os, sys, time
    print(json.dumps({"ready": {"device": "none"}}), flush=True)
    def say(**message): print(json.dumps(message), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        for name in task["contenders"]:
            if name in task["skip"]: continue
            say(begin=name)
            if name == "dies": os._exit(7)
            if name == "hangs": time.sleep(600)
            if name == "babbles": print("not json", flush=True)
            say(row={"implementation": name, "ok": True})
        say(end=True)
"""


def supervised(program: str, seconds: float = 60.0) -> tuple[Supervisor, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return Supervisor(lambda: Worker("cpu", command), rows.append, seconds=seconds), rows


def outcomes(rows: list[dict[str, Any]]) -> dict[str, bool]:
    return {one["implementation"]: one["ok"] for one in rows}


def test_a_contender_that_ends_the_worker_costs_its_own_row_alone() -> None:
    supervisor, rows = supervised(OBEDIENT)
    try:
        late = supervisor.run([Task("one", ("a", "dies", "b")), Task("two", ("babbles",))])
    finally:
        supervisor.close()
    assert late == []
    assert outcomes(rows) == {"a": True, "dies": False, "b": True, "babbles": True}
    assert len(rows) == 4
    (failed,) = (one for one in rows if not one["ok"])
    assert failed["reason"] == "the process ended with status 7"
    assert failed["key"] == "one | dies"


def test_a_contender_that_hangs_is_ended_at_its_limit() -> None:
    supervisor, rows = supervised(OBEDIENT)
    try:
        supervisor.run([Task("one", ("a", "hangs", "b"), seconds=1, limit=3)])
    finally:
        supervisor.close()
    assert outcomes(rows) == {"a": True, "hangs": False, "b": True}


def test_no_task_is_begun_without_time_for_it() -> None:
    supervisor, rows = supervised(OBEDIENT, seconds=20.0)
    long, short = Task("long", ("a",), seconds=100), Task("short", ("b",), seconds=1)
    try:
        assert supervisor.run([long, short]) == [long]
    finally:
        supervisor.close()
    assert outcomes(rows) == {"b": True}


def test_a_worker_that_cannot_start_says_why() -> None:
    supervisor, _ = supervised('print(\'{"unusable": "no GPU"}\')')
    with pytest.raises(WorkerError, match="no GPU"):
        supervisor.ready()
    supervisor, _ = supervised("raise SystemExit(1)")
    with pytest.raises(WorkerError, match="before it was ready"):
        supervisor.ready()
