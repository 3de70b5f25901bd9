"""`make gpu` without a GPU: clock, gate, a group of contenders, and all of it on tiny inputs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import contenders, gate, measure
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.journal import read, sources
from benchmarks.gpu.plan import EAGER, Shape, Task, plan
from benchmarks.session import REPOSITORY
from minibert.bench.clock import Clock
from minibert.bench.gate import WrongError

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


def test_short_warm_calls_are_timed_several_at_a_time_and_divided_again() -> None:
    runs: list[int] = []

    def run() -> tuple[str, float]:
        runs.append(0)
        return "a", 0.06

    found = measure.times({"a": run}, FakeClock())
    # 0.3 ms hold five calls of 0.06 ms; the fake says how long all of them took.
    assert found["a"]["warm_ms"] == pytest.approx(0.06 / 2 / 5, rel=1e-4)
    assert len(runs) == 2 + 2 * 5


@pytest.mark.parametrize("causal", [False, True])
def test_statistics_written_by_hand_pass_the_gate(causal: bool) -> None:
    shape = Shape(2, 3, 37, 16, causal, "float32")
    given = contenders.inputs(shape, torch.device("cpu"))
    built = contenders.build("by hand", given)
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
    built = contenders.build("by hand", given)
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
    assert by_name["by hand"]["median_ms"] > 0
    assert by_name["eager"]["tflops"] >= 0
    assert begun == [*task.contenders, "the clock"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path)]) == 1
    assert "no GPU" in capsys.readouterr().out
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
    assert "measured ceiling, copy" in printed.stdout


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
