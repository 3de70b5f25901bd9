"""Weights that are handed out to be read: a write into them would not reach the model."""

from collections.abc import Callable, Iterable
from typing import SupportsIndex, cast

import numpy as np
import torch
from torch import Tensor

from minibert.errors import CheckpointError

Function = Callable[..., object]

_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
_OPERATORS += ["and", "or", "xor", "lshift", "rshift"]
# Handing out the memory to another library counts: it can write there.
_WRITING = {f"__i{name}__" for name in _OPERATORS} | {"__setitem__", "__dlpack__"}


class ReadOnly(Tensor):
    """A tensor that refuses every write, into its views too."""

    what: str

    @classmethod
    def __torch_function__(
        cls,
        function: Function,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """What the function gives, views as ReadOnly; CheckpointError where it writes to one."""
        named = kwargs or {}
        for refused in _read_only_in(_written(function, args, named)):
            raise CheckpointError(
                f"This tensor is {refused.what}, to be read: a write into it would not reach the "
                "model. Write into the parameter itself, such as model.body.layers[1].attention."
                "output.weight, or change a copy of yours: .clone()."
            )
        views = list(_read_only_in((*args, *named.values())))
        with torch._C.DisableTorchFunctionSubclass():
            return _guarded(function(*args, **named), views)

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.detach().clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return self.__deepcopy__({}).__reduce_ex__(protocol)


def read_only(value: Tensor, what: str) -> Tensor:
    """The tensor, which nobody can write into; `what` says in an error what it is."""
    made = value.as_subclass(ReadOnly)
    made.what = what
    return made


def values_of(weight: Tensor) -> Tensor:
    """The numbers of a weight as a plain tensor in the same memory, without a gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        return weight.detach()


def _read_only_in(values: Iterable[object]) -> Iterable[ReadOnly]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _read_only_in(value)
        elif isinstance(value, ReadOnly):
            yield value


def _written(
    function: Function, args: tuple[object, ...], named: dict[str, object]
) -> tuple[object, ...]:
    """The arguments that a function writes to, by its name."""
    # That of torch.ops.aten.mul_.Tensor is "mul_.Tensor".
    name = getattr(function, "__name__", "").partition(".")[0]
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    data = function == Tensor.data.__set__  # type: ignore[attr-defined]
    first = args[:1] or tuple(named.values())
    return (named.get("out"), *(first if in_place or name in _WRITING or data else ()))


def _guarded(found: object, views: list[ReadOnly]) -> object:
    """What a function of read-only tensors gave; what lies in their memory is read-only too."""
    if isinstance(found, list | tuple):
        several, kind = [_guarded(each, views) for each in found], cast(Function, type(found))
        return kind(*several) if hasattr(found, "_fields") else kind(several)
    if isinstance(found, np.ndarray) and any(found.ctypes.data == v.data_ptr() for v in views):
        found.flags.writeable = False
    if isinstance(found, Tensor) and found.layout == torch.strided:
        for view in views:
            if torch._C._is_alias_of(found, view):  # type: ignore[attr-defined]
                return found if found is view else read_only(found, view.what)
    return found
