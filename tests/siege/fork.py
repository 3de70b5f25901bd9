"""Cases in a process of their own, with limits on memory and time for each.

A process carries out several cases, because to copy a process takes longer than most of them. It
ends after a failure, and another one goes on behind the case that ended it.
"""

import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tests.siege.judge import judge

# Of the processor, so that a busy machine is no failure; and of waiting, as for a pipe.
MEMORY, SECONDS, WAITING = 2**30, 10, 180.0
FORK = multiprocessing.get_context("fork")
Result = tuple[str, str, str]
Build = Callable[[Path, Random], str]
Use = Callable[[Path], None]
Case = tuple[Build, Use, int]
"""How it is made, what is done with it, and the seed."""


def run(cases: Sequence[Case], base: Path) -> Iterator[tuple[Result, str, float]]:
    """Of each case what became of it, what was done to the folder, and the seconds it took."""
    done = 0
    while done < len(cases):
        for found in _run_until_one_ends_it(cases[done:], base):
            done += 1
            yield found


def _run_until_one_ends_it(
    cases: Sequence[Case], base: Path
) -> Iterator[tuple[Result, str, float]]:
    ours, its = FORK.Pipe()
    child = FORK.Process(target=_in_the_child, args=(cases, base, its))
    child.start()
    its.close()
    for _ in cases:
        began, found, done = time.monotonic(), None, ""
        try:
            if ours.poll(WAITING):
                found, done = ours.recv()
            else:
                child.kill()
                found = ("failure", "hangs", f"longer than {WAITING} s")
        except EOFError:
            child.join()
            found = _ended(child.exitcode or 0, base / "stderr")
        yield found, done, time.monotonic() - began
        if found[0] == "failure":
            break
    child.join()
    shutil.rmtree(base / "case", ignore_errors=True)


def _ended(status: int, said: Path) -> Result:
    if -status == signal.SIGXCPU:
        return "failure", "hangs", f"more than {SECONDS} s of the processor"
    return "failure", f"ends with status {status}", ascii(said.read_bytes()[-300:])


def _in_the_child(cases: Sequence[Case], base: Path, answers: Connection) -> None:
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        said = os.open(base / "stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        for number, place in ((0, quiet), (1, quiet), (2, said)):
            os.dup2(place, number)
        for build, use, seed in cases:
            os.ftruncate(said, 0)
            result, done = _one(build, use, seed, base / "case")
            text = os.pread(said, 10_000, 0)
            if result[0] != "failure" and (b"panicked" in text or b"Traceback" in text):
                result = ("failure", "a raw message on standard error", ascii(text[-300:]))
            answers.send((result, done))
            if result[0] == "failure":
                break
            os.chdir(base)
            shutil.rmtree(base / "case", ignore_errors=True)
    finally:
        os._exit(0)


def _one(build: Build, use: Use, seed: int, folder: Path) -> tuple[Result, str]:
    try:
        done = build(folder, Random(seed))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        spent = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, resource.RLIM_INFINITY))
        return judge(folder, use), done
    except BaseException as error:
        return ("failure", f"the siege itself: {type(error).__name__}", repr(error)), ""
