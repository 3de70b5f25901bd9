"""Every file that minibert writes: its permissions, and that no link at its place is followed."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert import writing
from minibert.bench.result_rows import write_rows
from minibert.training.loop import write_checkpoint
from minibert.viz.document import write_bytes
from tests.trace.editing import model_of

MODEL = model_of("gpt2")
TRACE = MODEL.trace([[5, 7, 11]])

#: By what is written: the file, and what writes it.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a trace": ("a.trace", TRACE.save),
    "a model": ("model.safetensors", lambda path: MODEL.save(path.parent)),
    "a page": ("a.html", lambda path: TRACE.view().save(path)),
    "a picture": ("a.svg", lambda path: write_bytes(b"<svg/>", path)),
    "rows of a benchmark": ("a.jsonl", lambda path: write_rows([], path)),
    "a checkpoint": ("a.pt", lambda path: write_checkpoint(path, {})),
}


@pytest.fixture(autouse=True)
def the_users_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=6)
@given(mask=st.sampled_from([0o022, 0o077, 0o027, 0]), mode=st.none() | st.integers(0o600, 0o777))
def test_a_file_has_the_permissions_of_the_mask_or_of_the_file_replaced(
    writer, mask, mode, tmp_path_factory
):
    name, write = WRITERS[writer]
    path = tmp_path_factory.mktemp("written") / name
    os.umask(mask)
    if mode is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(mode)
    write(path)
    assert path.stat().st_size or writer == "rows of a benchmark"
    assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(0o666 & ~mask if mode is None else mode)
    assert not list(path.parent.glob(".*.unfinished"))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_at_the_unfinished_files_name_is_not_followed(writer, tmp_path, monkeypatch):
    name, write = WRITERS[writer]
    path, precious = tmp_path / name, tmp_path / "precious"
    precious.write_text("precious")
    path.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(writing.secrets, "token_hex", lambda size: "foreseen")
    planted = [
        path.with_name(f".{each}.{os.getpid()}.foreseen.unfinished")
        for each in (path.name, "config.json")
    ]
    for link in planted:
        link.symlink_to(precious)
    with pytest.raises((OSError, minibert.MinibertError), match=r"File exists|could not be"):
        write(path)
    assert precious.read_text() == "precious"
    assert all(link.is_symlink() for link in planted)
    assert not path.exists()


KILLED = """
import os, sys
from pathlib import Path
from minibert.writing import replacing

with replacing(Path(sys.argv[1])) as unfinished:
    unfinished.write_text("half")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_write_that_is_killed_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a.trace"
    path.write_text("whole")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "whole"
