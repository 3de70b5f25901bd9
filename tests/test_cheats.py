"""Every kernel in `cheats/` gets the verdict that its first lines name."""

import json
import re

import pytest
from cheats.kernels import KERNELS
from command_line import run
from planted_kernels import alone, written

from minibert.bench import contest

#: Past the rows that the gate reads, so that some are left out.
SIZE = ("--tokens", "96", "--heads", "3", "--baseline", "math", "--rounds", "2")
CASES = [
    pytest.param(name, *one, marks=[alone] if inside else [], id=f"{name}-{one[0]}")
    for name, text in KERNELS.items()
    for command, inside, *rest in re.findall(
        r"^# (check|bench)( in namespaces)?: (right|wrong|refused|no time)(?:: (.*))?$",
        text,
        re.MULTILINE,
    )
    for one in [(command, *rest)]
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(contest, "flush_bytes", lambda device: 2**20)
    monkeypatch.setattr("minibert.bench.judge.QUICK_TOKENS", (17,))
    monkeypatch.setattr("minibert.bench.contest.TURN_SECONDS", 1.0)


def test_every_kernel_names_its_verdict_and_every_cheat_its_source():
    assert len(KERNELS) > 20
    assert {case.values[0] for case in CASES} == set(KERNELS)
    assert all(name.startswith("honest") or "ource:" in text for name, text in KERNELS.items())


@pytest.mark.parametrize(("name", "command", "verdict", "text"), CASES)
def test_the_verdict_is_the_one_that_is_named(tmp_path, name, command, verdict, text):
    rows, target = tmp_path / "rows.jsonl", written(tmp_path, KERNELS[name], f"{name}.py")
    options = ["--d-head", "16", "--dtype", "float32", "--quick"]
    options += (
        [*SIZE, "--full", "--output", str(rows)] if command == "bench" else ["--tokens", "17"]
    )
    # Long enough for a call on a machine that does other things as well.
    options += ["--timeout", "60"]
    result = run(command, target, *options)
    assert result.exit_code == int(verdict != "right"), result.output
    assert text in (result.stderr if verdict == "refused" else result.stdout), result.output
    # However the code prints, the report begins with our line.
    said = {"right": "  right  ", "no time": "  right  ", "wrong": "  WRONG  ", "refused": ""}
    expected = f"{name}.py:attention{said[verdict]}" if said[verdict] else ""
    assert result.stdout.startswith(expected), result.output
    assert bool(result.stdout) == bool(expected)
    # What is wrong is never timed.
    assert rows.exists() == (command == "bench" and verdict != "wrong")
    if rows.exists():
        kernel = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
        kernel = [row for row in kernel if row["role"] == "kernel"]
        assert [("median_ms" in row) for row in kernel] == [verdict == "right"] * 2
        if name == "forges_the_time":
            # It sleeps for 5 ms.
            assert all(row["median_ms"] > 5 for row in kernel)
