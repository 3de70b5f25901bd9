"""The process that calls a user's function, or the baselines. It knows neither truth nor verdict.

The judge asks, one request at a time, and this answers through `channel`. Nothing here is trusted:
the user's code runs in this process and can change any of it. What counts is what the judge
receives, and how long it waited for it.

In namespaces of its own, of users and of processes, a worker sees no process but those it started.
So it cannot end, stop, read or change the judge or another worker, and when its guard ends the
kernel ends everything in there. The files of the user are not hidden from it.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.channel import Channel
from minibert.bench.contest import Clock, Contender, peak_bytes
from minibert.bench.result_rows import Row, reason
from minibert.bench.signatures import Way
from minibert.bench.user_file import UserFunction, load_function
from minibert.errors import MinibertError
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.parity import poisoned_memory
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload, inputs_of, projected

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


Answer = tuple[Row, Mapping[str, Tensor]]


def serve(end: socket.socket, printed: Connection, leash: Connection) -> None:
    """Answer the judge until it hangs up; then end the process, whatever else runs in it."""
    # Ctrl-C is for the judge, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        guarded(leash, end.fileno(), printed.fileno())
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
    """Leave the judge's terminal: what is printed, from C or in a crash, goes down the pipe."""
    if os.name == "posix":
        os.dup2(printed.fileno(), 2)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable(2, all_threads=False)


def _judged(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What of a timed call is looked at: z, and the gradients."""
    return {name: one for name, one in outputs.items() if name in ("z", *GRADIENTS)}


class _Worker:
    """What is loaded, and the tensors of the last call."""

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
        """What the task gives, or {"error": one line}."""
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
        fields: dict[str, Any] = dict(self.inputs)
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
