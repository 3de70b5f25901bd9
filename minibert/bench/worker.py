"""The process that calls a user's function, or the baselines. It knows neither truth nor verdict.

The judge sends one request at a time, and this process answers through a `Channel`: a line of JSON,
and the numbers of tensors by value. No file and no memory is shared, so the sender cannot change or
remove anything later. Nothing here is trusted: the user's code runs in this process and can change
any of it. Only what the judge receives counts, and how long it waited for it.

In namespaces of its own, of users, processes and mounts, a worker sees no process but those it
started. So it cannot end, stop, read or change the judge or another worker, and when its guard ends
the operating system ends everything inside. Python, the folders that it imports from and the
settings of the system are read-only there; terminals and the socket of the server that starts
workers are hidden. The user's other files are accessible.
"""

import ctypes
import faulthandler
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.contest import Clock, Contender, peak_bytes
from minibert.bench.result_rows import Row, reason
from minibert.bench.signatures import Way
from minibert.bench.user_file import UserFunction, load_function
from minibert.errors import MinibertError
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.parity import poisoned_memory
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload, inputs_of, projected

Tensors = Mapping[str, Tensor]
Shape = tuple[int, ...]
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    # Memory for quantised numbers is not made without their scale.
    if isinstance(one, torch.dtype) and not str(one).startswith(("torch.q", "torch.complex32"))
}
#: A message is a line about a few tensors.
_MOST_TEXT = 2**16
_AT_ONCE = 2**20


class Channel:
    """One end of the connection. `seconds` is the longest time that a whole message may take.

    A tensor is told as [name, dtype, shape, order]: `order` lists the axes from the one with the
    largest step in memory to the one with the smallest, so that a view arrives with its steps.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # As much as the system allows: each time it is full, the processes take turns.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(
        self,
        message: Row,
        tensors: Tensors,
        *,
        most: float = math.inf,
        seconds: float | None = None,
    ) -> None:
        """Send a message. Tensors of more than `most` bytes are described, without numbers.

        Raises OSError when the other end does not take it in time.
        """
        about, turned = [], []
        for name, one in tensors.items():
            order = _order(one)
            dtype = str(one.dtype).removeprefix("torch.")
            about.append([name, dtype, list(one.shape), order])
            turned.append(one.detach().permute(order))
        text = json.dumps({**message, "tensors": about}).encode()
        parts: list[bytes | memoryview] = [len(text).to_bytes(4, "big") + text]
        if _size(turned) <= most:
            parts += [_memory(one.cpu().contiguous()) for one in turned]
        # Little goes at once, so that the other end wakes up once.
        if _size(turned) < _AT_ONCE:
            parts = [b"".join(parts)]
        self._socket.settimeout(seconds)
        for part in parts:
            self._socket.sendall(part)

    def receive(
        self,
        *,
        most: float = math.inf,
        seconds: float | None = None,
        into: Callable[[Row], Tensors] = lambda _: {},
    ) -> tuple[Row, dict[str, Tensor]]:
        """The next message and its tensors, which have no numbers (device "meta") above `most`.

        A tensor that `into` names for this message is filled in place. Raises EOFError when the
        other end has hung up, TimeoutError, and ValueError for what is not a message.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        size = int.from_bytes(self._fill(bytearray(4), end), "big")
        if size > _MOST_TEXT:
            raise ValueError(f"a message of {size} bytes")
        message = json.loads(self._fill(bytearray(size), end))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        about = _described(message.pop("tensors", None))
        if sum(math.prod(shape) * dtype.itemsize for dtype, shape, _ in about.values()) > most:
            return message, {name: _like(*one, "meta") for name, one in about.items()}
        places = into(message)
        found = {name: self._numbers(places.get(name), *one, end) for name, one in about.items()}
        return message, found

    def _numbers(
        self, place: Tensor | None, dtype: torch.dtype, shape: Shape, order: Shape, end: float
    ) -> Tensor:
        fits = (
            place is not None
            and (place.dtype, place.device.type, place.shape) == (dtype, "cpu", shape)
            and place.permute(order).is_contiguous()
        )
        here = place if fits and place is not None else _like(dtype, shape, order, "cpu")
        self._fill(_memory(here.permute(order)), end)
        return here

    def _fill(self, memory: Any, end: float) -> Any:
        left = memoryview(memory)
        while left:
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            # By the system, which then waits for all of it at once.
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
            try:
                taken = self._socket.recv_into(left, flags=socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not taken:
                raise EOFError
            left = left[taken:]
        return memory


def alike(found: Tensor | None, expected: Tensor) -> bool:
    """True when numbers of this shape and dtype were received."""
    if found is None or found.is_meta:
        return False
    return (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(one.numel() * one.itemsize for one in tensors)


def _timeval(seconds: float) -> bytes:
    whole = 0 if seconds == math.inf else max(1, int(seconds * 1e6))
    return struct.pack("ll", *divmod(whole, 10**6))


def _memory(dense: Tensor) -> memoryview:
    return dense.detach().resolve_conj().resolve_neg().view(-1).view(torch.uint8).numpy().data


def _order(tensor: Tensor) -> list[int]:
    return sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)


def _like(dtype: torch.dtype, shape: Shape, order: Shape, device: str) -> Tensor:
    turned = torch.empty([shape[axis] for axis in order], dtype=dtype, device=device)
    return turned.permute([order.index(axis) for axis in range(len(order))])


def _described(about: Any) -> dict[str, tuple[torch.dtype, Shape, Shape]]:
    """The dtype, shape and order of each tensor that the other end names."""
    found: dict[str, tuple[torch.dtype, Shape, Shape]] = {}
    try:
        for name, dtype, shape, order in about:
            sizes = all(type(size) is int and size >= 0 for size in shape)
            if not sizes or math.prod(shape) > 2**48 or sorted(order) != [*range(len(shape))]:
                raise ValueError(f"{name}: {shape}, {order}")
            found[name] = _DTYPES[dtype], tuple(shape), tuple(order)
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error
    if len(found) != len(about) or not all(isinstance(name, str) for name in found):
        raise ValueError("names that are not, or that are there twice")
    return found


#: What `guard` is told through the leash, and how it says that it is done.
STOP, GO, DONE = b"stop", b"go", b"done"
_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE = 0x1, 0x20, 0x1000, 0x4000
#: The flags of a mount that a stranger may not take away: nosuid, nodev, noexec, times of reading.
_KEPT = 0x2 | 0x4 | 0x8 | 0x400 | 0x800 | 0x1000
_RELATIVE_TIMES = 0x1000, 0x200000
_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Sealed:
    """The folders out of a worker's reach: some it cannot write, others it cannot see."""

    read: tuple[str, ...]
    hidden: tuple[str, ...]


def hide(*, hidden: bool = True) -> None:
    """Close the memory and the open files of this process to others of the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0 if hidden else 1, 0, 0, 0)


def guarded(leash: Connection, sealed: Sealed, *theirs: int) -> None:
    """Return in a child process; this process stays as its guard.

    Only the worker keeps the files `theirs`. The worker is paused, resumed and, when the leash is
    cut, ended with everything that it started. The guard ends with the worker's status, or with 128
    plus the number of its signal.
    """
    with suppress(OSError):
        # Where memory runs out, this process ends before the judge.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    # New namespaces are for a process of one thread, and what torch imports may have started some.
    if outside := os.fork():
        hide()
        _leave(outside, theirs)
    alone = _unshare(_NEWUSER | _NEWPID | _NEWNS)
    hide()
    if inside := os.fork():
        _leave(inside, theirs)
    # The first process in the namespace: no signal from inside reaches it.
    if alone:
        ctypes.CDLL(None).mount(b"proc", b"/proc", b"proc", 0, None)
        _seal(sealed)
    if worker := os.fork():
        for one in theirs:
            os.close(one)
        _hold(leash, worker)
        _leave(worker, ())
    os.setsid()
    leash.close()
    if alone:
        # A namespace of mounts below the first one cannot take back what was mounted there.
        hide(hidden=False)
        _unshare(_NEWUSER | _NEWNS)
        hide()


def _seal(sealed: Sealed) -> None:
    """Mount what is sealed: nothing over the hidden folders, the others without writing."""
    mount = ctypes.CDLL(None).mount
    for folder in (*sealed.hidden, "/dev/shm"):
        mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, None)
    for folder in sealed.read:
        where = os.fsencode(folder)
        mount(where, where, None, _BIND | _RECURSIVE, None)
    # What is mounted below a folder keeps its own flags.
    mounted = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    for folder in {line.split()[1] for line in mounted}:
        if not any(Path(folder).is_relative_to(one) for one in sealed.read):
            continue
        kept = os.statvfs(folder).f_flag & _KEPT
        told, asked = _RELATIVE_TIMES
        kept = kept & ~told | asked if kept & told else kept
        mount(None, os.fsencode(folder), None, _REMOUNT | _BIND | _READ_ONLY | kept, None)
    # Through the mounts: the folder that was entered before is the one below them.
    with suppress(OSError):
        os.chdir(os.getcwd())


def _unshare(which: int) -> bool:
    """Enter new namespaces; those that this process starts from now on are in them."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(which):
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text, encoding="utf-8")
    return True


def _hold(leash: Connection, worker: int) -> None:
    """Follow the leash's commands until it is cut or the worker has ended."""
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


Answer = tuple[Row, Mapping[str, Tensor]]


def serve(end: socket.socket, printed: Connection, leash: Connection, sealed: Sealed) -> None:
    """Answer the judge until it hangs up; then end the process, whatever else runs in it."""
    # Ctrl-C is for the judge, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        guarded(leash, sealed, end.fileno(), printed.fileno())
    else:
        if os.name == "posix":
            # A group of its own, so that what the user's code starts ends with it.
            os.setsid()
        threading.Thread(target=_follow, args=(leash,), daemon=True).start()
    _print_to(printed)
    judge, worker = Channel(end), _Worker()
    while True:
        try:
            request, tensors = judge.receive(into=worker.places)
        except (EOFError, OSError):
            os._exit(0)
        sign, most = request.pop("id"), request.pop("most")
        given = {"given": tensors} if tensors else {}
        answer, outputs = worker.answer(request.pop("task"), request | given)
        judge.send({"id": sign, **answer}, outputs, most=most)


def _follow(leash: Connection) -> None:
    """End this process when the judge cuts the leash, or has ended."""
    with suppress(EOFError, OSError):
        leash.recv_bytes()
    os._exit(1)


def _print_to(printed: Connection) -> None:
    """Leave the judge's terminal: all output, also from C or in a crash, goes to the pipe."""
    if os.name == "posix":
        os.dup2(printed.fileno(), 2)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable(2, all_threads=False)


def _judged(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a timed call that are looked at: z, and the gradients."""
    return {name: one for name, one in outputs.items() if name in ("z", *GRADIENTS)}


class _Worker:
    """The loaded function, and the tensors of the last call."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.user: UserFunction | None = None
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.drawn: dict[Workload, Problem] = {}
        self.contenders: dict[str, tuple[Contender, Problem]] = {}
        self.settings, self.set_for = ExitStack(), ""
        self.clock = Clock(self.device)

    def answer(self, task: str, request: Row) -> Answer:
        """The result of the task, or {"error": one line}."""
        try:
            found: Answer = getattr(self, task)(**request)
            return found
        # Also what is not an Exception: the judge is told of all of it.
        except BaseException as error:
            return {"error": reason(error)}, {}

    def places(self, request: Row) -> Mapping[str, Tensor]:
        """Where the inputs of a timed call go; the others get memory of their own."""
        return (
            self.contenders[request["contender"]][1].vectors if request["task"] == "timed" else {}
        )

    def begin(self, device: str, cache_bytes: int) -> Answer:
        """Get ready to compute on this device."""
        self.device = torch.device(device)
        self.clock = Clock(self.device, cache_bytes=cache_bytes)
        return {}, {}

    def read(
        self, path: str | None, module: str | None, name: str, signature: str | None
    ) -> Answer:
        """Run the user's file, or import a module."""
        self.user = load_function(Path(path) if path else str(module), name, signature)
        return self.user.about(), {}

    def called(self, way: Row) -> Answer:
        """Call it in this way from now on."""
        self.user = self._user().called(Way.of(way))
        return self.user.about(), {}

    def call(self, given: dict[str, Tensor], settings: Row, again: bool) -> Answer:
        """One call on the judge's inputs; with `again` in the tensors of the call before."""
        if again:
            with torch.no_grad():
                for name, one in given.items():
                    self.inputs[name].copy_(one)
        else:
            self.inputs = {name: one.to(self.device) for name, one in given.items()}
        fields: Row = dict(self.inputs)
        for name, one in settings.items():
            # From JSON a tuple comes as a list.
            fields[name] = tuple(one) if isinstance(one, list) else one
        for name in ("query", "key", "value"):
            self.inputs[name].requires_grad_("z_gradient" in self.inputs)
        problem = Problem(**fields)
        run = self._user().bound(problem)
        with poisoned_memory(problem.query, problem.n_keys):
            self.outputs = run()
            self.clock.settle()
        for name, one in self.outputs.items():
            if str(one.dtype).removeprefix("torch.") not in _DTYPES:
                raise MinibertError(f"gave {name} in {one.dtype}; expected {problem.query.dtype}")
        return {}, self.outputs

    def later(self, of: str) -> Answer:
        """The inputs or the outputs of the last call, as they are now."""
        return {}, self.inputs if of == "inputs" else self.outputs

    def prepare(self, contender: str, baseline: bool, workload: Row) -> Answer:
        """Make a contender for a workload. All contenders of a workload share its inputs."""
        work = Workload(**workload)
        if work not in self.drawn:
            self.drawn = {work: inputs_of(work, self.device)}
            self.contenders.clear()
            self.set_for = ""
        problem = self.drawn[work]
        if baseline:
            # Only these need the implementations, which take a while to import.
            from minibert.bench import baselines

            one = baselines.baseline(contender, work, problem)
        else:
            one = Contender(self._user().bound(problem), _judged)
        self.contenders[contender] = (one, problem)
        return {}, {}

    def ready(self, contender: str, cold: bool) -> Answer:
        """Free what the last call gave, enter the settings of this contender, empty the cache."""
        self.outputs = {}
        if contender != self.set_for:
            self.settings.close()
            self.settings.enter_context(self.contenders[contender][0].around())
            self.set_for = contender
        if cold:
            self.clock.flush()
        return {}, {}

    def timed(
        self, contender: str, cold: bool, seed: int, given: Mapping[str, Tensor] | None = None
    ) -> Answer:
        """One call on inputs that came with the request, and what it gave: it all counts.

        On a GPU the seed of the inputs came, and the call alone is timed, by events.
        """
        one, problem = self.contenders[contender]
        self.inputs, milliseconds = problem.vectors, None
        if given is None:
            problem.refresh(seed)
            (milliseconds,), result = self.clock.turn(one.run, calls=1, cold=cold)
        else:
            with torch.no_grad():
                for name, here in self.inputs.items():
                    if here is not given[name]:
                        here.copy_(given[name])
            result = one.run()
        self.outputs = dict(one.outputs(result))
        return {"ms": milliseconds}, self.outputs

    def repeat(self, contender: str, seeds: list[int], weights: int) -> Answer:
        """A call on the inputs of each seed, and a sum of all numbers of each z, with weights."""
        one, problem = self.contenders[contender]
        sums = []
        for seed in seeds:
            problem.refresh(seed)
            sums.append(projected(one.outputs(one.run())["z"], weights))
        return {}, {"sums": torch.stack(sums)}

    def peak(self, contender: str) -> Answer:
        """The most bytes that a call holds."""
        return {"bytes": peak_bytes(self.contenders[contender][0].run, self.device)}, {}

    def _user(self) -> UserFunction:
        if self.user is None:
            raise MinibertError("no file was read")
        return self.user
