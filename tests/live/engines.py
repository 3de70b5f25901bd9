"""The engines of a page, asked as a page asks them: in a process of Node, or of Python here."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from test_front_end import node

from minibert.features import Features
from minibert.model import Model
from minibert.viz.live import LIVE_FAMILIES, live_page
from minibert.viz.serve.connection import answer_steps
from minibert.viz.serve.engine import Answer, Engine, Message, read
from tests.served import serving

__all__ = ["AnyEngine", "EngineError", "EngineHere", "EngineProcess", "opened"]

Array = npt.NDArray[np.float32]
_SCRIPT = Path(__file__).with_name("engine.js")


class AnyEngine(Protocol):
    """What both engines answer."""

    def trace(
        self,
        request: dict[str, Any],
        read: Sequence[tuple[str, int | None]] = (),
        blocks: Sequence[str] = (),
    ) -> tuple[dict[str, Any], list[Array], list[bytes]]:
        """The run of a request, the quantities, and the bytes of the blocks, that are read."""

    def answer(self, call: str, **question: Any) -> dict[str, Any]:
        """What a question of another kind gives: arrays among the rest, by their names."""


class EngineError(Exception):
    """What the engine refused, in its words."""


class EngineProcess:
    """One process of Node; `open` gives it a model, `connect` a server of one."""

    def __init__(self) -> None:
        # A WebSocket has to be asked for before version 22 of Node.
        options = ("--experimental-websocket", "--no-warnings")
        self._process = subprocess.Popen(
            [node(), *options, str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def open(self, model: Any, features: Features | None = None) -> dict[str, Any]:
        """What the engine of a model's live page says about it."""
        page = live_page(model, features=features)
        live = json.loads(page.header)["live"]
        return self.answer("open", live=live, weights=page.weights)

    def trace(
        self,
        request: dict[str, Any],
        read: Sequence[tuple[str, int | None]] = (),
        blocks: Sequence[str] = (),
    ) -> tuple[dict[str, Any], list[Array], list[bytes]]:
        """The run of a request, the quantities, and the bytes of the blocks, that are read."""
        answer = self.answer("trace", request=request, read=list(read), bytes=list(blocks))
        numbers = [
            np.frombuffer(self._bytes(4 * int(np.prod(shape))), "<f4").reshape(shape)
            for shape in answer["shapes"]
        ]
        return answer, numbers, [self._bytes(length) for length in answer["lengths"]]

    def answer(self, call: str, **question: Any) -> dict[str, Any]:
        """The answer to any other call of engine.js."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, **question}).encode() + b"\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        if "error" in said:
            raise EngineError(said["error"])
        return dict(said["answer"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=20)

    def _bytes(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        assert len(data) == count
        return data


class EngineHere:
    """The engine behind a served page, without its websocket."""

    def __init__(self, model: Model) -> None:
        self.engine = Engine(model)

    def ask(self, ask: str, **question: Any) -> Answer:
        """The last answer to a message, as it is read from its text."""
        _, message = read(json.dumps({"number": 1, "ask": ask, **question}))
        assert isinstance(message, Message), message
        *turns, answer = answer_steps(self.engine, message)
        assert turns == [None] * len(turns)
        assert answer is not None
        return answer

    def trace(
        self,
        request: dict[str, Any],
        read: Sequence[tuple[str, int | None]] = (),
        blocks: Sequence[str] = (),
    ) -> tuple[dict[str, Any], list[Array], list[bytes]]:
        """The run of a request, the quantities, and the bytes of the blocks, that are read."""
        answer: Any = self.ask("trace", request=request).body
        numbers = []
        for quantity, layer in read:
            found = self.ask("read", request=request, quantity=quantity, layer=layer)
            numbers.append(np.asarray(found.blocks["values"]))
            assert found.body == {"shape": list(numbers[-1].shape)}
        packed = [self.ask("block", request=request, blocks=[name]).blocks for name in blocks]
        return (
            answer,
            numbers,
            [one[name].tobytes() for one, name in zip(packed, blocks, strict=True)],
        )

    def answer(self, call: str, **question: Any) -> dict[str, Any]:
        """The body of an answer, and its arrays."""
        found = self.ask(call, **question)
        body: Any = found.body
        return (body if isinstance(body, dict) else {"found": body}) | dict(found.blocks)


@contextmanager
def opened(
    model: Any, features: Features | None = None, *, served: bool = False
) -> Iterator[EngineProcess]:
    """The engine in the file of a model's page, or behind its server where no file can hold it."""
    with ExitStack() as stack:
        engine = EngineProcess()
        stack.callback(engine.close)
        rotary = model.config.rotary
        if (
            not served
            and model.config.family in LIVE_FAMILIES
            and not (rotary and rotary.depends_on_length)
        ):
            engine.open(model, features)
        else:
            server = stack.enter_context(serving(model, features))
            engine.answer("connect", address=server.address)
        yield engine
