"""The benchmark of statistics: everyone is right, and what is promised is asked of the rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import statistics
from benchmarks.statistics import MATERIALISING, OURS, QUICK, WANTS
from minibert.bench.gate import WrongError


def test_a_wrong_statistic_closes_the_gate() -> None:
    given = QUICK[0].inputs()
    found = statistics.materialised(WANTS["all"], given)
    with pytest.raises(WrongError, match="entropy differs"):
        statistics.compare(found | {"entropy": found["entropy"] * 1.01}, found)
    with pytest.raises(WrongError, match="argmax differs"):
        statistics.compare(found | {"argmax": torch.zeros_like(found["argmax"])}, found)
    with pytest.raises(WrongError, match="gave no map"):
        statistics.compare({n: one for n, one in found.items() if n != "map"}, found)


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    arguments = ["--quick", "--rounds", "1", "--threads", "1", "--output", str(output)]
    assert statistics.main(arguments) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == len(QUICK) * len(statistics.contenders(WANTS["T1"]))
    # Everyone is right, with and without causal order and padding.
    assert all(row["ok"] for row in rows)
    first = [row | {"median_ms": 7.5} for row in rows if row["task"] == str(QUICK[0])]
    partial = output.with_suffix(".partial.jsonl")
    partial.write_text("".join(f"{json.dumps(row)}\n" for row in first))
    assert statistics.main(arguments) == 0
    again = [json.loads(line) for line in output.read_text().splitlines()]
    assert again[: len(first)] == first
    assert len(again) == len(rows)


def promises(**changes: Any) -> list[str]:
    base = {"task": "a", "T": 4096, "ok": True, "median_ms": 2.5, "peak_bytes": 1000}
    ours = base | {"implementation": OURS, "median_ms": 1.0, "peak_bytes": 10} | changes
    others = [base | {"implementation": name} for name in MATERIALISING]
    return list(statistics.broken_promises([ours, *others]))


def test_what_is_not_kept_is_said() -> None:
    assert promises() == []
    assert promises(median_ms=2.0) == [f"a: not 2 x as fast as {MATERIALISING[0]}"]
    assert promises(T=512, median_ms=2.0) == []
    assert promises(T=512, median_ms=2.5) == [f"a: not 1 x as fast as {MATERIALISING[0]}"]
    assert promises(T=511, median_ms=3.0) == []
    full = {"T": 4096, "ok": True, "median_ms": 1.0, "peak_bytes": 10, "implementation": OURS}
    others = [full | {"ok": False, "implementation": name} for name in MATERIALISING]
    both = [full | {"task": "a"}, full | {"task": "a window 256", "median_ms": 0.5}]
    rows = [one | {"task": task["task"]} for task in both for one in others]
    found = list(statistics.broken_promises([*both, *rows]))
    assert found[0] == "a window 256: 0.50 of the time without a window, not 0.35"
    assert promises(peak_bytes=101) == ["a: 9.9 x less memory, not 10"]
    assert promises(ok=False, reason="z differs") == [f"a: {OURS} is wrong: z differs"]
