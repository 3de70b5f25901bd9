"""The experiments beside those of peers: what is wrong has no time."""

import ast
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from benchmarks.examples import CONTENDERS, EXAMPLES, PEERS, lines_of, options_of, table, wrong
from minibert.bench.result_rows import read_rows

OURS = "p: clean 0.953, in /home/a\nsum of 26 terms 17.012\nbad because of dark city\n"


def test_each_experiment_is_written_with_the_peer_and_none_imports_minibert() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert sorted(path.name for path in PEERS.glob("*.py")) == names
    for path in PEERS.parent.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text("utf-8")))
        found = {a.name for node in tree if isinstance(node, ast.Import) for a in node.names}
        tree = ast.walk(ast.parse(path.read_text("utf-8")))
        found |= {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}
        assert not any(name.partition(".")[0] == "minibert" for name in found)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (OURS, ""),
        ("p: clean 0.96, in /b\nsum of 27 terms 17.02\nbad because of city dark\n", ""),
        (OURS.replace("0.953", "0.931"), "1 of 2 numbers differ from ours"),
        (OURS.replace("bad", "good"), "it printed other words than ours"),
        (OURS.replace("17.012", ""), "it printed other words than ours"),
    ],
)
def test_a_peer_counts_when_it_prints_our_words_and_numbers(printed: str, reason: str) -> None:
    assert wrong(CompletedProcess([], 0, printed, ""), OURS, 1e-3) == reason


def test_a_script_that_fails_does_not_count_and_says_why() -> None:
    done = CompletedProcess([], 1, OURS, "Traceback\nValueError: no\n")
    assert wrong(done, OURS, 1e-3) == "ValueError: no"


def test_lines_are_those_with_code(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text('"""Two\n\nlines."""\n\nimport os\n\n# Why.\nprint(\n    os.name\n)\n')
    assert lines_of(script) == 4
    script.write_text("import argparse, os\nparser = os.f(\n    1\n)\nx = parser.y()\nz = 1\n")
    assert options_of(script) == 5


def test_the_table_of_the_examples_is_that_of_the_result_file_it_names() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    [name] = re.findall(r"\[`(examples-\S+\.jsonl)`\]", page)
    rows = read_rows(EXAMPLES.parent / "benchmarks" / "results" / name)
    assert "\n".join(table(rows)) in page
    counted = [row for row in rows if "lines" in row and row["contender"] in CONTENDERS]
    assert {(row["task"], row["contender"]) for row in counted} == {
        (path.stem, who) for path in EXAMPLES.glob("*.py") for who in CONTENDERS
    }
    for row in counted:
        folder = EXAMPLES if row["contender"] == "minibert" else PEERS
        assert row["lines"] == lines_of(folder / f"{row['task']}.py"), row["task"]
