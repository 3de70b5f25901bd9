"""The websocket of one page: messages in, answers out.

One thread runs the model, a step of an answer at a time: clients take turns, and the newest request
of a client wins. An answer is one binary frame, which static/engine/served.js reads:

4 bytes    length of the head, little-endian
head       JSON, UTF-8, filled with spaces so that what follows begins at a multiple of 8
blocks     one after the other, each as the head says: {"name", "bytes"}; numbers little-endian
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from torch import no_grad

from minibert.errors import MinibertError, lacks_memory
from minibert.viz.payload import Array
from minibert.viz.serve.engine import (
    MOST_MESSAGE_BYTES,
    Answer,
    Engine,
    Message,
    RequestError,
    read,
)

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

MOST_WAITING = 64
_NEWEST_WINS = ("trace", "sweep", "step")
# Codes of RFC 6455, 7.4.1, and of the IANA register.
_MALFORMED, _TOO_LARGE = 1007, 1009


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


def answer_steps(engine: Engine, message: Message) -> Iterator[Answer | None]:
    """What is computed for a message: None where others may have their turn, then the answer."""
    answer = getattr(engine, message.ask)(**message.given)
    if isinstance(answer, Answer):
        yield answer
    else:
        yield from answer


def next_step(steps: Iterator[Answer | None]) -> Answer | MinibertError | None:
    """What comes next: None, the answer, or the error that it ended with."""
    try:
        with no_grad():
            return next(steps)
    except MinibertError as error:
        return error
    except Exception as error:
        if lacks_memory(error):
            return MinibertError("There is not enough memory for this; take a shorter text.")
        # Whole where the server was started, one line on the page.
        traceback.print_exception(error, file=sys.stderr)
        return MinibertError(f"The server failed ({type(error).__name__}); its terminal says more.")


class Connection:
    """One page. `run` ends when the page goes, or is sent away."""

    def __init__(self, websocket: "WebSocket", engine: Engine, worker: ThreadPoolExecutor) -> None:
        self._websocket, self._engine, self._worker = websocket, engine, worker
        self._answers: set[asyncio.Task[None]] = set()
        self._newest: dict[str, int] = {}
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Answer until the page is gone."""
        try:
            await self._receive()
        finally:
            for answer in self._answers:
                answer.cancel()
            # What an answer ended with: the page went, which is not a mistake.
            await asyncio.gather(*self._answers, return_exceptions=True)

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
            if isinstance(message, RequestError):
                await self._send(number, message)
            elif len(self._answers) >= MOST_WAITING:
                full = f"{MOST_WAITING} requests of this page wait already; ask again later."
                await self._send(number, MinibertError(full))
            else:
                self._ask(number, message)

    def _ask(self, number: int, message: Message) -> None:
        """Begin an answer; a trace, sweep or step ends one of its kind that is not done."""
        if message.ask in _NEWEST_WINS:
            self._newest[message.ask] = number
        task = asyncio.create_task(self._answer(number, message))
        self._answers.add(task)
        task.add_done_callback(self._done)

    def _done(self, answer: asyncio.Task[None]) -> None:
        self._answers.discard(answer)
        # What it ended with where the page went before, which is not a mistake.
        if not answer.cancelled():
            answer.exception()

    async def _answer(self, number: int, message: Message) -> None:
        loop, steps = asyncio.get_running_loop(), answer_steps(self._engine, message)
        result: Answer | MinibertError | None = None
        while result is None:
            if self._newest.get(message.ask, number) != number:
                result = AbortError("A newer request has taken the place of this one.")
            else:
                result = await loop.run_in_executor(self._worker, next_step, steps)
        await self._send(number, result)

    async def _send(self, number: int, result: Answer | MinibertError) -> None:
        async with self._sending:
            await self._websocket.send_bytes(frame_of(number, result))
