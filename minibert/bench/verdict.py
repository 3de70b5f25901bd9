"""A command in a process of its own, whose verdict must arrive: ending it is not passing.

A kernel can end the process it
runs in, with os._exit(0) or by a crash in C, and status 0 would say that it is right. So the
command is forked: the child does all of it and leaves its verdict in a file that both hold, and the
parent, which runs nothing of the user's, gives that as the status. Imports nothing heavy: a fork is
cheap and safe as long as there is neither torch nor a thread.
"""

import faulthandler
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any

from minibert.errors import MinibertError

__all__ = ["at", "ends", "supervised"]

_note: dict[str, Any] = {"at": "", "status": None}
_file: int | None = None


def supervised(work: Callable[[], None], label: str) -> int:
    """Run `work` in a child process; its status, 0 when it came to its end.

    The child goes on behind this call as the parent does: what `work` raises is raised there.
    Where it cannot be forked, `work` runs in this process. Raises MinibertError, in the parent,
    when the child ended before `work` did or crashed after it.
    """
    if not hasattr(os, "fork") or "torch" in sys.modules or threading.active_count() > 1:
        work()
        return 0
    with tempfile.TemporaryFile() as note, tempfile.TemporaryFile() as trace:
        alive, parent_lives = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(parent_lives)
            _follow(alive)
            _run(work, note, trace)
            return 0
        os.close(alive)
        code = _code_of(child, parent_lives)
        return _status(label, code, json.loads(_text(note) or "{}"), _text(trace))


def at(place: str) -> None:
    """Note what is done now, for the message should the process end there."""
    _write(at=place)


def ends(status: int) -> None:
    """Note the verdict: the process may end from here on."""
    _write(status=status)


def _run(work: Callable[[], None], note: IO[bytes], trace: IO[bytes]) -> None:
    global _file
    # Copies that stay open: the child leaves the block of the two files before it ends.
    _file = os.dup(note.fileno())
    faulthandler.enable(os.dup(trace.fileno()), all_threads=False)
    try:
        work()
    except BaseException as error:
        ends(int(getattr(error, "exit_code", 1)))
        raise
    ends(0)


def _write(**changes: Any) -> None:
    _note.update(changes)
    if _file is not None:
        os.ftruncate(_file, 0)
        os.pwrite(_file, json.dumps(_note).encode(), 0)


def _follow(alive: int) -> None:
    """End this process when the parent has ended, however it did."""

    def wait() -> None:
        os.read(alive, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _code_of(child: int, parent_lives: int) -> int:
    """The exit status of the child; minus the number of the signal that ended it."""
    try:
        _, raw = os.waitpid(child, 0)
    except BaseException:
        os.close(parent_lives)
        os.waitpid(child, 0)
        raise
    os.close(parent_lives)
    return os.waitstatus_to_exitcode(raw)


def _status(label: str, code: int, note: dict[str, Any], trace: str) -> int:
    status = note.get("status")
    if status is not None and code >= 0:
        # A function that runs at exit cannot turn the verdict into a 0.
        return code or int(status)
    file = label.rpartition(":")[0]
    where = f", at {note['at']}" if note.get("at") else f", while {file} was read"
    if status is not None:
        where = " after the last call"
    if code < 0:
        lines = re.findall(rf'File ".*{re.escape(file)}", line (\d+)', trace)
        line = f" (line {lines[0]})" if lines else ""
        raise MinibertError(f"{label} crashed the process{where}: {_signal(-code)}{line}.")
    raise MinibertError(
        f"{label} ended the process with status {code}{where}, before there was a verdict: "
        "os._exit(), or exit() in C. A kernel returns its dictionary or raises an exception."
    )


def _signal(number: int) -> str:
    name = signal.Signals(number).name
    meaning = {
        "SIGSEGV": "memory was read or written that is not there",
        "SIGBUS": "memory was read or written that is not there",
        "SIGABRT": "C code gave up, as on a failed assertion or damaged memory",
        "SIGFPE": "a whole number was divided by 0",
        "SIGKILL": "it was killed, as when memory runs out",
    }.get(name)
    return f"{name}, {meaning}" if meaning else name


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
