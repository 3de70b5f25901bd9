"""The process that calls a user's function, or the baselines. It knows neither truth nor verdict.

The judge asks, one request at a time, and this answers: JSON in plain bytes, tensors in mapped
files. Nothing here is trusted: the user's code runs in this process and can change any of it. What
counts is what the judge finds in the outputs, and how long it waited for them.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.clock import Clock, peak_bytes
from minibert.bench.contest import Contender
from minibert.bench.gate import reason
from minibert.bench.result_rows import Row
from minibert.bench.shared_bytes import SharedBytes
from minibert.bench.user_file import UserFunction, load_function
from minibert.bench.workload import Inputs, inputs_of
from minibert.errors import MinibertError
from minibert.kernels.check.calls import poisoned_memory
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload


def serve(judge: Connection, printed: Connection, crash: str) -> None:
    """Answer the judge until it hangs up; then end the process, whatever else runs in it."""
    _detach(printed, crash)
    worker = _Worker()
    while True:
        try:
            request = json.loads(judge.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        sign = request.pop("id")
        answer = worker.answer(request.pop("task"), request)
        judge.send_bytes(json.dumps({"id": sign, **answer}).encode())


def _detach(printed: Connection, crash: str) -> None:
    """Leave the judge's terminal: what is printed, from C too, goes down the pipe."""
    # Ctrl-C is for the judge, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        # A group of its own, so that what the user's code starts ends with it.
        os.setsid()
        os.dup2(printed.fileno(), 2)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    # Left open as long as the process lives.
    faulthandler.enable(os.open(crash, os.O_WRONLY), all_threads=False)

    def follow() -> None:
        """End this process when the judge has ended, however it did."""
        judge = multiprocessing.parent_process()
        if judge is not None:
            judge.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


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
        self.files: dict[str, SharedBytes] = {}
        self.drawn: dict[Workload, Inputs] = {}
        self.contenders: dict[str, tuple[Contender, Inputs]] = {}
        self.settings, self.set_for = ExitStack(), ""
        self.clock = Clock(self.device)

    def answer(self, task: str, request: Row) -> Row:
        """What the task gives, or {"error": one line}."""
        try:
            found: Row = getattr(self, task)(**request)
            return found
        # Also what is no Exception: the judge is told of all of it.
        except BaseException as error:
            return {"error": reason(error)}

    def begin(self, device: str, cache_bytes: int) -> Row:
        """Get ready to compute on this device."""
        self.device = torch.device(device)
        self.clock = Clock(self.device, cache_bytes=cache_bytes)
        return {}

    def read(self, path: str | None, module: str | None, name: str, signature: str | None) -> Row:
        """Run the user's file, or import a module."""
        self.user = load_function(Path(path) if path else str(module), name, signature)
        return {
            "options": self.user.options,
            "triton": self.user.triton,
            "signature": self.user.signature.name,
        }

    def call(self, files: Row, tensors: list[Any], settings: Row, again: bool) -> Row:
        """One call on the judge's inputs; with `again` in the tensors of the call before."""
        self._open(files)
        given = self.files["inputs"].take(tensors)
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
        return {"outputs": self._put_outputs()}

    def later(self) -> Row:
        """The tensors of the last call, as they are now."""
        return {"inputs": self.files["inputs"].put(self.inputs), "outputs": self._put_outputs()}

    def prepare(self, contender: str, baseline: bool, workload: Row, files: Row) -> Row:
        """Make a contender for a workload. All contenders of a workload share its inputs."""
        self._open(files)
        work = Workload(**workload)
        if work not in self.drawn:
            self.drawn = {work: inputs_of(work, self.device)}
            self.contenders.clear()
            self.set_for = ""
        inputs = self.drawn[work]
        if baseline:
            # Only these need the implementations, which take a while to import.
            from minibert.bench import baselines

            one = baselines.baseline(contender, work, inputs)
        else:
            one = Contender(self._user().bound(inputs.problem), _judged)
        self.contenders[contender] = (one, inputs)
        return {}

    def refresh(self, contender: str, seed: int, cold: bool) -> Row:
        """New numbers, all but the last one, which comes with the call; and a cold cache."""
        one, inputs = self.contenders[contender]
        # Freed before the clock starts, and its memory can be had again.
        self.outputs = {}
        # Whose turn it is has the settings its calls need, entered before the clock starts.
        if contender != self.set_for:
            self.settings.close()
            self.settings.enter_context(one.around())
            self.set_for = contender
        inputs.refresh(seed)
        if cold:
            self.clock.flush()
        return {}

    def timed(self, contender: str, last: float) -> Row:
        """One call, and z put where the judge can read it: it all counts."""
        one, inputs = self.contenders[contender]
        inputs.complete(last)
        milliseconds = None
        if self.device.type == "cuda":
            (milliseconds,), result = self.clock.turn(one.run, calls=1)
        else:
            result = one.run()
        self.inputs, self.outputs = inputs.vectors, dict(one.outputs(result))
        return {"outputs": self._put_outputs(), "ms": milliseconds}

    def repeat(self, contender: str, calls: int) -> Row:
        """So many calls without a pause, whose results are dropped; after a turn of its own."""
        one, _ = self.contenders[contender]
        for _ in range(calls):
            one.run()
        self.clock.settle()
        return {}

    def peak(self, contender: str) -> Row:
        """The most bytes that a call holds."""
        one, _ = self.contenders[contender]
        return {"bytes": peak_bytes(one.run, self.device)}

    def _user(self) -> UserFunction:
        if self.user is None:
            raise MinibertError("no file was read")
        return self.user

    def _open(self, files: Row) -> None:
        for name, (path, size) in files.items():
            if name not in self.files or str(self.files[name].path) != path:
                self.files[name] = SharedBytes(Path(path), size)

    def _put_outputs(self) -> list[list[Any]]:
        return self.files["outputs"].put(self.outputs)
