"""The experiments beside those of peers, and loading at size: what is wrong has no time."""

import ast
import os
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from benchmarks.examples import EXAMPLES, FOLDERS, PEERS, lines_of, options_of, table, wrong
from benchmarks.loading_at_size import measured, write
from benchmarks.session import REPOSITORY
from minibert.bench.gate import GateError
from minibert.bench.result_rows import read_rows

OURS = "p: clean 0.953, in /home/a\nsum of 26 terms 17.012\nbad because of dark city\n"


def test_each_experiment_is_written_with_each_peer_and_none_imports_minibert() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    for where in FOLDERS.values():
        assert sorted(path.name for path in (PEERS / where).glob("*.py")) == names
    for path in PEERS.rglob("*.py"):
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
    assert {(row["task"], row["contender"]) for row in rows if "lines" in row} == {
        (path.stem, who) for path in EXAMPLES.glob("*.py") for who in ("minibert", *FOLDERS)
    }
    for row in (row for row in rows if "lines" in row):
        folder = EXAMPLES if row["contender"] == "minibert" else PEERS / FOLDERS[row["contender"]]
        assert row["lines"] == lines_of(folder / f"{row['task']}.py"), row["task"]


SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 3584,
    "vocab_size": 32064,
}


def memory(process: int) -> dict[str, int]:
    """Bytes that a process holds of its own and of files of weights, by Linux's names.

    Pages of libraries, which come as they are needed, are left out.
    """
    found = {"RssAnon": 0, "RssFile": 0}
    weights = False
    try:
        lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, *rest = line.split()
        if not name.endswith(":"):
            weights = line.endswith(".safetensors")
        elif name == "Anonymous:" or (name == "Rss:" and weights):
            found["RssAnon" if name == "Anonymous:" else "RssFile"] += int(rest[0]) * 1024
    return {**found, "VmHWM": sum(found.values())}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_held_once_at_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.loading_at_size.memory", memory)
    marks, size = write(tmp_path / "model", SIZES)
    # Packed weights are another matter: they are copies, for which pages are given back.
    own = {"PYTHONPATH": str(REPOSITORY), "MINIBERT_LINEAR": "torch", "OMP_NUM_THREADS": "2"}
    environment = os.environ | own
    mapped = measured("minibert", tmp_path / "model", environment, marks, size)
    assert 0.9 * size <= mapped["peak_mapped_bytes"]
    assert mapped["peak_bytes"] - mapped["before_anonymous_bytes"] <= 1.05 * size
    assert mapped["peak_anonymous_bytes"] - mapped["before_anonymous_bytes"] <= 0.05 * size
    other = marks | {"lm_head.weight": marks["model.embed_tokens.weight"]}
    with pytest.raises(GateError, match=r"lm_head\.weight does not begin as it was written"):
        measured("minibert", tmp_path / "model", environment, other, size)
    wide = measured("minibert", tmp_path / "model", environment, marks, size, "float32")
    held = wide["peak_bytes"] - wide["before_anonymous_bytes"]
    assert size * 2 <= held <= 1.05 * size * 2
