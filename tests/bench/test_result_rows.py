"""Rows: where they come from, written whole or not at all, read back or refused."""

import subprocess
import sys

import pytest

from minibert.bench import result_rows
from minibert.bench.result_rows import command, commit, facts, read_rows, version, write_rows
from minibert.errors import MinibertError


def test_facts_tell_the_machine_versions_commit_and_command_and_no_folder():
    row = facts(threads=2, packages=("a-package-that-does-not-exist",))
    known = {"device", "cpu", "cores", "threads", "memory_gib", "load_at_start", "system"}
    assert set(row) == known | {"python", "versions", "commit", "command", "time"}
    assert row["versions"]["torch"] == version("torch")
    assert row["versions"]["a-package-that-does-not-exist"] is None
    assert row["versions"]["minibert"]
    assert "/" not in row["command"]


def test_the_command_keeps_names_of_files_and_options(monkeypatch):
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
    assert read_rows(path) == [{"ok": True, "what": "é"}]
    with pytest.raises(ValueError, match="Out of range"):
        write_rows([{"ok": True}, {"ok": float("nan")}], path)
    assert read_rows(path) == [{"ok": True, "what": "é"}]
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_every_committed_result_file_can_be_read():
    folder = result_rows._CHECKOUT / "benchmarks" / "results"
    files = list(folder.glob("*.jsonl"))
    assert files
    for path in files:
        assert all(row["commit"] and row["cpu"] for row in read_rows(path)), path


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}\nnone", "line 2: .*expected JSON"), ("[1]", "line 1 is no row; expected a JSON object")],
)
def test_what_is_no_row_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MinibertError, match=message):
        read_rows(path)
    with pytest.raises(MinibertError, match="cannot be read"):
        read_rows(tmp_path / "absent")
