"""One case in a process of its own, with limits on memory and time."""

import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.siege.judge import judge

# Of the processor, so that a busy machine is no failure; and of waiting, as for a pipe.
MEMORY, SECONDS, WAITING = 2**30, 10, 60.0
Result = tuple[str, str, str]


def run(build: Callable[[Path, Random], str], seed: int, base: Path) -> tuple[Result, str, float]:
    """What became of the case, what was done to the folder, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name) / "checkpoint"
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            _in_the_child(build, seed, folder, send)
        os.close(send)
        answer = _read(receive, began + WAITING)
        if answer is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(receive)
        for path in folder.glob("*"):
            # A folder in the place of a file may not be entered by everyone who tidies up.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
    seconds = time.monotonic() - began
    if answer is None:
        return ("failure", "hangs", f"longer than {WAITING} s"), "", seconds
    if not answer and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return ("failure", "hangs", f"more than {SECONDS} s of the processor"), "", seconds
    if not answer:
        return ("failure", f"ends with status {status}", ""), "", seconds
    result, done = json.loads(answer)
    return tuple(result), done, seconds


def _read(pipe: int, until: float) -> bytes | None:
    content = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(pipe, 2**16)
        if not part:
            return content
        content += part


def _in_the_child(build: Callable[[Path, Random], str], seed: int, folder: Path, send: int) -> None:
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        done = build(folder, Random(seed))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        spent = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, resource.RLIM_INFINITY))
        result = judge(folder)
    except BaseException as error:
        result, done = ("failure", f"the siege itself: {type(error).__name__}", repr(error)), ""
    try:
        with os.fdopen(send, "wb") as pipe:
            pipe.write(json.dumps([result, done]).encode())
    finally:
        os._exit(0)
