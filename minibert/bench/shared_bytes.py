"""Tensors from one process to another, as plain bytes in a file that both have mapped."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError

_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}
#: Each tensor starts at a multiple of this, as in memory that torch hands out.
_STEP = 64


class SharedBytes:
    """A mapped file that tensors are put into and taken from.

    What describes them travels apart, as [name, dtype, shape, order]: `order` lists the axes from
    the one with the largest step in memory to the one with the smallest, so that a view arrives
    with the steps it had.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._bytes = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)

    @classmethod
    def new(cls, path: Path, size: int) -> "SharedBytes":
        """The file, made here. Raises MinibertError where there is no room for it."""
        try:
            with path.open("xb") as file:
                # Without it a full disk would show as a crash when the memory is written.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise MinibertError(
                f"{size} bytes for tensors do not fit into {path.parent}: {error.strerror}. Free "
                "some room, or name another folder in TMPDIR."
            ) from error
        return cls(path, size)

    def put(self, tensors: Mapping[str, Tensor]) -> list[list[Any]]:
        """What describes the tensors, whose numbers are in the file from here on.

        One that does not fit is described alone.
        """
        about, start = [], 0
        for name, one in tensors.items():
            order = sorted(range(one.ndim), key=one.stride().__getitem__, reverse=True)
            turned = one.detach().permute(order)
            dtype = str(one.dtype).removeprefix("torch.")
            about.append([name, dtype, list(one.shape), order])
            end = start + one.numel() * one.itemsize
            if end <= self.size:
                self._part(start, one.dtype, tuple(turned.shape)).copy_(turned)
            start = _rounded_up(end)
        return about

    def take(self, about: Iterable[Any]) -> dict[str, Tensor]:
        """Copies of the tensors that are described. Raises ValueError when they cannot be."""
        found, start = {}, 0
        for name, dtype, shape, order in about:
            turned = tuple(shape[axis] for axis in order)
            part = self._part(start, _DTYPES[dtype], turned).clone()
            found[name] = part.permute([order.index(axis) for axis in range(len(order))])
            start += _rounded_up(part.numel() * part.itemsize)
        return found

    def _part(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        end = start + math.prod(shape) * dtype.itemsize
        if not 0 <= start <= end <= self.size:
            raise ValueError(f"{end} bytes in a file of {self.size}")
        return self._bytes[start:end].view(dtype).view(shape)


def described(about: Any) -> dict[str, Tensor]:
    """Tensors without numbers, of the shapes and dtypes that another process names.

    Raises ValueError for anything but a list as `SharedBytes.put` gives.
    """
    try:
        found = {}
        for name, dtype, shape, order in about:
            if not isinstance(name, str) or sorted(order) != list(range(len(shape))):
                raise ValueError(f"{name}, {order}")
            found[name] = torch.empty(shape, dtype=_DTYPES[dtype], device="meta")
    except (TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return found


def room_for(tensors: Iterable[Tensor]) -> int:
    """The bytes that `put` needs."""
    return sum(_rounded_up(one.numel() * one.itemsize) for one in tensors) + _STEP


def _rounded_up(size: int) -> int:
    return -(-size // _STEP) * _STEP
