"""Every kernel in `cheats/` gets the verdict that its docstring names."""

import ast
import json
import re
from pathlib import Path

import pytest
from command_line import run

from minibert.bench import clock

FOLDER = Path(__file__).with_name("cheats")
KERNELS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "plain_attention")
#: Past the rows that the gate reads, so that some are left out.
SIZE = ("--tokens", "96", "--heads", "3", "--baseline", "math", "--rounds", "2")


def verdicts(path):
    """The command, the verdict and the text of each line that names one."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return re.findall(r"^(check|bench): (right|wrong|refused|no time)(?:: (.*))?$", text, re.M)


CASES = [(path, *one) for path in KERNELS for one in verdicts(path)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clock, "flush_bytes", lambda device: 2**20)
    monkeypatch.setattr("minibert.bench.kernel_gate.QUICK_TOKENS", (17,))
    monkeypatch.setattr("minibert.bench.clock.TURN_SECONDS", 1.0)


def test_every_kernel_names_its_verdict_and_every_cheat_its_source():
    assert len(KERNELS) > 30
    assert {path for path, *_ in CASES} == set(KERNELS)
    for path in KERNELS:
        assert path.stem.startswith("honest") or "Source: " in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "command", "verdict", "text"),
    CASES,
    ids=[f"{path.stem}-{command}" for path, command, *_ in CASES],
)
def test_the_verdict_is_the_one_that_is_named(tmp_path, path, command, verdict, text):
    rows = tmp_path / "rows.jsonl"
    options = ["--d-head", "16", "--dtype", "float32", "--quick"]
    options += (
        [*SIZE, "--full", "--output", str(rows)] if command == "bench" else ["--tokens", "17"]
    )
    # Long enough for a call on a machine that does other things as well.
    options += ["--timeout", "2" if path.stem == "hangs" else "60"]
    result = run(command, f"{path}:attention", *options)
    assert result.exit_code == int(verdict != "right"), result.output
    assert text in (result.stderr if verdict == "refused" else result.stdout), result.output
    # However the code prints, the report begins with our line.
    said = {"right": "  right  ", "no time": "  right  ", "wrong": "  WRONG  ", "refused": ""}
    expected = f"{path.name}:attention{said[verdict]}" if said[verdict] else ""
    assert result.stdout.startswith(expected), result.output
    assert bool(result.stdout) == bool(expected)
    if command == "bench" and verdict != "wrong":
        kernel = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
        kernel = [row for row in kernel if row["role"] == "kernel"]
        assert [("median_ms" in row) for row in kernel] == [verdict == "right"] * 2
        if path.stem == "patches_the_clock":
            # It sleeps for 5 ms.
            assert all(row["median_ms"] > 5 for row in kernel)
