"""How much a run still does after Ctrl-C: counted in steps, measurements and snapshots."""

import signal
from pathlib import Path

import pytest

from minibert.analysis import HeadScores
from minibert.training.loop import Measure, Run
from minibert.training.snapshot import Snapshot
from tests.training.small_runs import bert, recipe, same_weights
from tests.training.test_loop import run, stop_in


@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_heads_are_measured_does_no_more_steps_and_ends_there(
    step: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"config": bert(), "recipe": recipe(steps=6, log_every=3, save_every=100)}
    whole = run(tmp_path / "whole", **chosen)
    done: list[str] = []
    advance, save = Run.advance, Snapshot.save

    def counted(self: Run) -> dict[str, float]:
        done.append("step")
        return advance(self)

    def saved(self: Snapshot, folder: Path) -> None:
        done.append("save")
        save(self, folder)

    def scores(self: Measure) -> HeadScores:
        done.append("heads")
        if done.count("step") == step:
            signal.raise_signal(number)
            done.append("measured after the signal")
        return head_scores(self)

    head_scores = Measure.scores
    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", counted)
        patch.setattr(Snapshot, "save", saved)
        patch.setattr(Measure, "scores", scores)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", **chosen)
    assert done == [*["step", "step", "step", "heads"] * (step // 3), "save"]
    lines: list[str] = []
    resumed = run(tmp_path / "parts", note=lines.append, **chosen)
    assert same_weights(resumed, whole)
    # What was cut off is measured first.
    assert [int(line.split()[1]) for line in lines] == list(range(step, 7, 3))
    for name in ("model.safetensors", "scores.jsonl"):
        ours, theirs = tmp_path / "parts" / name, tmp_path / "whole" / name
        assert ours.read_bytes() == theirs.read_bytes(), name
    lines.clear()
    run(tmp_path / "parts", note=lines.append, **chosen)
    assert lines == []


@pytest.mark.parametrize(("step", "measured"), [(2, 0), (3, 0), (5, 1)])
def test_an_interrupt_in_a_step_ends_the_run_behind_it(
    step: int, measured: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    head_scores = Measure.scores

    def scores(self: Measure) -> HeadScores:
        found.append(1)
        return head_scores(self)

    monkeypatch.setattr(Measure, "scores", scores)
    stop_in(step, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, recipe=recipe(steps=6, log_every=3, save_every=100))
    snapshot = Snapshot.load(tmp_path)
    assert snapshot is not None
    assert (snapshot.step, len(found)) == (step, measured)


def test_an_interrupt_while_a_snapshot_is_written_does_no_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Snapshot.save

    def pressed(self: Snapshot, folder: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        save(self, folder)

    monkeypatch.setattr(Snapshot, "save", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, recipe=recipe(steps=6, log_every=100, save_every=2))
    snapshot = Snapshot.load(tmp_path)
    assert snapshot is not None
    assert snapshot.step == 2
