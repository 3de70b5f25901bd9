"""The tensors of a checkpoint, by the names the checkpoint gives them, read without a copy.

safetensors files are mapped into memory: a tensor is a view of its file until somebody needs
another layout or type. A pickle (`pytorch_model.bin`) is read by torch's reader of weights.
"""

import math
import mmap
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from minibert.checkpoint.headers import header_of, read_weights
from minibert.errors import CheckpointError
from minibert.untrusted import guarded, open_regular, tried_out

#: What weights may have as their type.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Python 3.13 has the name; the number is that of Linux on every processor torch runs on.
_WITHOUT_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class MappedRegion:
    """The bytes of one tensor in a mapped file; a view of them carries it as `parameter.mapped`.

    parts   the parameters that lie in the tensor
    """

    parts = 1

    def __init__(self, mapping: mmap.mmap, start: int, stop: int) -> None:
        self._mapping, self._start, self._stop = mapping, start, stop

    def __reduce__(self) -> tuple[object, ...]:
        # A pickled parameter is not a view of a file any more: None.
        return type(None), ()

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view of the file: nothing is read before it is used, nothing written to the file."""
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count = math.prod(shape)
        return torch.frombuffer(self._mapping, dtype=dtype, count=count, offset=self._start).view(
            shape
        )

    def copied(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A copy of a region that does not start at a multiple of its item size."""
        size = (self._stop - self._start,)
        content = self.tensor(torch.uint8, size).clone()
        self.release()
        return content.view(dtype).view(shape)

    def release(self) -> None:
        """Give the pages back to the operating system; they are read again when touched.

        The mapping is private: pages that were written to would be lost, so only call this on a
        tensor that still equals its file.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = -(-self._start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = self._stop // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint: its type and shape now, its values on demand."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    region: MappedRegion | None = None
    """Where the values lie in a mapped file; None for a pickle or a live model."""


def open_state_dict(tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
    """The entries of tensors that are in memory already; they are shared, not copied."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            raise CheckpointError(
                f"{name} is a sparse, nested or quantised tensor; expected a dense one. "
                "Make it dense before you load the model."
            )
    return {
        name: Entry(tuple(tensor.shape), tensor.dtype, tensor.detach)
        for name, tensor in tensors.items()
    }


def open_checkpoint(folder: Path) -> dict[str, Entry]:
    """The entries of the first kind of weight file that the folder has, by checkpoint name.

    Raises CheckpointError when there is none, when one is cut short or damaged, when an index
    does not say what its files hold, and for a pickle that holds more than dense tensors.
    """
    return read_weights(folder, read_safetensors, read_pickle)


def read_safetensors(path: Path) -> dict[str, Entry]:
    """The entries of one safetensors file; CheckpointError where it is not a whole one."""
    header, begin = header_of(path)
    try:
        with path.open("rb") as file:
            mapping = _private(file.fileno())
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error or 'out of memory'}).") from None
    entries: dict[str, Entry] = {}
    for name, about in header.items():
        if about["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{path}: {name} has the type {about['dtype']}, which minibert does not read; "
                f"expected one of {', '.join(_DTYPES)}. Quantised checkpoints are not read."
            )
        dtype, shape = _DTYPES[about["dtype"]], tuple(about["shape"])
        start, stop = (begin + offset for offset in about["data_offsets"])
        region = MappedRegion(mapping, start, stop)
        if start % dtype.itemsize and start < stop:
            entries[name] = Entry(shape, dtype, partial(region.copied, dtype, shape))
        else:
            entries[name] = Entry(shape, dtype, partial(region.tensor, dtype, shape), region)
    return entries


def _private(file: int) -> mmap.mmap:
    """The file as memory that torch may write to; the file stays as it is."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    # Without a reserve Linux maps a file that is larger than the memory of the machine.
    flags = mmap.MAP_PRIVATE | _WITHOUT_RESERVE
    return mmap.mmap(file, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


_DAMAGED = "not a whole torch file; it was cut short or damaged; download or save it again"


def read_pickle(path: Path) -> dict[str, Entry]:
    """The tensors of a file of `torch.save`, by torch's reader of weights.

    It calls torch's own functions for tensors and no others that a file names. A process with
    limits reads the file first, so that one made to take memory or time without end takes neither
    here. That costs an import of torch, once for all shards.
    """
    with open_regular(path) as file, guarded(path, problem=_DAMAGED):
        zipped = file.read(4) == b"PK\x03\x04"
        if zipped:
            _check_archive(file, path)
        memory = 2**32 + 2 * os.fstat(file.fileno()).st_size
    if ended := tried_out(__name__, load_pickle.__name__, str(path), zipped, memory=memory):
        raise CheckpointError(f"{path}: {_DAMAGED} (a process that read it {ended}).")
    with guarded(path, problem=_DAMAGED):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except pickle.UnpicklingError as error:
            # Not torch's own words, which advise to run what the file names.
            named = re.search(r"GLOBAL (\S+)", str(error))
            asks = f": it asks for {named[1]:.100}" if named else ", or is damaged"
            raise CheckpointError(
                f"{path}: this pickle holds more than tensors{asks}. It could run code when it is "
                "opened, so it is not. Convert it to safetensors where you trust it."
            ) from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path}: expected a dictionary of tensors, a state dict.")
    if meta := next((name for name, tensor in state.items() if tensor.is_meta), None):
        raise CheckpointError(f"{path}: {meta} is a meta tensor, which has no values.")
    with guarded(path):
        return open_state_dict(state)


def load_pickle(path: str, zipped: bool) -> None:
    """Read a file by torch's reader of weights; for a process with limits.

    What is not a tensor is refused by `read_pickle`, which can say what it was.
    """
    with suppress(pickle.UnpicklingError):
        torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _check_archive(file: BufferedReader, path: Path) -> None:
    """Raise CheckpointError for damage, and for compression, which torch takes for numbers."""
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise CheckpointError(f"{path}: it is compressed; save it again by torch.save.")
        # torch takes memory that nothing was written to for the numbers of what is called a folder.
        folders = (i.filename for i in archive.infolist() if i.file_size and i.external_attr & 0x10)
        if damaged := archive.testzip() or next(folders, None):
            raise CheckpointError(
                f"{path}: the check sum of {damaged} is not the one that the file gives, or it is "
                "named like a folder, so the file is damaged; download or save it again."
            )
