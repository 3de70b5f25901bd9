"""Messages between the judge and a worker: a line of JSON, and the numbers of tensors by value.

What was received belongs to the receiver alone: no file and no memory is shared, so that the other
end can neither change it later nor take it away.
"""

import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from minibert.bench.result_rows import Row

Tensors = Mapping[str, Tensor]
Shape = tuple[int, ...]
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}
#: A message is a line about a few tensors.
_MOST_TEXT = 2**16
_AT_ONCE = 2**20


def _nowhere(message: Row) -> Tensors:
    return {}


class Channel:
    """One end of the connection. `seconds` is the longest time that a whole message may take.

    A tensor is told as [name, dtype, shape, order]: `order` lists the axes from the one with the
    largest step in memory to the one with the smallest, so that a view arrives with its steps.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # As much as the system allows: each time it is full, the processes take turns.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(
        self,
        message: Row,
        tensors: Tensors,
        *,
        most: float = math.inf,
        seconds: float | None = None,
    ) -> None:
        """Send a message. Tensors of more than `most` bytes are described, without numbers.

        Raises OSError when the other end does not take it in time.
        """
        about, turned = [], []
        for name, one in tensors.items():
            order = _order(one)
            dtype = str(one.dtype).removeprefix("torch.")
            about.append([name, dtype, list(one.shape), order])
            turned.append(one.detach().permute(order))
        text = json.dumps({**message, "tensors": about}).encode()
        parts: list[Any] = [len(text).to_bytes(4, "big") + text]
        if _size(turned) <= most:
            parts += [_memory(one.cpu().contiguous()) for one in turned]
        # Little goes at once, so that the other end wakes up once.
        if _size(turned) < _AT_ONCE:
            parts = [b"".join(parts)]
        self._socket.settimeout(seconds)
        for part in parts:
            self._socket.sendall(part)

    def receive(
        self,
        *,
        most: float = math.inf,
        seconds: float | None = None,
        into: Callable[[Row], Tensors] = _nowhere,
    ) -> tuple[Row, dict[str, Tensor]]:
        """The next message and its tensors, which have no numbers (device "meta") above `most`.

        A tensor that `into` names for this message is filled in place. Raises EOFError when the
        other end has hung up, TimeoutError, and ValueError for what is not a message.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        size = int.from_bytes(self._fill(bytearray(4), end), "big")
        if size > _MOST_TEXT:
            raise ValueError(f"a message of {size} bytes")
        message = json.loads(self._fill(bytearray(size), end))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        about = _described(message.pop("tensors", None))
        if sum(math.prod(shape) * dtype.itemsize for dtype, shape, _ in about.values()) > most:
            return message, {name: _like(*one, "meta") for name, one in about.items()}
        places = into(message)
        found = {name: self._numbers(places.get(name), *one, end) for name, one in about.items()}
        return message, found

    def _numbers(
        self, place: Tensor | None, dtype: torch.dtype, shape: Shape, order: Shape, end: float
    ) -> Tensor:
        fits = (
            place is not None
            and (place.dtype, place.device.type, place.shape) == (dtype, "cpu", shape)
            and place.permute(order).is_contiguous()
        )
        here = place if fits and place is not None else _like(dtype, shape, order, "cpu")
        self._fill(_memory(here.permute(order)), end)
        return here

    def _fill(self, memory: Any, end: float) -> Any:
        left = memoryview(memory)
        while left:
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            # By the system, which then waits for all of it at once.
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
            try:
                taken = self._socket.recv_into(left, flags=socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not taken:
                raise EOFError
            left = left[taken:]
        return memory


def alike(found: Tensor | None, expected: Tensor) -> bool:
    """True when numbers of this shape and dtype were received."""
    if found is None or found.is_meta:
        return False
    return (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(one.numel() * one.itemsize for one in tensors)


def _timeval(seconds: float) -> bytes:
    whole = 0 if seconds == math.inf else max(1, int(seconds * 1e6))
    return struct.pack("ll", *divmod(whole, 10**6))


def _memory(dense: Tensor) -> Any:
    return dense.detach().resolve_conj().resolve_neg().view(-1).view(torch.uint8).numpy()


def _order(tensor: Tensor) -> list[int]:
    return sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)


def _like(dtype: torch.dtype, shape: Shape, order: Shape, device: str) -> Tensor:
    turned = torch.empty([shape[axis] for axis in order], dtype=dtype, device=device)
    return turned.permute([order.index(axis) for axis in range(len(order))])


def _described(about: Any) -> dict[str, tuple[torch.dtype, Shape, Shape]]:
    """The dtype, shape and order of each tensor that the other end names."""
    found: dict[str, tuple[torch.dtype, Shape, Shape]] = {}
    try:
        for name, dtype, shape, order in about:
            sizes = all(type(size) is int and size >= 0 for size in shape)
            if not sizes or math.prod(shape) > 2**48 or sorted(order) != [*range(len(shape))]:
                raise ValueError(f"{name}: {shape}, {order}")
            found[name] = _DTYPES[dtype], tuple(shape), tuple(order)
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error
    if len(found) != len(about) or not all(isinstance(name, str) for name in found):
        raise ValueError("names that are not, or that are there twice")
    return found
