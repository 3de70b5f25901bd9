"""Weights that are handed out by name, where a write into their memory would not reach the model.

ReadOnly    a copy, such as a stack over layers: every write is refused, into its views too
PackedView  the memory of a packed weight: after a write, or once an array shares its memory, the
            layer is not packed any more
"""

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, cast

import numpy as np
import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError

Function = Callable[..., object]

# What a question about a tensor may be answered with: none of these leads to its memory.
_ANSWERS = (bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout)
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
_OPERATORS += ["and", "or", "xor", "lshift", "rshift"]
# Handing out the memory to another library counts: it can write there.
_WRITING = {f"__i{name}__" for name in _OPERATORS} | {"__setitem__", "__dlpack__"}


def leaves_alone(function: Function, found: object, weight: Tensor) -> bool:
    """True where a function that gave this cannot have changed or handed out the memory."""
    name = getattr(function, "__name__", "")
    if isinstance(found, list | tuple):
        return all(leaves_alone(function, each, weight) for each in found)
    if isinstance(found, Tensor):
        # What is not strided, such as a sparse form, is a copy.
        if found is weight or found.layout != torch.strided:
            return found is not weight
        return not shares_memory(found, weight)
    if found is None:
        return name == "__get__"
    return isinstance(found, _ANSWERS) and name != "data_ptr"


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """True where both are in the same memory."""
    return torch._C._is_alias_of(one, other)  # type: ignore[attr-defined]


class WeightView(Tensor):
    """A tensor whose views are of its class too, and which is asked about every function."""

    def before(self, function: Function, writes: bool) -> None:
        """Called before a function runs; `writes` where this is what it writes to."""

    def after(self, function: Function, found: object) -> object:
        """Called with what the function gave, which is no view; gives that back."""
        return found

    def same_kind(self, view: Tensor) -> Tensor:
        """The view, in this class."""
        made = view.as_subclass(type(self))
        made.__dict__.update(self.__dict__)
        return made

    @classmethod
    def __torch_function__(
        cls,
        function: Function,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """What the function gives; views of a weight are asked about what is done to them."""
        named = kwargs or {}
        views = list(_views_in((*args, *named.values())))
        written = [*_views_in(_written(function, args, named))]
        with torch._C.DisableTorchFunctionSubclass():
            for view in views:
                view.before(function, any(view is each for each in written))
            found = function(*args, **named)
            for view in views:
                found = _told(view, function, found)
        return found

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.detach().clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return self.__deepcopy__({}).__reduce_ex__(protocol)


class ReadOnly(WeightView):
    """A copy that nobody can write into: the model would not change."""

    what: str

    def before(self, function: Function, writes: bool) -> None:
        """Raise CheckpointError for a write."""
        if writes:
            raise CheckpointError(
                f"This tensor is {self.what}, a copy: a write into it would not reach the model. "
                "Write into the parameter itself, such as model.body.layers[1].attention.output."
                "weight, or change a copy of yours: .clone()."
            )

    def after(self, function: Function, found: object) -> object:
        """An array in the same memory cannot be written either."""
        if isinstance(found, np.ndarray) and found.ctypes.data == self.data_ptr():
            found.flags.writeable = False
        return found


class PackedView(WeightView):
    """The memory of a packed weight."""

    weight: Tensor

    def after(self, function: Function, found: object) -> object:
        """Have the layer multiply by the weight itself after what may have written to it."""
        if not leaves_alone(function, found, self):
            cast(nn.Parameter, self.weight).__class__ = nn.Parameter
        return found


def read_only(value: Tensor, what: str) -> Tensor:
    """The tensor, which nobody can write into; `what` says in an error what it is."""
    made = value.as_subclass(ReadOnly)
    made.what = what
    return made


def packed_view(value: Tensor, weight: Tensor) -> Tensor:
    """Memory of a packed weight, to be handed out."""
    made = value.as_subclass(PackedView)
    made.weight = weight
    return made


def _views_in(values: Iterable[object]) -> Iterable[WeightView]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _views_in(value)
        elif isinstance(value, WeightView):
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


def _told(view: WeightView, function: Function, found: object) -> object:
    """What a function gave: views in the class of the view, the rest as `after` has it."""
    if isinstance(found, list | tuple):
        several = [_told(view, function, each) for each in found]
        kind: Any = type(found)
        return kind(*several) if hasattr(found, "_fields") else kind(several)
    if isinstance(found, Tensor) and found is not view and found.layout == torch.strided:
        return view.same_kind(found) if shares_memory(found, view) else found
    return view.after(function, found)
