"""A torch pickle (`pytorch_model.bin`) read as data: nothing in it is ever called.

A state dict needs few of the instructions that a pickle may hold. They are carried out here on
plain dictionaries, lists and `StoredTensor`s; any other instruction, and any name of a function
that is not one of those torch writes for dense tensors, is an error.
"""

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import IO, Any, cast

import torch

from minibert.errors import CheckpointError

__all__ = ["Storage", "StoredTensor", "read_pickle"]

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
class Name:
    """What a pickle asks for by module and name; never looked up."""

    module: str
    name: str


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


class _Mark:
    pass


def read_pickle(
    file: BufferedIOBase, where: str, storages: dict[str, Storage] | None = None
) -> Any:
    """What the next pickle of the file describes; the file then stands behind it.

    Every storage that it mentions is put into `storages`.

    Raises CheckpointError for what is no dense tensor or plain value, and ValueError,
    LookupError or TypeError for a pickle that is not well formed.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for count, (instruction, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], file))):
        if count > _MOST_INSTRUCTIONS:
            raise ValueError(f"more than {_MOST_INSTRUCTIONS} instructions")
        name = instruction.name
        if name == "STOP":
            return stack.pop()
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _ARGUMENTS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            memo[int(len(memo) if argument is None else argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument or 0)])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_name(argument, stack, where))
        elif name == "BINPERSID":
            storage = _storage(stack.pop(), where)
            stack.append(storage)
            if storages is not None and storages.setdefault(storage.key, storage) != storage:
                raise ValueError("one storage with two types")
        elif name in _STEPS:
            _STEPS[name](stack, where)
        elif name not in ("PROTO", "FRAME"):
            raise CheckpointError(
                f"{where}: this pickle holds more than tensors: it has the instruction {name}. "
                "Convert it to safetensors where you trust it."
            )
    raise ValueError("it does not end")


def _name(argument: str | None, stack: list[Any], where: str) -> Name:
    if argument is None:
        last = stack.pop()
        found = Name(str(stack.pop()), str(last))
    else:
        found = Name(*argument.split(" ", 1))
    if kind := _OTHER_KINDS.get(found.name):
        raise CheckpointError(
            f"{where}: it holds a {kind} tensor; expected dense tensors with values. "
            "Save the model's plain weights."
        )
    known = found in _CALLS or (found.module == "torch" and found.name in _STORAGE_DTYPES)
    if not known and not isinstance(getattr(torch, found.name, None), torch.dtype):
        raise CheckpointError(
            f"{where}: this pickle holds more than tensors: it asks for {found.module}."
            f"{found.name}. It could run code when it is opened, so it is not. Convert it to "
            "safetensors where you trust it."
        )
    return found


def _above_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while not isinstance(top := stack.pop(), _Mark):
        items.append(top)
    return items[::-1]


def _tuple_of(count: int) -> Callable[[list[Any], str], None]:
    def step(stack: list[Any], where: str) -> None:
        if len(stack) < count:
            raise ValueError("a tuple of more than there is")
        stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]

    return step


def _set_items(stack: list[Any], pairs: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, dict):
        raise TypeError("items set in what is no dictionary")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        # The hash of nested tuples can take longer than a life.
        if not isinstance(key, str | int):
            raise TypeError(f"a key of type {type(key).__name__}")
        target[key] = value


def _append(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise TypeError("items appended to what is no list")
    stack[-1].extend(items)


def _set_item(stack: list[Any], where: str) -> None:
    value, key = stack.pop(), stack.pop()
    _set_items(stack, [key, value])


def _reduce(stack: list[Any], where: str) -> None:
    arguments, function = stack.pop(), stack.pop()
    if not isinstance(function, Name) or function not in _CALLS or not isinstance(arguments, tuple):
        raise TypeError("a call of what is no function")
    stack.append(_CALLS[function](*arguments))


def _storage(reference: Any, where: str) -> Storage:
    kind, dtype, key, place, count, *view = reference
    if kind != "storage" or not isinstance(dtype, Name) or any(view):
        raise ValueError("a reference to something other than a whole storage")
    if not isinstance(place, str) or not isinstance(key, str):
        raise ValueError("a storage whose place or name is no string")
    if place == "meta":
        raise CheckpointError(f"{where}: it holds meta tensors, which have no values.")
    return Storage(key, _STORAGE_DTYPES[dtype.name], _count(count))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**48:
        raise ValueError("a size that is none")
    return value


def _rebuilt(storage: Any, offset: Any, shape: Any, stride: Any) -> StoredTensor:
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


def _rebuilt_2(
    storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, about: Any = None
) -> StoredTensor:
    return _rebuilt(storage, offset, shape, stride)


def _parameter(data: Any, grad: Any, hooks: Any) -> Any:
    return data


_CALLS: Mapping[Name, Callable[..., Any]] = {
    Name("collections", "OrderedDict"): lambda: {},
    Name("torch", "Size"): tuple,
    Name("torch._utils", "_rebuild_tensor"): _rebuilt,
    Name("torch._utils", "_rebuild_tensor_v2"): _rebuilt_2,
    Name("torch._utils", "_rebuild_parameter"): _parameter,
}
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "MARK": _Mark,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT")
_TEXTS = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING")
_ARGUMENTS = frozenset((*_NUMBERS, *_TEXTS, "SHORT_BINSTRING"))
_STEPS: Mapping[str, Callable[[list[Any], str], None]] = {
    "TUPLE": lambda stack, where: stack.append(tuple(_above_mark(stack))),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "SETITEM": _set_item,
    "SETITEMS": lambda stack, where: _set_items(stack, _above_mark(stack)),
    "APPEND": lambda stack, where: _append(stack, [stack.pop()]),
    "APPENDS": lambda stack, where: _append(stack, _above_mark(stack)),
    "REDUCE": _reduce,
    # The state that is put into a dictionary of weights: versions of modules.
    "BUILD": lambda stack, where: stack.pop(),
}
