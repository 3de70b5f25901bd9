"""The engine of a live or served page in a process of Node, asked as a page asks it."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EngineError", "EngineProcess"]

Array = npt.NDArray[np.float32]
_SCRIPT = Path(__file__).with_name("engine.js")


class EngineError(Exception):
    """What the engine refused, in its words."""


class EngineProcess:
    """One process of Node; `open` gives it a model, `connect` a server of one."""

    def __init__(self, node: str) -> None:
        # A WebSocket has to be asked for before version 22 of Node.
        options = ("--experimental-websocket", "--no-warnings")
        self._process = subprocess.Popen(
            [node, *options, str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def open(self, header: str, weights: str) -> dict[str, Any]:
        """What the engine says about the model of a live page's header and weights."""
        return dict(self._ask("open", live=json.loads(header)["live"], weights=weights))

    def connect(self, address: str) -> dict[str, Any]:
        """What the engine behind the page of this address says about its model."""
        return dict(self._ask("connect", address=address))

    def trace(
        self,
        request: dict[str, Any],
        read: Sequence[tuple[str, int | None]] = (),
        blocks: Sequence[str] = (),
    ) -> tuple[dict[str, Any], list[Array], list[bytes]]:
        """The run of a request, the quantities, and the bytes of the blocks, that are read."""
        answer = self._ask("trace", request=request, read=list(read), bytes=list(blocks))
        numbers = [
            np.frombuffer(self._bytes(4 * int(np.prod(shape))), "<f4").reshape(shape)
            for shape in answer["shapes"]
        ]
        return answer, numbers, [self._bytes(length) for length in answer["lengths"]]

    def sweep(self, request: dict[str, Any], question: dict[str, int]) -> Array:
        """(layer, head): the change of the log probability."""
        answer = self._ask("sweep", request=request, question=question)
        return np.asarray(answer["values"], np.float32).reshape(answer["shape"])

    def step(self, request: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
        """One next token."""
        return dict(self._ask("step", request=request, sampling=sampling))

    def worked(
        self, request: dict[str, Any], places: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What the steps of a number come to, at each place, beside the engine's own number."""
        return list(self._ask("worked", request=request, places=list(places))["answers"])

    def offered(self) -> list[str]:
        """The quantities that the arithmetic view works out."""
        return list(self._ask("offered")["ids"])

    def whole(self, request: dict[str, Any], layer: int, position: int) -> dict[str, Any]:
        """The boxes of the picture of the whole that have numbers, the open layer's in parts."""
        return dict(
            self._ask("whole", request=request, place={"layer": layer, "position": position})
        )

    def candidates(self, request: dict[str, Any], position: int) -> list[dict[str, Any]]:
        """The most probable tokens at a position."""
        return list(self._ask("candidates", request=request, position=position)["found"])

    def collect(self, texts: Sequence[Sequence[str]], layer: int, head: int) -> dict[str, Any]:
        """Query and key of one head in many texts."""
        return dict(self._ask("collect", texts=list(texts), layer=layer, head=head))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=20)

    def _ask(self, call: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, **given}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of Node ended")
        said = json.loads(line)
        if "error" in said:
            raise EngineError(said["error"])
        return said["answer"]

    def _bytes(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        assert len(data) == count
        return data
