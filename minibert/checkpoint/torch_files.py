"""The two kinds of file that `torch.save` writes, as tensors that are read when they are used.

Since torch 1.6 it is a zip archive with a pickle and one entry a storage; before, five pickles
and the storages behind them. Of an archive every check sum is compared.
"""

import io
import mmap
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoint.pickled import Storage, StoredTensor, read_pickle
from minibert.errors import CheckpointError
from minibert.untrusted import MOST_TENSORS, open_regular

__all__ = ["read_torch_file"]

_MAGIC = 0x1950A86A20F9469CFC6C
_MOST_PICKLE = _MOST_DIRECTORY = 2**25
# Weights compress little; what grows more than this is made to fill the memory.
_MOST_GROWTH, _FREE_GROWTH = 16, 2**26
_CHUNK = 2**20
# The flags of an entry: how hard it was packed, sizes behind it, and its name in UTF-8.
_FLAGS = 0x0006 | 0x0008 | 0x0800

Bytes = Callable[[Storage], memoryview]


def read_torch_file(path: Path) -> Any:
    """What the file holds, with `LazyTensor`s for its tensors.

    Raises CheckpointError for more than tensors and for what does not keep a limit, and
    ValueError and its like for a file that is cut or damaged.
    """
    with open_regular(path) as file:
        if file.read(4) == b"PK\x03\x04":
            return _read_zip(file, str(path))
        file.seek(0)
        return _read_five_pickles(file, str(path))


class LazyTensor:
    """A tensor of the file: its type and shape now, its values on demand."""

    def __init__(self, stored: StoredTensor, read: Bytes) -> None:
        self._stored, self._read = stored, read
        self.shape, self.dtype = stored.shape, stored.storage.dtype

    def load(self) -> Tensor:
        """The values, as a view of the file where it can be one."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(self._read(self._stored.storage), dtype=self.dtype)
        return flat.as_strided(self.shape, self._stored.stride, self._stored.offset)


def _with_values(value: Any, read: Bytes, levels: int = 2) -> Any:
    """The same with tensors that know their bytes, in dictionaries down to that level."""
    if isinstance(value, StoredTensor):
        return LazyTensor(value, read)
    if isinstance(value, dict) and levels:
        return {key: _with_values(one, read, levels - 1) for key, one in value.items()}
    return value


def _mapped(file: BufferedReader) -> memoryview:
    # A private mapping: torch wants memory it may write to, the file stays as it is.
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _check_size(storage: Storage, size: int, where: str) -> None:
    if storage.count * storage.dtype.itemsize != size:
        raise CheckpointError(
            f"{where}: storage {storage.key} has {size} bytes, expected "
            f"{storage.count} x {storage.dtype.itemsize}. Download or save it again."
        )


def _read_zip(file: BufferedReader, where: str) -> Any:
    _check_directory(file, where)
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        _check_entries(archive, entries, where)
        pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("no archive of torch.save")
        root = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{root}byteorder")
        if order is not None and archive.read(order) != b"little":
            raise CheckpointError(f"{where}: its numbers are big-endian; save it as safetensors.")
        storages: dict[str, Storage] = {}
        content = io.BytesIO(archive.read(entries[pickles[0]]))
        state = read_pickle(content, where, storages)
        stored = {key: entries[f"{root}data/{key}"] for key in storages}
        for key, entry in stored.items():
            _check_size(storages[key], entry.file_size, where)
        inflated = {
            key: bytearray(archive.read(entry))
            for key, entry in stored.items()
            if entry.compress_type != zipfile.ZIP_STORED
        }
    mapping = _mapped(file)

    def read(storage: Storage) -> memoryview:
        if storage.key in inflated:
            return memoryview(inflated[storage.key])
        entry = stored[storage.key]
        lengths = struct.unpack_from("<2H", mapping, entry.header_offset + 26)
        start = entry.header_offset + 30 + sum(lengths)
        content = mapping[start : start + entry.file_size]
        # torch itself begins every storage at a multiple of 64.
        return memoryview(bytearray(content)) if start % storage.dtype.itemsize else content

    return _with_values(state, read)


def _check_directory(file: BufferedReader, where: str) -> None:
    """Raise CheckpointError for a list of entries that would take long to read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 2**17))
    tail = file.read()
    file.seek(0)
    position = tail.rfind(b"PK\x05\x06")
    large = tail.rfind(b"PK\x06\x06")
    lengths = [struct.unpack_from("<I", tail, position + 12)[0]] if position >= 0 else []
    if large >= 0 and lengths == [0xFFFFFFFF]:
        lengths = list(struct.unpack_from("<Q", tail, large + 40))
    if any(length > _MOST_DIRECTORY for length in lengths):
        raise CheckpointError(f"{where}: its list of entries has {lengths[0]} bytes; too many.")


def _check_entries(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], where: str
) -> None:
    """Raise for entries that are too many, overlap, inflate too far, or are not what was saved."""
    if len(archive.infolist()) != len(entries) or len(entries) > 2 * MOST_TENSORS:
        raise CheckpointError(f"{where}: entries of one name, or too many of them.")
    packed = sum(entry.compress_size for entry in entries.values())
    whole = sum(entry.file_size for entry in entries.values())
    if whole > packed * _MOST_GROWTH + _FREE_GROWTH:
        raise CheckpointError(
            f"{where}: {packed} bytes that inflate to {whole}; expected at most {_MOST_GROWTH} "
            "times as many. Save it uncompressed."
        )
    for entry in entries.values():
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("an entry that is packed in a way torch does not write")
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            raise ValueError("an entry that is not packed and has two sizes")
        if entry.volume or entry.flag_bits & ~_FLAGS:
            raise ValueError("an entry in another part, or encrypted, or of another kind")
        if entry.filename.endswith("data.pkl") and entry.file_size > _MOST_PICKLE:
            raise CheckpointError(f"{where}: its pickle has {entry.file_size} bytes; too many.")
        # Reading to the end compares the check sum.
        with archive.open(entry) as content:
            while content.read(_CHUNK):
                pass


def _read_five_pickles(file: BufferedReader, where: str) -> Any:
    if read_pickle(file, where) != _MAGIC:
        raise ValueError("no file of torch.save")
    version, machine = read_pickle(file, where), read_pickle(file, where)
    if version != 1001 or not machine.get("little_endian", True):
        raise ValueError("of another version of torch.save")
    storages: dict[str, Storage] = {}
    state, keys = read_pickle(file, where, storages), read_pickle(file, where)
    starts, end = {}, file.seek(0, os.SEEK_CUR)
    mapping = _mapped(file)
    for key in keys:
        count = struct.unpack_from("<q", mapping, end)[0]
        size = count * storages[key].dtype.itemsize
        _check_size(storages[key], size, where)
        starts[key] = end + 8
        end += 8 + size
        if end > len(mapping):
            raise ValueError("a storage behind the end")

    def read(storage: Storage) -> memoryview:
        start = starts[storage.key]
        size = storage.count * storage.dtype.itemsize
        return memoryview(bytearray(mapping[start : start + size]))

    return _with_values(state, read)
