"""The websocket of one page: messages in, answers out, and no more of either than fits."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from minibert.errors import MinibertError
from minibert.viz.serve.engine import Answer, Engine
from minibert.viz.serve.frames import answer_frame, error_frame
from minibert.viz.serve.model_thread import AbortError, Job, ModelThread
from minibert.viz.serve.requests import MOST_MESSAGE_BYTES, Message, RequestError, read

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

__all__ = ["MOST_OUTGOING_BYTES", "SLOW_SECONDS", "Connection", "answer_steps"]

# A client that lets so much pile up, or takes so long for one answer, is dropped.
MOST_OUTGOING_BYTES = 2**28
SLOW_SECONDS = 20.0
# Codes of RFC 6455, 7.4.1, and of the IANA register.
_MALFORMED, _TOO_LARGE = 1007, 1009


def answer_steps(engine: Engine, message: Message) -> Iterator[Answer | None]:
    """What is computed for a message: None where others may have their turn, then the answer."""
    request, place = message.request, message.place
    if message.ask == "weights":
        yield engine.weights(message.quantity, message.layer, place)
    elif message.ask == "collect":
        yield from engine.collect(message.texts, message.layer or 0, place or 0)
    elif request is None:
        yield engine.about()
    elif message.ask == "candidates":
        yield engine.candidates(request, place or 0)
    elif message.ask == "trace":
        yield engine.trace(request, message.blocks)
    elif message.ask == "block":
        yield engine.block(request, message.blocks)
    elif message.ask == "read":
        yield engine.read(request, message.quantity, message.layer)
    elif message.question is not None:
        yield from engine.sweep(request, message.question)
    elif message.sampling is not None:
        yield engine.step(request, message.sampling)


class Connection:
    """One page. `run` ends when the page goes, or is sent away."""

    def __init__(
        self,
        websocket: "WebSocket",
        engine: Engine,
        thread: ModelThread,
        abort: Callable[[Any], None],
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
            self._put(error_frame(number, str(message)))
            return

        def done(result: Any) -> None:
            # In the model's thread; the loop may have ended before it.
            frame = _frame(number, result)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._put, frame)

        job = Job(message.ask, answer_steps(self._engine, message), done)
        try:
            self._thread.submit(self, job)
        except MinibertError as error:
            self._put(error_frame(number, str(error)))

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


def _frame(number: int, result: Any) -> bytes:
    """The frame of what came of a job."""
    if isinstance(result, AbortError):
        return error_frame(number, str(result), "AbortError")
    if isinstance(result, MinibertError):
        return error_frame(number, str(result))
    try:
        return answer_frame(number, result.body, result.blocks)
    except ValueError:
        # JSON has no NaN.
        return error_frame(number, "A number of the answer is not finite.")
