"""One thread for the model: clients take turns, and the newest request of a client wins.

A job is an iterator: it runs until it yields None, others have their turn, and so on; the first
thing that is not None is its result. One that has not begun is given up when its client asks
anew, and when its client is gone.
"""

import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from minibert.errors import MinibertError

__all__ = ["MOST_WAITING", "AbortError", "Job", "ModelThread"]

MOST_WAITING = 64
_NEWEST_WINS = ("trace", "sweep", "step")


class AbortError(MinibertError):
    """A newer request has taken the place of this one."""


@dataclass(eq=False)
class Job:
    """What one client asked; `done` is called in the model's thread, once, with what came of it."""

    ask: str
    steps: Iterator[Any]
    done: Callable[[Any], None]


class ModelThread:
    """The thread, and who waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The client whose turn is next stands first.
        self._waiting: OrderedDict[object, deque[Job]] = OrderedDict()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="minibert model", daemon=True)
        self._thread.start()

    def submit(self, client: object, job: Job) -> None:
        """Put a job behind those of its client.

        A waiting trace, sweep or step makes place for a newer one of its kind. Raises MinibertError
        where too many of the client are waiting.
        """
        replaced = []
        with self._changed:
            jobs = self._waiting.setdefault(client, deque())
            if job.ask in _NEWEST_WINS:
                replaced = [one for one in jobs if one.ask == job.ask]
                for one in replaced:
                    jobs.remove(one)
            full = len(jobs) >= MOST_WAITING
            if not full:
                jobs.append(job)
                self._changed.notify()
        for one in replaced:
            one.done(AbortError("A newer request has taken the place of this one."))
        if full:
            raise MinibertError(
                f"{MOST_WAITING} requests of this page wait already; ask again when they are done."
            )

    def forget(self, client: object) -> None:
        """Give up what waits for this client."""
        with self._changed:
            self._waiting.pop(client, None)

    @property
    def n_waiting(self) -> int:
        """Jobs that wait, of all clients."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def stop(self, timeout: float = 30.0) -> bool:
        """True when the thread has ended: at once, or after the pass that it is in."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _next(self) -> tuple[object, Job] | None:
        """The client whose turn it is, and its job; None when it is time to stop."""
        with self._changed:
            while not self._stopping:
                while self._waiting:
                    client, jobs = self._waiting.popitem(last=False)
                    if jobs:
                        self._waiting[client] = jobs
                        return client, jobs.popleft()
                self._changed.wait()
        return None

    def _work(self) -> None:
        # torch may be imported only here, and this module where nothing is computed.
        from torch import no_grad

        while (turn := self._next()) is not None:
            client, job = turn
            with no_grad():
                result = _one_step(job)
            if result is not None:
                job.done(result)
                continue
            with self._changed:
                # Gone, or replaced while it ran: nobody waits for it.
                jobs = self._waiting.get(client)
                newer = jobs is not None and any(one.ask == job.ask for one in jobs)
                if jobs is not None and not newer:
                    jobs.append(job)
            if newer:
                job.done(AbortError("A newer request has taken the place of this one."))


def _one_step(job: Job) -> Any:
    """What the job gives next: None, its result, or the error that it ended with."""
    try:
        return next(job.steps)
    except MinibertError as error:
        return error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return MinibertError("There is not enough memory for this; take a shorter text.")
        return _mistake(error)
    except Exception as error:
        return _mistake(error)


def _mistake(error: Exception) -> MinibertError:
    """An error of ours: whole where the server was started, one line on the page."""
    traceback.print_exception(error, file=sys.stderr)
    return MinibertError(
        f"The server made a mistake ({type(error).__name__}); its terminal says more."
    )
