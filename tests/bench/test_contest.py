"""Gate, clock, turns and rows: who is wrong is never timed, and no time is asserted."""

import itertools
import json
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from benchmarks.runner import Truth, gated, timed_rows
from minibert.bench import contest as timing
from minibert.bench.contest import Clock, Contender
from minibert.bench.result_rows import (
    GateError,
    Timing,
    WrongError,
    command,
    commit,
    facts,
    failure,
    quantile,
    version,
    within,
    write_rows,
)

RIGHT = {"logits": torch.linspace(-3, 5, 11), "hidden 0": torch.ones(2, 3)}
EXACT, LOSSY = Truth(RIGHT, absolute=1e-4), Truth(RIGHT, relative=0.05)


LOGITS = RIGHT["logits"]


@pytest.mark.parametrize(
    ("truth", "found", "message"),
    [
        (EXACT, {"logits": LOGITS + 2e-4}, "logits differs by 2.00e-04, allowed 1.00e-04"),
        (EXACT, {"logits": LOGITS * float("nan")}, "logits differs by nan"),
        (EXACT, {"hidden 0": torch.ones(3, 2)}, r"hidden 0 has shape \(3, 2\), expected \(2, 3\)"),
        (EXACT, {"probs 0": torch.ones(2, 3)}, "probs 0 has shape .* expected nothing"),
        (EXACT, {}, "nothing was captured"),
        (LOSSY, {"logits": LOGITS + 0.3}, r"allowed 2\.5"),
        (
            Truth(RIGHT, relative=0.05, limits={"logits": 0.1}),
            {"logits": LOGITS + 0.2},
            "allowed 1",
        ),
        (Truth(RIGHT, absolute=1e-4, complete=True), {"logits": LOGITS}, "gave no hidden 0"),
    ],
)
def test_a_wrong_result_does_not_pass(truth, found, message):
    with pytest.raises(WrongError, match=message):
        truth.check(found)


def test_the_largest_error_of_each_kind_is_reported_and_a_tolerance_must_be_declared():
    fields = EXACT.check(RIGHT | {"logits": LOGITS + 5e-5})
    assert fields["errors"]["hidden"] == 0
    assert fields["max_error"] == pytest.approx(5e-5, rel=1e-2)
    assert fields["compared"] == 2
    assert EXACT.check({"logits": LOGITS})["compared"] == 1
    found = LOSSY.check(RIGHT | {"logits": LOGITS + 0.2})
    assert found["max_error"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no tolerance was declared for logits"):
        Truth(RIGHT).check(RIGHT)
    assert within("z", 1.0, 1.0) == 1.0
    with pytest.raises(WrongError, match="z differs by nan of the largest"):
        within("z", float("nan"), 1.0, of=" of the largest")


@pytest.mark.parametrize(
    ("error", "wrong", "reason"),
    [
        (WrongError("z differs"), True, "z differs"),
        (GateError("not installed"), False, "not installed"),
        (RuntimeError("/opt/some/file.py cannot\n be read"), False, "RuntimeError: <path> cannot"),
    ],
)
def test_a_failure_is_a_reason_without_folders_and_says_whether_it_was_wrong(error, wrong, reason):
    row = failure(error)
    assert (row["ok"], row["wrong"]) == (False, wrong)
    assert row["reason"].startswith(reason)


def test_a_row_has_medians_spreads_ratios_and_noise():
    timing = Timing([[5.0, 1.0, 2.0], [3.0, 4.0, 100.0]])
    expected = {"median_ms": 3.5, "p20_ms": 2.0, "p80_ms": 5.0, "calls": 6, "rounds": 2}
    assert timing.fields() == expected
    assert timing.divided(10).fields()["median_ms"] == 0.35
    assert quantile([10.0, 0.0], 0.2) == pytest.approx(2.0)
    assert quantile([7.0], 0.8) == 7.0
    mine, base = Timing([[2.0], [6.0], [4.0]]), Timing([[1.0], [2.0], [4.0]])
    assert mine.ratios(base) == {"ratio": 2.0, "ratio_p20": 1.4, "ratio_p80": 2.6}
    assert Timing([[1.0], [1.2], [1.0], [1.2]]).noise == pytest.approx(0.2 / 1.1)
    assert Timing([[1.0, 2.0]]).noise == 0.0


@pytest.fixture
def passes(monkeypatch):
    """Seconds pass only when it is told so many."""
    now = [100.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "flush_bytes", lambda device: 64)
    return lambda seconds: now.append(now.pop() + seconds)


def test_each_call_is_timed_alone_with_a_cold_cache_filled_off_the_clock(passes):
    clock, lasting, left = Clock(), itertools.cycle([0.001, 0.002, 0.004]), []
    clock._flush.fill_(1)

    def run():
        left.append(int(clock._flush.sum()))
        clock._flush.fill_(1)
        passes(next(lasting))
        return len(left)

    milliseconds, result = clock.turn(run, calls=3)
    assert milliseconds == pytest.approx([1.0, 2.0, 4.0])
    assert result == 3  # what the last call gave
    milliseconds, _ = clock.turn(run, calls=3, cold=True)
    assert milliseconds == pytest.approx([1.0, 2.0, 4.0])
    assert left == [64] * 3 + [0] * 3


@pytest.mark.parametrize(
    ("seconds", "calls"), [(1e-6, 20), (0.0024, 20), (0.0049, 10), (0.02, 3), (1.0, 3), (0.0, 20)]
)
def test_a_turn_is_as_many_calls_as_fit_a_twentieth_of_a_second_between_3_and_20(
    passes, seconds, calls
):
    # The first call compiles and does not count.
    lasting = iter([9.0, seconds])
    assert Clock().calls(lambda: passes(next(lasting)), fewest=3) == calls
    assert next(lasting, None) is None


TRUTH = Truth({"z": torch.arange(5.0)}, absolute=1e-6)


def contest(runs, **options):
    verdicts = {name: gated(one, TRUTH.check) for name, one in runs.items()}
    return timed_rows(runs, verdicts, Clock(), **options)


@pytest.fixture
def noted(monkeypatch):
    """Makes contenders that note each of their calls in its own `calls`; a turn is one call."""
    monkeypatch.setattr("minibert.bench.contest.MOST_CALLS", 1)

    def contender(name, *, plus=0.0, fails_at=None):
        def run():
            contender.calls.append(name)
            if fails_at is not None and contender.calls.count(name) >= fails_at:
                raise RuntimeError("out of memory")
            return torch.arange(5.0) + plus

        return Contender(run, lambda z: {"z": z})

    contender.calls = []
    return contender


def test_a_wrong_or_failing_contender_is_a_row_with_the_reason_and_is_never_timed(noted):
    runs = {
        "right": noted("right"),
        "wrong": noted("wrong", plus=1e-3),
        "broken": noted("broken", fails_at=1),
    }
    rows = contest(runs, rounds=2, baseline="right")
    assert list(rows) == ["right", "wrong", "broken"]
    assert rows["right"]["ok"]
    assert (rows["right"]["ratio"], rows["right"]["rounds"], rows["right"]["calls"]) == (1, 2, 2)
    assert rows["right"]["peak_bytes"] >= 5 * 4
    assert (rows["wrong"]["wrong"], rows["broken"]["wrong"]) == (True, False)
    assert rows["wrong"]["reason"].startswith("z differs by 1.00e-03")
    assert rows["broken"]["reason"] == "RuntimeError: out of memory"
    for name in ("wrong", "broken"):
        assert "median_ms" not in rows[name]
        assert noted.calls.count(name) == 1


def test_who_fails_under_the_clock_has_no_time_and_the_others_go_on(noted):
    runs = {"late": noted("late", fails_at=4), "right": noted("right")}
    rows = contest(runs, rounds=3, baseline="right", memory=False)
    assert rows["right"]["calls"] == 3
    said = "right when checked, but while it was timed: RuntimeError: out of memory"
    assert (rows["late"]["ok"], rows["late"]["reason"]) == (False, said)
    assert "median_ms" not in rows["late"]
    assert noted.calls.count("late") == 4


def test_settings_are_entered_around_every_call_and_left_again(noted):
    depth = []

    @contextmanager
    def around():
        depth.append(1)
        yield
        depth.pop()

    def run():
        assert depth == [1]
        return torch.arange(5.0)

    one = Contender(run, lambda z: {"z": z}, around)
    rows = contest({"a": one}, rounds=2, baseline="a")
    assert rows["a"]["ok"], rows
    assert depth == []


def test_facts_tell_the_machine_versions_commit_and_command_and_no_folder(monkeypatch):
    row = facts(threads=2, packages=("a-package-that-does-not-exist",))
    known = {"device", "cpu", "cores", "threads", "memory_gib", "load_at_start", "system"}
    assert set(row) == known | {"python", "versions", "commit", "command", "time"}
    assert row["versions"]["torch"] == version("torch")
    assert row["versions"]["a-package-that-does-not-exist"] is None
    assert row["versions"]["minibert"]
    assert "/" not in row["command"]
    words = ["/opt/x/bench.py", "--output=/home/me/rows.jsonl", "/home/me/kernel.py:run", "--quick"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    assert command() == "bench.py --output=rows.jsonl kernel.py:run --quick"


def test_the_commit_is_that_of_minibert_and_not_of_a_folder_around_it(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    inside = tmp_path / "site-packages"
    inside.mkdir()
    monkeypatch.delenv("MINIBERT_COMMIT", raising=False)
    assert commit(inside) is None
    monkeypatch.setenv("MINIBERT_COMMIT", "abc")
    assert commit(inside) == "abc"


def test_rows_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    write_rows([{"ok": True, "what": "é"}], path)
    with pytest.raises(ValueError, match="Out of range"):
        write_rows([{"ok": True}, {"ok": float("nan")}], path)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"ok": True, "what": "é"}
    ]
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_a_flush_on_a_gpu_lets_go_of_lines_that_a_kernel_made_persistent(monkeypatch):
    """What persists is not pushed out by writing (llm.c 851). Without a GPU: the calls alone."""
    done = []
    driver = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: done.append("reset"))
    monkeypatch.setattr(timing.ctypes, "CDLL", lambda name: driver)
    clock = Clock("cpu")
    clock.device = torch.device("cuda")
    clock.__dict__["_flush"] = SimpleNamespace(zero_=lambda: done.append("fill"))
    clock.flush()
    assert done == ["reset", "fill"]
