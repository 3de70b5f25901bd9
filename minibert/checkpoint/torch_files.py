"""The two kinds of file that `torch.save` writes, read as data: nothing that they name is called.

Since torch 1.6 it is a zip archive with a pickle and one entry a storage; before, five pickles
and the storages behind them. Of an archive every check sum is compared. A state dict needs few of
the instructions that a pickle may hold. Python's reader carries these out, on plain dictionaries,
lists and `StoredTensor`s; any other instruction, and any name of a function that is not one of
those torch writes for dense tensors, is an error.
"""

import io
import mmap
import os
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.errors import CheckpointError
from minibert.untrusted import MOST_TENSORS, open_regular

_MOST_INSTRUCTIONS = 2**22
_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_OTHER_KINDS = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_meta_tensor_no_storage": "meta (without values)",
    "_rebuild_qtensor": "quantised",
    "_rebuild_device_tensor_from_numpy": "foreign-device",
    "_rebuild_device_tensor_from_cpu_tensor": "foreign-device",
    "_rebuild_wrapper_subclass": "wrapped",
    "_rebuild_from_type_v2": "wrapped",
}


@dataclass(frozen=True)
class Storage:
    """The numbers of one or more tensors, kept in the file under `key`."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A dense view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**48:
        raise ValueError("a size that is none")
    return value


def _rebuilt(
    storage: object,
    offset: object,
    shape: tuple[object, ...],
    stride: tuple[object, ...],
    grad: object = None,
    hooks: object = None,
    about: object = None,
) -> StoredTensor:
    if not isinstance(storage, Storage) or len(shape) != len(stride) or len(shape) > 8:
        raise TypeError("a tensor of what is no storage")
    tensor = StoredTensor(
        storage, _count(offset), tuple(map(_count, shape)), tuple(map(_count, stride))
    )
    steps = zip(tensor.shape, tensor.stride, strict=True)
    last = tensor.offset + sum((size - 1) * step for size, step in steps)
    if 0 not in tensor.shape and last >= storage.count:
        raise ValueError("a tensor that is larger than its storage")
    return tensor


# What stands for a name of a pickle; nothing else is ever called.
_CALLS: Mapping[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): lambda: {},
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_parameter"): lambda data, grad, hooks: data,
}
# Numbers, texts, containers, the memory of what was made, names, storages, calls.
_ALLOWED = frozenset((
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "NONE", "NEWTRUE", "NEWFALSE", "MARK", "EMPTY_DICT", "EMPTY_LIST",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "SETITEM", "SETITEMS", "APPEND",
    "APPENDS", "BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GET",
    "GLOBAL", "STACK_GLOBAL", "BINPERSID", "REDUCE", "BUILD", "PROTO", "FRAME", "STOP",
))  # fmt: skip


class _Reader(pickle._Unpickler):
    """Python's own reader, in Python, with the instructions of a state dict alone."""

    def __init__(self, file: BufferedIOBase, where: str) -> None:
        super().__init__(file)
        self.where, self.left = where, _MOST_INSTRUCTIONS
        self.storages: dict[str, Storage] = {}
        self.stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a function, or the type of a storage. Nothing is looked up."""
        if kind := _OTHER_KINDS.get(name):
            raise CheckpointError(
                f"{self.where}: it holds a {kind} tensor; expected dense tensors with values. "
                "Save the model's plain weights."
            )
        if (module, name) in _CALLS:
            return _CALLS[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        found = _STORAGE_DTYPES.get(name, dtype) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise CheckpointError(
            f"{self.where}: this pickle holds more than tensors: it asks for {module}.{name}. "
            "It could run code when it is opened, so it is not. Convert it to safetensors where "
            "you trust it."
        )

    def persistent_load(self, pid: Any) -> Storage:
        """A storage, which the pickle refers to by its type, key, place and size."""
        kind, dtype, key, place, count, *view = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or any(view):
            raise ValueError("a reference to something other than a whole storage")
        if not isinstance(place, str) or not isinstance(key, str):
            raise ValueError("a storage whose place or name is no string")
        if place == "meta":
            raise CheckpointError(f"{self.where}: it holds meta tensors, which have no values.")
        storage = Storage(key, dtype, _count(count))
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError("one storage with two types")
        return storage

    def set_items(self) -> None:
        """Put what lies above the mark into a dictionary."""
        self._set(self.pop_mark())  # type: ignore[attr-defined]

    def set_item(self) -> None:
        """Put one value into a dictionary."""
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _set(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items set in what is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # The hash of nested tuples can take longer than a life.
            if not isinstance(key, str | int):
                raise TypeError(f"a key of type {type(key).__name__}")
            target[key] = value

    def drop_state(self) -> None:
        """Leave out the state of a dictionary of weights: versions of modules."""
        self.stack.pop()


def _step(name: str, code: int) -> Callable[[Any], None]:
    """What an instruction does: it is counted, and refused where no state dict needs it."""
    own = {"SETITEMS": _Reader.set_items, "SETITEM": _Reader.set_item, "BUILD": _Reader.drop_state}
    usual: Callable[[Any], None] = own.get(name, pickle._Unpickler.dispatch[code])

    def step(reader: _Reader) -> None:
        reader.left -= 1
        if reader.left < 0:
            raise ValueError(f"more than {_MOST_INSTRUCTIONS} instructions")
        if name not in _ALLOWED:
            raise CheckpointError(
                f"{reader.where}: this pickle holds more than tensors: it has the instruction "
                f"{name}. Convert it to safetensors where you trust it."
            )
        usual(reader)

    return step


_Reader.dispatch = {ord(one.code): _step(one.name, ord(one.code)) for one in pickletools.opcodes}


def _read_pickle(file: BufferedIOBase, where: str) -> tuple[Any, dict[str, Storage]]:
    """What the next pickle of the file describes, and the storages that it mentions, by key.

    The file then stands behind it. Raises CheckpointError for what is no dense tensor or plain
    value, and ValueError, LookupError, TypeError or UnpicklingError for what is not well formed.
    """
    reader = _Reader(file, where)
    return reader.load(), reader.storages


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


def _with_values(value: object, read: Bytes, levels: int = 2) -> Any:
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
        content = io.BytesIO(archive.read(entries[pickles[0]]))
        state, storages = _read_pickle(content, where)
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
    if _read_pickle(file, where)[0] != _MAGIC:
        raise ValueError("no file of torch.save")
    version, machine = _read_pickle(file, where)[0], _read_pickle(file, where)[0]
    if version != 1001 or not machine.get("little_endian", True):
        raise ValueError("of another version of torch.save")
    state, storages = _read_pickle(file, where)
    keys, _ = _read_pickle(file, where)
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
