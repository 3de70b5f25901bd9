"""The judge's end of a worker: it starts it, asks, waits, and ends it.

Whatever the worker does, a request ends in an answer, in `WorkerError` (the answer says what was
wrong) or in `WorkerEndedError` (there will be no further answer).

What the user's file prints goes to standard error: a few lines at once, the rest counted.
"""

import json
import multiprocessing
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.bench import clock, worker
from minibert.bench.result_rows import Row
from minibert.bench.shared_bytes import SharedBytes, described
from minibert.errors import MinibertError
from minibert.kernels.check.calls import CheckEndedError
from minibert.terminal import cut, encodable, note, printable

#: Told before each step: how many are done, of how many, and which comes.
Watch = Callable[[int, int, str], None]
Tensors = dict[str, Tensor]
_SHOWN, _WIDTH = 3, 160


class Printed:
    """The lines that the code of `name` prints."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = 0
        self._open = ""

    def feed(self, text: str) -> None:
        """Take what was printed next."""
        *whole, rest = text.split("\n")
        for line in whole:
            self._line(self._open + line)
            self._open = ""
        # A line without an end does not grow for ever.
        self._open = (self._open + rest)[:_WIDTH]

    def say_the_rest(self) -> None:
        """Say how many lines were not shown, if any."""
        if self._open:
            self._line(self._open)
            self._open = ""
        if self.lines > _SHOWN:
            n = self.lines - _SHOWN
            note("note", f"{self.name} printed {n} more {'line' if n == 1 else 'lines'}.")
        # The first lines are not shown again.
        self.lines = min(self.lines, _SHOWN)

    def _line(self, line: str) -> None:
        self.lines += 1
        if self.lines <= _SHOWN:
            shown = f"{self.name} prints: {cut(printable(line), _WIDTH)}"
            # Through tqdm, which takes its bar away before and draws it again below.
            tqdm.write(encodable(shown, sys.stderr.encoding), file=sys.stderr)


@contextmanager
def progress(unit: str) -> Iterator[Watch]:
    """A bar on standard error that follows what it is told; none where nobody looks."""
    with tqdm(total=0, disable=None, unit=unit, leave=False, dynamic_ncols=True) as bar:

        def watch(done: int, total: int, what: str) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(what)

        yield watch


#: An answer is a line about a few tensors.
_MOST_BYTES = 2**16
#: Starting Python and importing torch, on a machine that is busy with other things.
_START_SECONDS = 300.0


class WorkerError(MinibertError):
    """The worker could not do what it was asked; the message begins with what it did instead."""


class WorkerEndedError(CheckEndedError):
    """The worker is no more."""


class WorkerProcess:
    """A worker that computes on a device; `label` is what messages call it."""

    def __init__(self, label: str, device: str, seconds: float, printed: Printed) -> None:
        self.label, self.device, self.seconds = label, device, seconds
        #: What is done now, for the message should the process end there.
        self.place = ""
        # When the present request has taken too long, and how long that is; 0: nothing is asked.
        self._deadline = self._limit = 0.0
        self._late = False
        self._closed = threading.Event()
        self._ended: WorkerEndedError | None = None
        self._folder = tempfile.TemporaryDirectory(
            prefix="minibert-", dir=_memory_folder(), ignore_cleanup_errors=True
        )
        self._crash = Path(self._folder.name, "crash")
        self._crash.touch()
        self._files: dict[str, SharedBytes] = {}
        if device == "cpu":
            # Read when Triton is first imported, by the user's file or by torch: the worker
            # inherits it.
            os.environ.setdefault("TRITON_INTERPRET", "1")
        context = _context()
        self._judge, there = context.Pipe()
        lines, printer = context.Pipe(duplex=False)
        self._process = context.Process(
            target=worker.serve, args=(there, printer, str(self._crash))
        )
        self._process.start()
        there.close()
        printer.close()
        self._reader = threading.Thread(target=_read, args=(lines, printed), daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()
        cache_bytes = clock.flush_bytes(torch.device(device))
        self.ask("begin", device=device, cache_bytes=cache_bytes, seconds=_START_SECONDS)

    def ask(self, task: str, *, seconds: float | None = None, **fields: object) -> Row:
        """The answer.

        Raises WorkerError when it is an error, and WorkerEndedError when none came, in `seconds`
        or at all, or when it is no answer to this request.
        """
        if self._ended is not None:
            raise self._ended
        # Nobody can answer before being asked.
        sign = secrets.token_hex(8)
        request = json.dumps({"id": sign, "task": task, **fields}).encode()
        self._limit = seconds or self.seconds
        self._deadline = time.monotonic() + self._limit
        try:
            self._judge.send_bytes(request)
            answer = json.loads(self._judge.recv_bytes(_MOST_BYTES))
            if answer["id"] != sign:
                raise ValueError("the answer to another request")
        except (EOFError, ConnectionError):
            raise self._end("") from None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise self._end(
                f"{self.label} wrote into the connection to the judge: what it says cannot be "
                "trusted. Leave open files that are not yours alone."
            ) from None
        finally:
            self._deadline = 0.0
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return dict(answer)

    def files(self, **sizes: int) -> dict[str, SharedBytes]:
        """The mapped files of these names, of at least these sizes."""
        for name, size in sizes.items():
            known = self._files.get(name)
            if known is None or known.size < size:
                path = Path(self._folder.name, f"{name}-{secrets.token_hex(4)}")
                self._files[name] = SharedBytes.new(path, size)
                if known is not None:
                    known.path.unlink()
        return self._files

    def taken(self, file: str, answer: Row, wanted: Collection[str] | None = None) -> Tensors:
        """The tensors of a mapped file that an answer describes, and those that are wanted alone.

        Raises WorkerEndedError where they cannot be had.
        """
        about = answer.get(file, ())
        try:
            if wanted is not None and not set(wanted) <= described(about).keys():
                raise ValueError("something is missing")
            found = self._files[file].take(about)
        except (ValueError, TypeError, KeyError, RuntimeError):
            raise self.distrust("answered with tensors that are not there.") from None
        names = found if wanted is None else wanted
        return {name: found[name].to(self.device) for name in names}

    def distrust(self, why: str) -> WorkerEndedError:
        """End the process; the error that says why."""
        return self._end(f"{self.label} {why}")

    def close(self) -> None:
        """End the process, and everything it has started."""
        self._closed.set()
        self._kill()
        self._process.join(5)
        self._reader.join(1)
        self._judge.close()
        self._folder.cleanup()

    def _watch(self) -> None:
        """End the worker when it takes too long: it may wait in C, where nothing else helps."""
        while not self._closed.wait(0.05):
            if self._deadline and time.monotonic() > self._deadline:
                self._late = True
                self._kill()

    def _kill(self) -> None:
        pid = self._process.pid
        if pid is None:
            return
        with suppress(OSError):
            if os.name == "posix":
                os.killpg(pid, signal.SIGKILL)
        with suppress(OSError, ValueError):
            self._process.kill()

    def _end(self, message: str) -> WorkerEndedError:
        self._process.join(1)
        code = self._process.exitcode
        self._kill()
        if self._late:
            what = (
                f"{self.label} has not returned"
                if self.place
                else f"{self._file} has not been read"
            )
            message = f"{what} after {self._limit:g} seconds (--timeout)."
        self._ended = WorkerEndedError(message or self._how(code))
        return self._ended

    @property
    def _file(self) -> str:
        return self.label.rpartition(":")[0]

    def _how(self, code: int | None) -> str:
        where = f", at {self.place}" if self.place else f", while {self._file} was read"
        if code is None:
            return f"{self.label} closed its connection to the judge{where}."
        if code >= 0:
            return (
                f"{self.label} ended the process with status {code}{where}, before there was a "
                "verdict: os._exit(), or exit() in C. A kernel returns its dictionary or raises an "
                "exception."
            )
        trace = self._crash.read_text(encoding="utf-8", errors="replace")
        lines = re.findall(rf'File ".*{re.escape(self._file)}", line (\d+)', trace)
        line = f" (line {lines[0]})" if lines else ""
        return f"{self.label} crashed the process{where}: {_signal(-code)}{line}."


def _context() -> Any:
    """How a worker is started: from a clean process that has imported torch, on Linux."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # The second is what torch imports when it is first told to fill memory.
    context.set_forkserver_preload([worker.__name__, "torch._inductor.config"])
    return context


def _memory_folder() -> str | None:
    """A folder in memory, where there is one; None: the usual one for temporary files."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) else None


def _read(lines: Connection, printed: Printed) -> None:
    """Hand on what the worker prints until it ends."""
    with suppress(OSError):
        while data := os.read(lines.fileno(), 2**16):
            printed.feed(data.decode(errors="replace"))


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
