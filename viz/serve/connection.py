"""The websocket of one page: messages in, answers out, and no more of either than fits.

One thread runs the model: clients take turns, and the newest request of a client wins. An answer
is one binary frame, which static/engine/served.js reads:

4 bytes    length of the head, little-endian
head       JSON, UTF-8, filled with spaces so that what follows begins at a multiple of 8
blocks     one after the other, each as the head says: {"name", "bytes"}; numbers little-endian
"""

import asyncio
import json
import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import no_grad

from minibert.errors import MinibertError, lacks_memory
from minibert.viz.payload import Array
from minibert.viz.serve.engine import Answer, Engine
from minibert.viz.serve.requests import MOST_MESSAGE_BYTES, Message, RequestError, read

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

MOST_WAITING = 64
_NEWEST_WINS = ("trace", "sweep", "step")
# A client that lets so much pile up, or takes so long for one answer, is dropped.
MOST_OUTGOING_BYTES = 2**28
SLOW_SECONDS = 20.0
# Codes of RFC 6455, 7.4.1, and of the IANA register.
_MALFORMED, _TOO_LARGE = 1007, 1009

Client = tuple[str, int] | list[object] | None
"""Of an ASGI scope."""


class AbortError(MinibertError):
    """A newer request has taken the place of this one."""


def frame_of(number: int, result: Answer | MinibertError) -> bytes:
    """What came of message `number`: its answer with its blocks, or why there is none."""
    if isinstance(result, MinibertError):
        # The name is that of the Error in JavaScript.
        name = "AbortError" if isinstance(result, AbortError) else "Error"
        error = {"name": name, "message": str(result)}
        return _packed({"number": number, "error": error, "blocks": []})
    datas = {name: _little_endian(block) for name, block in result.blocks.items()}
    sizes = [{"name": name, "bytes": len(data)} for name, data in datas.items()]
    try:
        head = _packed({"number": number, "answer": result.body, "blocks": sizes})
    except ValueError:
        # JSON has no NaN.
        return frame_of(number, MinibertError("A number of the answer is not finite."))
    return head + b"".join(datas.values())


def _little_endian(block: Array) -> bytes:
    return np.ascontiguousarray(block, block.dtype.newbyteorder("<")).tobytes()


def _packed(head: Mapping[str, object]) -> bytes:
    # A lone surrogate, as texts may hold it, has no UTF-8; its escape has.
    text = json.dumps(head, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text


@dataclass(eq=False)
class Job:
    """What one client asked; `done` is called in the model's thread, once, with what came of it."""

    ask: str
    steps: Iterator[Answer | None]
    done: Callable[[Answer | MinibertError], None]


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


def _one_step(job: Job) -> Answer | MinibertError | None:
    """What the job gives next: None, its result, or the error that it ended with."""
    try:
        return next(job.steps)
    except MinibertError as error:
        return error
    except (MemoryError, RuntimeError) as error:
        if lacks_memory(error):
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


def answer_steps(engine: Engine, message: Message) -> Iterator[Answer | None]:
    """What is computed for a message: None where others may have their turn, then the answer."""
    answer = getattr(engine, message.ask)(**message.given)
    if isinstance(answer, Answer):
        yield answer
    else:
        yield from answer


class Connection:
    """One page. `run` ends when the page goes, or is sent away."""

    def __init__(
        self,
        websocket: "WebSocket",
        engine: Engine,
        thread: ModelThread,
        abort: Callable[[Client], None],
    ) -> None:
        self._websocket = websocket
        self._engine = engine
        self._thread = thread
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._outgoing_bytes = 0
        self._dropped = asyncio.Event()

    async def run(self) -> None:
        """Answer until the page is gone."""
        parts = [
            asyncio.create_task(part)
            for part in (self._receive(), self._send(), self._dropped.wait())
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._thread.forget(self)
            for part in parts:
                part.cancel()
            # What a part ended with: the page went, which is no mistake.
            await asyncio.gather(*parts, return_exceptions=True)
        if self._dropped.is_set():
            # It does not read, so it would not read that it is closed either.
            self._abort(self._websocket.client)

    async def _receive(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] != "websocket.receive":
                return
            text = event.get("text")
            if text is None:
                return await self._websocket.close(_MALFORMED, "Messages are text.")
            if len(text) > MOST_MESSAGE_BYTES:
                return await self._websocket.close(_TOO_LARGE, "The message is too large.")
            try:
                number, message = read(text)
            except RequestError as error:
                return await self._websocket.close(_MALFORMED, str(error))
            self._ask(number, message)

    def _ask(self, number: int, message: Message | RequestError) -> None:
        if isinstance(message, RequestError):
            self._put(frame_of(number, message))
            return

        def done(result: Answer | MinibertError) -> None:
            # In the model's thread; the loop may have ended before it.
            frame = frame_of(number, result)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._put, frame)

        job = Job(message.ask, answer_steps(self._engine, message), done)
        try:
            self._thread.submit(self, job)
        except MinibertError as error:
            self._put(frame_of(number, error))

    def _put(self, frame: bytes) -> None:
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes > MOST_OUTGOING_BYTES:
            self._dropped.set()
        else:
            self._outgoing.put_nowait(frame)

    async def _send(self) -> None:
        while True:
            frame = await self._outgoing.get()
            try:
                await asyncio.wait_for(self._websocket.send_bytes(frame), SLOW_SECONDS)
            except TimeoutError:
                self._dropped.set()
                return
            self._outgoing_bytes -= len(frame)
