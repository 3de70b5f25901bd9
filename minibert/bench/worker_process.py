"""The judge's end of a worker: it starts it, asks, waits, and ends it.

Whatever the worker does, a request ends in an answer, in `WorkerError` (the answer says what was
wrong) or in `WorkerEndedError` (there will be no further answer).

The output of the user's file goes to standard error: the first lines at once, the rest counted.
"""

import multiprocessing
import multiprocessing.util
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.bench import contest, worker
from minibert.bench.result_rows import Row
from minibert.bench.worker import DONE, GO, STOP, Channel, hide
from minibert.errors import MinibertError
from minibert.kernels.check.parity import CheckEndedError
from minibert.terminal import cut, encodable, note, printable

#: Told before each step: how many are done, of how many, and which comes.
Watch = Callable[[int, int, str], None]
Tensors = dict[str, Tensor]
_SHOWN, _WIDTH, _CRASH = 3, 160, 100


class Printed:
    """The lines that the code of `name` prints."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = 0
        #: Python's own report of a crash, which is not shown.
        self.crash: list[str] = []
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
        if self.crash or line.startswith("Fatal Python error"):
            self.crash = [*self.crash, line][:_CRASH]
            return
        self.lines += 1
        if self.lines <= _SHOWN:
            shown = f"{self.name} prints: {cut(printable(line), _WIDTH)}"
            # Through tqdm, which takes its bar away before and draws it again below.
            tqdm.write(encodable(shown, sys.stderr.encoding), file=sys.stderr)


@contextmanager
def progress(unit: str) -> Iterator[Watch]:
    """A progress bar on standard error; none where it is not a terminal."""
    with tqdm(total=0, disable=None, unit=unit, leave=False, dynamic_ncols=True) as bar:

        def watch(done: int, total: int, what: str) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(what)

        yield watch


#: Starting Python and importing torch, on a machine that is busy with other things.
_START_SECONDS = 300.0


class WorkerError(MinibertError):
    """The worker could not do what it was asked; the message begins with what it did instead."""


class WorkerEndedError(CheckEndedError):
    """The worker has ended."""


class WorkerProcess:
    """A worker that computes on a device; `label` is what messages call it."""

    def __init__(self, label: str, device: str, seconds: float, printed: Printed) -> None:
        self.label, self.device, self.seconds = label, device, seconds
        #: What is done now, for the message should the process end there.
        self.place = ""
        self._ended: WorkerEndedError | None = None
        if device == "cpu":
            # Read when Triton is first imported, by the user's file or by torch: the worker
            # inherits it.
            os.environ.setdefault("TRITON_INTERPRET", "1")
        hide()
        context = _context()
        here, there = socket.socketpair()
        lines, printer = context.Pipe(duplex=False)
        self._leash, held = context.Pipe()
        self._judge, self._printed = Channel(here), printed
        self._process = context.Process(target=worker.serve, args=(there, printer, held, _sealed()))
        with _without_main():
            self._process.start()
        for one in (there, printer, held):
            one.close()
        self._reader = threading.Thread(target=_read, args=(lines, printed), daemon=True)
        self._reader.start()
        cache_bytes = contest.flush_bytes(torch.device(device))
        self.ask("begin", device=device, cache_bytes=cache_bytes, seconds=_START_SECONDS)

    def ask(
        self,
        task: str,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        most: int = 0,
        seconds: float | None = None,
        **fields: object,
    ) -> tuple[Row, Tensors]:
        """The answer, and its tensors, which have no numbers above `most` bytes.

        Raises WorkerError when it is an error, and WorkerEndedError when none came, in `seconds`
        or at all, or when it is not an answer to this request.
        """
        if self._ended is not None:
            raise self._ended
        # Nobody can answer before being asked.
        sign, seconds = secrets.token_hex(8), seconds or self.seconds
        request = {"id": sign, "task": task, "most": most, **fields}
        try:
            self._judge.send(request, tensors or {}, seconds=seconds)
            answer, found = self._judge.receive(most=most, seconds=seconds)
            if answer.get("id") != sign:
                raise ValueError("the answer to another request")
        except TimeoutError:
            what = f"{self.label} has not returned"
            if not self.place:
                what = f"{self._file} has not been read"
            raise self.distrust(f"{what} after {seconds:g} seconds (--timeout).") from None
        except (EOFError, ConnectionError):
            raise self._end() from None
        except (OSError, ValueError, TypeError, RecursionError):
            raise self.distrust(
                f"{self.label} wrote into the connection to the judge: what it says cannot be "
                "trusted. Leave open files that are not yours alone."
            ) from None
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer, {
            name: one if one.is_meta else one.to(self.device) for name, one in found.items()
        }

    def distrust(self, why: str) -> WorkerEndedError:
        """End the process, and return the error that says why."""
        self.close()
        self._ended = WorkerEndedError(why)
        return self._ended

    def close(self) -> None:
        """End the process, and everything it has started."""
        self._leash.close()
        if sys.platform != "linux":
            with suppress(OSError, AttributeError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.join(5)
        self._reader.join(1)
        self._judge.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Pause everything that runs in the worker while the block runs."""
        self._tell(STOP)
        try:
            yield
        finally:
            self._tell(GO)

    def _tell(self, what: bytes) -> None:
        # A worker that has ended stands still too.
        with suppress(OSError, EOFError):
            self._leash.send_bytes(what)
            if self._leash.poll(5):
                self._leash.recv_bytes(len(DONE))

    def _end(self) -> WorkerEndedError:
        # On a busy machine a process takes a while to end.
        self._process.join(5)
        # What a crash prints is read before it is looked at.
        self._reader.join(5)
        return self.distrust(self._how(self._process.exitcode))

    @property
    def _file(self) -> str:
        return self.label.rpartition(":")[0]

    def _how(self, code: int | None) -> str:
        where = f", at {self.place}" if self.place else f", while {self._file} was read"
        if code is None:
            return f"{self.label} closed its connection to the judge{where}."
        number = code - 128 if code > 128 else -code
        if number not in {*signal.Signals}:
            return (
                f"{self.label} ended the process with status {code}{where}, before there was a "
                "verdict: os._exit(), or exit() in C. A kernel returns or raises."
            )
        trace = "\n".join(self._printed.crash)
        lines = re.findall(rf'File ".*{re.escape(self._file)}", line (\d+)', trace)
        line = f" (line {lines[0]})" if lines else ""
        return f"{self.label} crashed the process{where}: {_signal(number)}{line}."


def _context() -> Any:
    """The way to start a worker: on Linux from a clean process that has imported torch."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # The second is what torch imports when it is first told to fill memory.
    context.set_forkserver_preload([worker.__name__, "torch._inductor.config"])
    return context


#: Of root, who can write there: what every program reads, and the settings of the kernel.
_SYSTEM = ("/etc", "/usr", "/sys", "/proc/sys")
#: Terminals, through which a verdict could be painted over, and the user's services, which start
#: processes outside.
_HIDDEN = ("/dev/pts", "/run/user")


def _sealed() -> worker.Sealed:
    """What a worker cannot change, the judging code, or see, the server that starts workers."""
    # An installation by links imports from folders that are not on sys.path.
    packages = [one for name, one in sys.modules.items() if "." not in name]
    ours = Path(worker.__file__).parents[1].iterdir()
    imported = [Path(folder) for one in packages for folder in getattr(one, "__path__", ())]
    known = [Path(one) for one in (*sys.path, *_SYSTEM, sys.prefix, sys.base_prefix)]
    folders = {str(one.resolve()) for one in (*known, *imported, *ours) if one.is_dir()}
    hidden = (multiprocessing.util.get_temp_dir(), *_HIDDEN)
    return worker.Sealed(tuple(sorted(folders)), hidden)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program that runs: a worker would run its file again, which standard input lacks."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
