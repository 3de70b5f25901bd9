"""`minibert train` resumes after any interruption with identical results."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run

from minibert.training.snapshot import Snapshot, snapshot_path
from tests.training.small_runs import SMALL, story_files


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return story_files(tmp_path_factory.mktemp("texts"), 1, 2, 3)


def start(*arguments: str) -> "subprocess.Popen[str]":
    """`minibert train` in a process of its own, with a single thread."""
    command = [sys.executable, "-m", "minibert", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def wait_for(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing happens"
        time.sleep(0.0005)


def new_snapshots(folder: Path, count: int) -> Callable[[], bool]:
    """True once that many snapshots were seen."""
    seen: set[int] = set()

    def happened() -> bool:
        path = snapshot_path(folder)
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        return len(seen) >= count

    return happened


def same_weights(one: Path, other: Path) -> bool:
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


class TestInterrupted:
    @pytest.mark.parametrize(
        ("task", "number"), [("causal-lm", "bfloat16"), ("pre-training", "--float32")]
    )
    def test_killed_at_a_random_step_and_resumed_it_ends_with_the_same_weights(
        self, task: str, number: str, texts: list[str], tmp_path: Path
    ) -> None:
        options = [*texts, "--task", task, *SMALL, "--steps", "40", "--set", "save_every=3"]
        options += ["--set", "log_every=20", *([number] if number.startswith("--") else [])]
        count, delay = random.randint(1, 6), random.random() * 0.03
        parts, whole = tmp_path / "parts", tmp_path / "whole"
        process = start(*options, "-o", str(parts))
        wait_for(new_snapshots(parts, count), process)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        moment = f"killed {delay:.4f} s after snapshot {count}"
        assert process.returncode == -signal.SIGKILL, moment
        assert not (parts / "model.safetensors").exists(), moment
        snapshot = Snapshot.load(parts)
        assert snapshot is not None
        assert 0 < snapshot.step < 40
        for folder in (parts, whole):
            result = run("train", *options, "-o", str(folder))
            assert result.exit_code == 0, result.output
        assert same_weights(parts, whole), f"{moment}, at step {snapshot.step}"
        assert (parts / "scores.jsonl").read_bytes() == (whole / "scores.jsonl").read_bytes()

    def test_ctrl_c_leaves_a_snapshot_of_the_step_it_came_in(
        self, texts: list[str], tmp_path: Path
    ) -> None:
        options = [*texts, "--task", "causal-lm", *SMALL, "--steps", "40"]
        options += ["--set", "save_every=1000", "--set", "log_every=4"]
        parts, whole = tmp_path / "parts", tmp_path / "whole"
        process = start(*options, "-o", str(parts))
        wait_for((parts / "scores.jsonl").exists, process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert (process.returncode, output) == (130, "")
        assert f"stopped; the same command resumes from the snapshot in {parts}" in errors
        assert "Traceback" not in errors
        snapshot = Snapshot.load(parts)
        assert snapshot is not None
        assert 4 <= snapshot.step < 40
        for folder in (parts, whole):
            assert run("train", *options, "-o", str(folder)).exit_code == 0
        assert same_weights(parts, whole)
