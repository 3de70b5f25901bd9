"""An answer as one binary frame, which static/engine/served.js reads.

4 bytes    length of the head, little-endian
head       JSON, UTF-8, filled with spaces so that what follows begins at a multiple of 8
blocks     one after the other, each as the head says: {"name", "bytes"}; numbers little-endian
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["answer_frame", "error_frame"]

Blocks = Mapping[str, npt.NDArray[Any]]


def answer_frame(number: int, answer: Any, blocks: Blocks | None = None) -> bytes:
    """The answer to message `number`, with its blocks."""
    datas = {name: _little_endian(block) for name, block in (blocks or {}).items()}
    sizes = [{"name": name, "bytes": len(data)} for name, data in datas.items()]
    return _frame({"number": number, "answer": answer, "blocks": sizes}) + b"".join(datas.values())


def error_frame(number: int, message: str, name: str = "Error") -> bytes:
    """What is said instead of an answer; `name` is that of the Error in JavaScript."""
    return _frame({"number": number, "error": {"name": name, "message": message}, "blocks": []})


def _little_endian(block: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(block, block.dtype.newbyteorder("<")).tobytes()


def _frame(head: Mapping[str, Any]) -> bytes:
    # A lone surrogate, as texts may hold it, has no UTF-8; its escape has.
    text = json.dumps(head, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text
