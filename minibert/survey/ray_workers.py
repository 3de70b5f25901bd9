"""Windows of a survey measured by many workers, on one machine or a cluster, with Ray.

Each worker is an actor of Ray. A task of Ray would load the model for every window; an actor loads
it once. Ray Data is not used: it keeps a data set as Arrow blocks in the order in which they are
done, and here one process reads the corpus as a stream, cuts it into windows, and adds up their
sums in the order of the windows, whoever measured them. That order is why the tables do not depend
on the number of workers, and why a window of a worker that was lost is simply measured by another.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from minibert.errors import SurveyError
from minibert.layers.packing import lay_out, layout
from minibert.model import Model
from minibert.survey.tables import versions
from minibert.survey.windows import Measured, Window, WindowSurvey

#: Workers lost one after the other, by a window or before they began, that end a survey.
MOST_LOST = 5
#: Windows that are read and not yet merged, for each worker: results wait here for their turn.
AHEAD = 2


#: What measures windows with a model.
Measuring = Callable[[Model], WindowSurvey]


class Worker:
    """Measures windows in a process of Ray."""

    def __init__(
        self, model: Model, weights: tuple[str, ...], measuring: Measuring, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        lay_out(model, weights)
        self._measure = measuring(model)

    def about(self) -> tuple[str, dict[str, str]]:
        """The machine, and the versions there."""
        return socket.gethostname(), versions()

    def measure(self, window: Window) -> Measured:
        """What a window gives."""
        return self._measure(window)


class RayWorkers:
    """Workers that measure windows; one that is lost is replaced.

    Raises SurveyError where Ray has not the processor cores for them.
    """

    def __init__(
        self,
        ray: Any,
        model: Model,
        measuring: Measuring,
        *,
        workers: int | None = None,
        threads: int | None = None,
    ) -> None:
        threads = threads or torch.get_num_threads()
        self._ray, self._count = ray, _count(ray, workers, threads)
        self._kind = ray.remote(num_cpus=threads, max_restarts=0)(Worker)
        # Once into Ray's store, from where each machine takes it once.
        self._given = (ray.put(model), layout(model), measuring, threads)
        self._starting: dict[Any, Any] = {}
        self._measuring: dict[Any, tuple[Any, Window]] = {}
        self._free: deque[Any] = deque()
        self._again: list[Window] = []
        self._done: dict[int, tuple[Window, Measured]] = {}
        self._lost: dict[int | None, int] = {}

    def start(self) -> None:
        """Start the workers; each measures as soon as it has loaded the model."""
        for _ in range(self._count):
            self._start_one()

    def _start_one(self) -> None:
        worker = self._kind.remote(*self._given)
        self._starting[worker.about.remote()] = worker

    def measured(self, windows: Iterable[Window]) -> Iterator[tuple[Window, Measured]]:
        """Each window with what it gives, in the order of the windows.

        Raises SurveyError for a window by which workers are lost again and again, and what
        measuring raises.
        """
        unread = iter(windows)
        waiting: deque[int] = deque()
        ended = False
        while waiting or not ended:
            while self._free and (self._again or (not ended and self._has_room(waiting))):
                window = self._again.pop() if self._again else next(unread, None)
                if window is None:
                    ended = True
                    continue
                if window.number not in waiting:
                    waiting.append(window.number)
                worker = self._free.popleft()
                self._measuring[worker.measure.remote(window)] = (worker, window)
            if waiting and waiting[0] in self._done:
                yield self._done.pop(waiting.popleft())
            elif waiting or not ended:
                self._take_one()

    def _has_room(self, waiting: deque[int]) -> bool:
        return len(waiting) < AHEAD * self._count

    def _take_one(self) -> None:
        """Wait until a worker has started, measured a window, or is lost; then see to it."""
        [answer], _ = self._ray.wait([*self._starting, *self._measuring], num_returns=1)
        if answer in self._starting:
            worker, window = self._starting.pop(answer), None
        else:
            worker, window = self._measuring.pop(answer)
        errors = self._ray.exceptions
        try:
            result = self._ray.get(answer)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except errors.RayError as error:
            self._replace(window, error)
            return
        if window is None:
            check_versions(*result)
            self._lost.pop(None, None)
        else:
            self._done[window.number] = (window, result)
            self._lost.pop(window.number, None)
        self._free.append(worker)

    def _replace(self, window: Window | None, error: Exception) -> None:
        """Start another worker for one that is lost, and have its window measured again."""
        number = None if window is None else window.number
        self._lost[number] = times = self._lost.get(number, 0) + 1
        if times == MOST_LOST:
            what = "were lost before they had loaded the model"
            if window is not None:
                first, last = window.documents[0].id, window.documents[-1].id
                what = f"were lost while they measured the documents from {first} to {last}"
            reason = " ".join(str(error).split())
            raise SurveyError(f"{times} workers of Ray {what}; the last one: {reason}")
        if window is not None:
            self._again.append(window)
        self._start_one()

    def stop(self) -> None:
        """End every worker, whatever it is doing."""
        for worker in (
            *self._starting.values(),
            *self._free,
            *(w for w, _ in self._measuring.values()),
        ):
            with suppress(Exception):
                self._ray.kill(worker)


@contextmanager
def ray_workers(
    model: Model, measuring: Measuring, *, workers: int | None = None, threads: int | None = None
) -> Iterator[RayWorkers]:
    """Workers of the cluster that Ray is connected to, or finds, or else of this machine alone.

    Raises SurveyError for a model that is not on the processor, and for what Ray cannot give.
    """
    import ray

    if model.body.word.weight.device.type != "cpu":
        raise SurveyError(
            f'{model.name} is on {model.body.word.weight.device}; engine="ray" computes on '
            'processors. Take model.cpu(), or engine="local".'
        )
    ours = not ray.is_initialized()
    if ours:
        _connect(ray)
    try:
        found = RayWorkers(ray, model, measuring, workers=workers, threads=threads)
        try:
            found.start()
            yield found
        finally:
            found.stop()
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any) -> None:
    # Ray reports how it is used to its makers unless it is told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray writes what workers print to standard output, where the tables of a command are.
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except (RuntimeError, ConnectionError, OSError, ValueError) as error:
        raise SurveyError(f"Ray cannot be started or reached ({error}).") from error


def _count(ray: Any, wanted: int | None, threads: int) -> int:
    """How many workers there are: those that were asked for, or as many as have room."""
    cores = [int(one["Resources"].get("CPU", 0)) for one in ray.nodes() if one["Alive"]]
    room = sum(number // threads for number in cores)
    if max(1, wanted or 0) > room:
        raise SurveyError(
            f"workers={wanted or 1} of {threads} threads each: Ray has machines of "
            f"{', '.join(map(str, cores))} processor cores, which is room for {room}. Ask for "
            "fewer workers, or give threads=1."
        )
    return wanted or room


def check_versions(machine: str, there: dict[str, str]) -> None:
    """Raise SurveyError where a worker would compute with other versions than the manifest has."""
    here = versions()
    other = [
        f"{name} {there[name]}, not {here[name]}" for name in here if there[name] != here[name]
    ]
    if other:
        raise SurveyError(f"{machine}: has {', '.join(other)}. Install the same versions there.")
