"""What stands between a worker and the machine: its guard, and a namespace where Linux allows one.

In namespaces of its own, of users and of processes, a worker sees no process but those it started.
So it cannot end, stop, read or change the judge or another worker, and when its guard ends the
kernel ends everything in there. The files of the user are not hidden from it.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

#: What `guard` is told through the leash, and how it says that it is done.
STOP, GO, DONE = b"stop", b"go", b"done"
_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_SET_DUMPABLE = 4


def hide() -> None:
    """Close the memory and the open files of this process to others of the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def guarded(leash: Connection, *theirs: int) -> None:
    """Return in a process below this one, which stays behind as its guard.

    `theirs` are the files that the worker alone keeps. The worker is stopped, let go and, when the
    leash is cut, ended with all that it started. The guard ends as it did: with its status, or with
    128 and the number of the signal.
    """
    with suppress(OSError):
        # Where memory runs out, this process ends before the judge.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    _unshare()
    hide()
    if inside := os.fork():
        _leave(inside, theirs)
    # The first process in the namespace: no signal from inside reaches it.
    if os.getpid() == 1:
        ctypes.CDLL(None).mount(b"proc", b"/proc", b"proc", 0, None)
    if worker := os.fork():
        for one in theirs:
            os.close(one)
        _hold(leash, worker)
        _leave(worker, ())
    os.setsid()
    leash.close()


def _unshare() -> None:
    """Enter new namespaces; those that this process starts from now on are in them."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(_NEWUSER | _NEWPID | _NEWNS):
        return
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text, encoding="utf-8")


def _hold(leash: Connection, worker: int) -> None:
    """Do what the leash says until it is cut or the worker has ended."""
    ended = os.pidfd_open(worker)
    while leash in wait([leash, ended]):
        try:
            told = leash.recv_bytes()
        except (EOFError, OSError):
            break
        # In a namespace of processes −1 means all others in it.
        to = -1 if os.getpid() == 1 else -worker
        with suppress(OSError):
            os.kill(to, signal.SIGSTOP if told == STOP else signal.SIGCONT)
        leash.send_bytes(DONE)
    for one in (-worker, worker):
        with suppress(OSError):
            os.kill(one, signal.SIGKILL)


def _leave(process: int, files: tuple[int, ...]) -> None:
    for one in files:
        os.close(one)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os._exit(code if code >= 0 else 128 - code)
