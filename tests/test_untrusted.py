"""The door by itself; test_hostile_files.py has what comes through it in whole checkpoints."""

import sys

import pytest

from minibert import untrusted
from minibert.errors import CheckpointError, TraceError
from minibert.untrusted import (
    check_nesting,
    check_revision,
    guarded,
    open_regular,
    read_json,
    shared_trials,
    tried_out,
)


class PanicError(BaseException):
    """As the panics of a library in Rust: no Exception."""


@pytest.mark.parametrize("error", [PanicError, RecursionError, MemoryError, OSError, Exception])
def test_whatever_is_thrown_becomes_the_error_asked_for(error):
    message = r"here: cannot be read \(.*\\x1b"
    with pytest.raises(TraceError, match=message) as raised, guarded("here", TraceError):
        raise error("\x1b[31m" * 1000)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, CheckpointError])
def test_what_is_no_failure_of_the_reader_passes(error):
    with pytest.raises(error, match=r"^as it is$"), guarded("here", TraceError):
        raise error("as it is")


def test_a_file_of_holes_is_refused_and_an_honest_one_of_its_length_is_not(tmp_path):
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(b"header")
        file.truncate(2**27)
    with pytest.raises(CheckpointError, match="holes"):
        open_regular(path)
    path.write_bytes(bytes(2**20))
    open_regular(path).close()


@pytest.mark.parametrize(("depth", "fits"), [(60, True), (70, False)])
def test_json_has_a_limit_of_depth(tmp_path, depth, fits):
    path = tmp_path / "config.json"
    path.write_text('{"a": ' + "[" * depth + "]" * depth + "}")
    if fits:
        assert read_json(path)["a"]
    else:
        with pytest.raises(CheckpointError, match="nested more than 64 deep"):
            read_json(path)


def test_json_has_a_limit_of_the_number_of_values():
    check_nesting({"a": [0] * 2**20}, "here")
    for many in ([0] * 2**21, [[0] * 2**20, [0] * 2**20]):
        with pytest.raises(CheckpointError, match=r"^here: more than 2097152 values"):
            check_nesting({"a": many}, "here")


IN_MEMORY = pytest.mark.skipif(sys.platform != "linux", reason="memory has a limit on Linux")


@pytest.mark.parametrize(
    ("asked", "ended"),
    [
        (("builtins", "bytes", 2**20), ""),
        pytest.param(("builtins", "bytearray", 2**30), "ended with status 1", marks=IN_MEMORY),
        (("time", "sleep", 60), "took more than 2 s"),
        (("itertools", "count", "x"), "ended with status 1"),
        (("os", "abort"), "ended with status -6"),
        (("os", "_exit", 3), "ended with status 3"),
        (("os", "write", 1, "0"), "ended with status 1"),
        (("no_such_module", "x"), "ended with status 1"),
    ],
)
def test_a_trial_has_limits_and_harms_none_that_shares_its_process(asked, ended, monkeypatch):
    def found():
        with monkeypatch.context() as patch:
            patch.setattr(untrusted, "_SECONDS", 1 if asked[0] == "time" else 60)
            return tried_out(*asked, memory=2**29)

    assert found() == ended
    with shared_trials():
        for _ in range(2):
            assert found() == ended
            assert tried_out("builtins", "bytes", 1) == ""


def test_a_revision_is_a_name_that_leads_nowhere():
    for name in ("main", "v1.0", "refs/pr/3", "a" * 40):
        assert check_revision(name) == name
    for wrong in ("..", "a/../b", "/a", "", "\x1b", None):
        with pytest.raises(CheckpointError, match="a branch, a tag"):
            check_revision(wrong)
