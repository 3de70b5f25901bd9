"""A run resumes with identical results, whatever stopped it and wherever."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import run as command

from minibert.training import loop
from minibert.training.loop import Measure, Run
from minibert.training.snapshot import Snapshot, snapshot_path
from tests.training.small_runs import SMALL, bert, gpt2, recipe, run, same_weights, story_files

FILES = ("model.safetensors", "tokenizer.json", "config.json", "scores.jsonl")


def before(monkeypatch, place, number, when=lambda self: True):
    """Send the signal once, before that method does its work."""
    kind, name = place
    method = getattr(kind, name)
    sent = []

    def pressed(self, *given):
        if not sent and when(self):
            sent.append(True)
            signal.raise_signal(number)
        return method(self, *given)

    monkeypatch.setattr(kind, name, pressed)


def counted(monkeypatch):
    """What is done from now on, in its order."""
    done = []

    def note(kind, name):
        method = getattr(kind, name)

        def noted(self, *given):
            done.append(name)
            return method(self, *given)

        monkeypatch.setattr(kind, name, noted)

    for place in ((Run, "advance"), (Measure, "scores"), (Snapshot, "save")):
        note(*place)
    return done


# Where the signal comes, of which step the snapshot is then, and how often heads were measured.
MOMENTS = {
    "in a step": ((Run, "advance"), lambda self: self.step == 1, 100, 2, 0),
    "in a step of the log": ((Run, "advance"), lambda self: self.step == 2, 100, 3, 0),
    "in a step after one": ((Run, "advance"), lambda self: self.step == 4, 100, 5, 1),
    "behind a step": ((loop.tqdm, "update"), lambda self: True, 100, 2, 0),
    "while heads are measured": ((Measure, "scores"), lambda self: True, 100, 3, 0),
    "while a snapshot is written": ((Snapshot, "save"), lambda self: True, 2, 2, 0),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs, by family and by how often they save."""
    folder, found = tmp_path_factory.mktemp("whole"), {}

    def made(family, every):
        if (family, every) not in found:
            chosen = {
                "config": {"gpt2": gpt2, "bert": bert}[family](),
                "recipe": recipe(save_every=every, bfloat16=family == "gpt2"),
            }
            into = folder / f"{family}-{every}"
            found[family, every] = chosen, run(into, **chosen), into
        return found[family, every]

    return made


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("family", "number"), [("gpt2", signal.SIGINT), ("bert", signal.SIGTERM)])
def test_an_interrupt_ends_with_a_snapshot_and_the_run_resumes(
    moment, family, number, whole, tmp_path, monkeypatch
):
    place, when, every, step, measured = MOMENTS[moment]
    chosen, model, folder = whole(family, every)
    with monkeypatch.context() as patch:
        before(patch, place, number, when)
        done = counted(patch)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, **chosen)
    finished = done.count("scores") - (moment == "while heads are measured")
    assert (done.count("advance"), finished) == (step, measured)
    assert done[-1] == "save"
    assert Snapshot.load(tmp_path).step == step
    assert not (tmp_path / "model.safetensors").exists()
    lines = []
    assert same_weights(run(tmp_path, note=lines.append, **chosen), model)
    # What was cut off is measured first, and nothing twice.
    assert [int(line.split()[1]) for line in lines] == [3, 6][measured:]
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_finished_run_does_no_more_steps(whole, tmp_path, monkeypatch):
    chosen, model, _ = whole("gpt2", 2)
    run(tmp_path, **chosen)
    for name in ("model.safetensors", "README.md", "scores.jsonl"):
        (tmp_path / name).unlink()
    monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("a step was done"))
    lines = []
    assert same_weights(run(tmp_path, note=lines.append, **chosen), model)
    assert lines == []
    assert (tmp_path / "model.safetensors").exists()
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2


def wait_for(happened, process):
    until = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing happens"
        time.sleep(0.0005)


@pytest.mark.parametrize(
    ("number", "task"), [(signal.SIGKILL, "pre-training"), (signal.SIGINT, "causal-lm")]
)
def test_the_command_resumes_after_a_kill_and_after_ctrl_c(number, task, tmp_path: Path):
    options = [*story_files(tmp_path, 1, 2, 3), "--task", task, *SMALL, "--steps", "40"]
    options += ["--set", "save_every=3", "--set", "log_every=4"]
    options += [] if task == "causal-lm" else ["--float32"]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    seen, count, delay = set(), random.randint(1, 6), random.random() * 0.03

    def enough():
        path = snapshot_path(parts)
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        return len(seen) >= count

    process = subprocess.Popen(
        [sys.executable, "-m", "minibert", "train", *options, "-o", str(parts)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    wait_for(enough, process)
    time.sleep(delay)
    process.send_signal(number)
    output, errors = process.communicate()
    moment = f"{number.name} {delay:.4f} s after snapshot {count}"
    if number == signal.SIGINT:
        assert (process.returncode, output) == (130, "")
        assert f"stopped; the same command resumes from the snapshot in {parts}" in errors
        assert "Traceback" not in errors
    else:
        assert process.returncode == -number, moment
    assert not (parts / "model.safetensors").exists(), moment
    assert 0 < Snapshot.load(parts).step < 40
    for folder in (parts, whole):
        result = command("train", *options, "-o", str(folder))
        assert result.exit_code == 0, result.output
    for name in ("model.safetensors", "scores.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), moment
