"""The linear layer: y = activation(x·Wᵀ + b)·m + residual, on the back end that the rule names.

torch's `F.linear` runs float32 through MKL, which takes a slow path on processors that Intel did
not make; oneDNN does not, and is fastest with a copy of the weight in its own block layout. Whether
there is such a copy follows from the processor, the data type and the shape, and from nothing else:
the same input gives the same bits in every process on a machine. Name a back end yourself with the
environment variable MINIBERT_LINEAR (torch, onednn-packed), set before a model is loaded; see the
choice with `print(model.trace(text))`.

`pack` makes a state of layers, and `unpack` takes it back. `linear.weight` is always the weight
itself, but any code that holds it may write to it, so the copy is then dropped. Weights that are
handed out read-only (`ReadOnly`) refuse every write, which would not reach the model.
"""

import math
import mmap
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsIndex, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from minibert.errors import CheckpointError, MinibertError
from minibert.quantities import Float


class Packed:
    """A packed copy of the weights of linear layers that read the same x, below one another.

    matrix   None once it was dropped
    bias     of all of them; None where they have none, or where it is one layer
    widths   the outputs of each layer
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None, widths: list[int]) -> None:
        self.matrix: Tensor | None = matrix
        self.bias = bias
        self.widths = widths

    def drop(self) -> None:
        """Never use the copy again: the layers multiply by their weights from now on."""
        self.matrix = None


class HandedOut(dict[str, nn.Parameter | None]):
    """The parameters of a packed layer: when one of them is handed out, the copy is dropped.

    All of torch takes a module's parameters from this dictionary. The layer itself reads them with
    the methods of `dict`, which drop nothing.
    """

    def __init__(self, values: dict[str, nn.Parameter | None], packed: Packed) -> None:
        super().__init__(values)
        self.packed = packed

    # A copied or pickled layer is not packed.
    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, nn.Parameter | None]:
        return deepcopy(dict(dict.items(self)), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return dict, (dict(dict.items(self)),)


def _dropping(method: Callable[..., object]) -> Callable[..., object]:
    def handed_out(self: HandedOut, *args: object, **named: object) -> object:
        self.packed.drop()
        return method(self, *args, **named)

    return handed_out


for _name in ("__getitem__", "__setitem__", "__delitem__", "__iter__", "__or__", "__ror__", "copy"):
    setattr(HandedOut, _name, _dropping(getattr(dict, _name)))
for _name in ("get", "items", "values", "pop", "popitem", "setdefault", "update", "clear"):
    setattr(HandedOut, _name, _dropping(getattr(dict, _name)))


class Weight(nn.Parameter):
    """A parameter of which every write through `data` counts as a write (`_version`).

    A parameter becomes one by its class alone, and stays the same object.
    """

    @property
    def data(self) -> Tensor:
        """The numbers, in the same memory."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        Tensor.data.__set__(self, values)  # type: ignore[attr-defined]
        # A move to where it is, such as `model.float()`, hands it back itself.
        if values is not self:
            _count_write(self)


class _View(Tensor):
    """A view of a weight, of which the same holds."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        """The numbers, in the memory of the weight."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        """CheckpointError: other memory would not be the weight's. In-place operators give self."""
        if not self.is_set_to(values):
            raise CheckpointError(
                "This tensor is a view of a weight, and assigning its .data would not reach the "
                "model. Write into it: .data[:] = values."
            )
        _count_write(self)


def counting(view: object) -> object:
    """A plain view of a weight, so that writes through its `data` count too; all else as it is."""
    return view.as_subclass(_View) if type(view) is Tensor else view


def _count_write(weight: Tensor) -> None:
    if not weight.is_inference():
        torch.autograd.graph.increment_version(weight)


def _count_fused(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"] if group.get("fused") else ():
            _count_write(weight)


# torch counts the writes of every optimizer but those of fused ones.
register_optimizer_step_post_hook(_count_fused)


class Weighted(nn.Module):
    """A module with one weight, of which there may be a packed copy."""

    weight: nn.Parameter

    @property
    def readable(self) -> Float[Tensor, "d_out d_in"]:
        """The weight, to be read: the layer stays packed."""
        parameters = self._parameters
        if "weight" not in parameters:
            # Pruned or parametrized: computed from other parameters each time.
            return self.weight
        weight = dict.__getitem__(parameters, "weight")
        assert weight is not None
        return weight

    @property
    def is_packed(self) -> bool:
        """True while there is a packed copy of the weight."""
        packed = _packed_of(self)
        return packed is not None and packed.matrix is not None


class Embedding(Weighted):
    """A table with one row for each id; often the output embedding's weight too."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of the ids."""
        return F.embedding(ids, self.readable)

    @property
    def table(self) -> Float[Tensor, "rows width"]:
        """The rows; read-only while the weight is packed."""
        return read_only(self.readable, _PACKED) if self.is_packed else self.readable


class Linear(Weighted):
    """activation(x·Wᵀ + b)·multiplier + residual.

    `weight` and `bias` are what a file holds. Code that asks what the layer computes reads `matrix`
    and `offset`, in which the multiplier is.
    """

    bias: nn.Parameter | None

    def __init__(
        self, d_in: int, d_out: int, *, bias: bool = True, multiplier: float = 1.0
    ) -> None:
        super().__init__()
        self.multiplier = multiplier
        self.weight = nn.Parameter(torch.empty(d_out, d_in), requires_grad=False)
        values = nn.Parameter(torch.empty(d_out), requires_grad=False) if bias else None
        self.register_parameter("bias", values)

    def forward(
        self,
        x: Float[Tensor, "*rows d_in"],
        *,
        activation: str | None = None,
        residual: Float[Tensor, "*rows d_out"] | None = None,
    ) -> Float[Tensor, "*rows d_out"]:
        """activation(x·Wᵀ + b)·multiplier + residual."""
        added = residual if self.multiplier == 1.0 else None
        out = self._product(x, activation, added)
        if self.multiplier == 1.0:
            return out
        out = out * self.multiplier
        return out if residual is None else residual + out

    def _product(self, x: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
        packed = _packed_for(self, x, residual)
        if packed is None or packed.matrix is None or len(packed.widths) > 1:
            return torch_linear(x, self.readable, self.readable_bias, activation, residual)
        return onednn_linear(x, packed.matrix, self.readable_bias, activation, residual)

    @property
    def readable_bias(self) -> Float[Tensor, " d_out"] | None:
        """The bias, to be read likewise; None without one."""
        parameters = self._parameters
        return dict.__getitem__(parameters, "bias") if "bias" in parameters else self.bias

    @property
    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """What x is multiplied by from the right, the multiplier included.

        It is a view of the weight; read-only where it is computed, and while the layer is packed.
        """
        return self._shown(self.readable.mT, "weight")

    @property
    def offset(self) -> Float[Tensor, " d_out"] | None:
        """What is added to the product, the multiplier included; None without a bias."""
        return None if self.readable_bias is None else self._shown(self.readable_bias, "bias")

    def _shown(self, value: Tensor, name: str) -> Tensor:
        if self.multiplier != 1.0:
            return read_only(value * self.multiplier, f"a {name} * {self.multiplier:g}")
        if name not in self._parameters:
            return read_only(value, _COMPUTED)
        return read_only(value, f"the {name} of a packed layer") if self.is_packed else value


class Int8Weight(Weight):
    """A rounded weight, which has no gradient."""

    def requires_grad_(self, requires_grad: bool = True) -> "Int8Weight":
        """The weight as it is. Raises CheckpointError where it shall have a gradient."""
        if requires_grad:
            raise CheckpointError(
                'The model was loaded with weights="int8", and rounded weights have no gradient. '
                "To train it, load it without weights=."
            )
        return self


class Int8Linear(Linear):
    """A linear layer of numbers from −127 to 127 in 8 bits, with a scale for each row.

    W = scale · rounded, scale = max|row| / 127. Rows of x are rounded in the same way, q = x / s,
    so x·Wᵀ = s · scale · (q·roundedᵀ), where the product is one of whole numbers (Dettmers et al.
    2022, "LLM.int8()", section 3.1). A gradient passes the rounding of x as though there were none
    (Bengio, Léonard and Courville 2013, section 4).

    `weight` is computed each time. Raises CheckpointError for x that is not in float32 on the CPU.
    """

    def __init__(self, linear: Linear, weight: Tensor) -> None:
        nn.Module.__init__(self)
        self.multiplier = linear.multiplier
        scale = _scale_of(weight)
        rounded = weight.div(scale).round_().to(torch.int8, memory_format=torch.contiguous_format)
        self.rounded = Int8Weight(rounded, requires_grad=False)
        self.scale = nn.Parameter(scale[:, 0], requires_grad=False)
        self.register_parameter("bias", linear.bias)

    def __getstate__(self) -> dict[str, object]:
        # oneDNN's layout is neither copied nor pickled.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}

    @property
    def packed(self) -> Tensor:
        """`rounded` in the layout that oneDNN multiplies, made again once it was written to."""
        version = self.rounded._version
        if self.__dict__.get("_packed", (None,))[0] != version:
            self.__dict__["_packed"] = version, torch.ops.onednn.qlinear_prepack(self.rounded, None)
        found: Tensor = self.__dict__["_packed"][1]
        return found

    @property
    def readable(self) -> Float[Tensor, "d_out d_in"]:
        """scale · rounded."""
        return self.rounded * self.scale[:, None]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """scale · rounded, read-only."""
        return read_only(self.readable, _COMPUTED)

    def _product(self, x: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
        if (
            not x.is_cpu
            or x.dtype != torch.float32
            or torch.is_autocast_enabled("cpu")
            or _is_forward_mode()
        ):
            raise CheckpointError(
                f'weights="int8" computes in float32 on the CPU, and this is {x.dtype} on '
                f"{x.device.type}, under autocast or in a transform of torch.func. Load the model "
                "without weights= for that."
            )
        asked = torch.is_grad_enabled() and x.requires_grad
        out = _OfRounded.apply(x, self) if asked else self._of_rounded(x)
        if (bias := self.readable_bias) is not None:
            out = out + bias if out.requires_grad else out.add_(bias)
        return _finished(out, activation, residual)

    def _of_rounded(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        size = _scale_of(rows)
        q = rows.div(size).round_().to(torch.int8)
        out = int8_product(q, self.packed, self.scale).mul_(size)
        return out.view(*x.shape[:-1], len(self.scale))


def int8_product(q: Tensor, packed: Tensor, scale: Tensor) -> Float[Tensor, "row d_out"]:
    """(q·roundedᵀ) · scale, the product in int32; `packed` is the rounded weight."""
    nothing = torch.zeros_like(scale, dtype=torch.int64)
    # In front of the weight scale and zero of x, behind it those of the result and its type.
    given: tuple[Any, ...]
    given = (q, 1.0, 0, packed, scale, nothing, None, 1.0, 0, torch.float32, "none", [], "")
    found: Tensor = torch.ops.onednn.qlinear_pointwise.default(*given)
    return found


def _scale_of(rows: Float[Tensor, "row d_in"]) -> Float[Tensor, "row 1"]:
    """What the largest number of each row is 127 of; of a row of zeros anything above 0."""
    # Five times as fast as the norm of infinity.
    return rows.abs().amax(1, keepdim=True).clamp_min_(torch.finfo(rows.dtype).tiny * 127).div_(127)


class _OfRounded(torch.autograd.Function):
    """What an Int8Linear gives, and a gradient without the rounding of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Int8Linear) -> Tensor:
        ctx.linear = linear
        return linear._of_rounded(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.linear.readable, None


def put(model: nn.Module, place: str, parameter: nn.Parameter, *, rounded: bool) -> None:
    """Give a module of a model its parameter; `rounded`: weights that it names `large` as int8."""
    above, _, leaf = place.rpartition(".")
    owner = model.get_submodule(above)
    further, _, name = above.rpartition(".")
    if rounded and leaf == "weight" and name in getattr(model.get_submodule(further), "large", ()):
        setattr(model.get_submodule(further), name, Int8Linear(cast(Linear, owner), parameter))
        # Pages of the file that a table of embeddings needs as well are read again when touched.
        if mapped := getattr(parameter, "mapped", None):
            mapped.release()
    else:
        setattr(owner, leaf, parameter)


_PACKED = "the weight of a packed layer"
_COMPUTED = "what a module in place of a weight computes"


def linear_is_plain(module: nn.Module) -> bool:
    """True for a Linear as minibert made it: no hooks, nothing pruned, parametrized or replaced."""
    return (
        type(module) is Linear
        and "weight" in module._parameters
        and "bias" in module._parameters
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
    )


def matrix_of(linear: nn.Module, d_in: int) -> Float[Tensor, "d_in d_out"]:
    """What a linear layer multiplies x by from the right, or what stands in its place does."""
    if isinstance(linear, Linear):
        return linear.matrix
    if type(linear) is nn.Linear:
        return linear.weight.mT
    # Asked what it does to each entry of x: an adapter beside a weight is not a part of that
    # weight.
    nothing = _zeros_for(linear, d_in)
    return read_only(linear(torch.eye(d_in).to(nothing)) - linear(nothing), _COMPUTED)


def offset_of(linear: nn.Module, d_in: int) -> Float[Tensor, " d_out"] | None:
    """What a linear layer adds to the product, or what stands in its place does; None: nothing."""
    if isinstance(linear, Linear):
        return linear.offset
    if type(linear) is nn.Linear:
        return linear.bias
    return read_only(linear(_zeros_for(linear, d_in))[0], _COMPUTED)


def _zeros_for(linear: nn.Module, d_in: int) -> Float[Tensor, "1 d_in"]:
    like = next((p for p in linear.parameters() if p.is_floating_point()), torch.empty(0))
    return like.new_zeros(1, d_in)


def dtype_of(linear: nn.Module) -> torch.dtype:
    """The number type in which a linear layer computes: its weight's, or that of a scale."""
    return next(one.dtype for one in held(linear) if one.is_floating_point())


def of_same_input(linears: Sequence[nn.Module], x: Tensor) -> Sequence[Tensor]:
    """What linear layers make of the same x, as one while they are packed together."""
    packed = _packed_of(linears[0])
    if packed is not None and packed.matrix is not None and len(packed.widths) == len(linears):
        # A hook, a pruned weight or a module put in a layer's place must run: one by one then.
        together = all(linear_is_plain(one) and _packed_of(one) is packed for one in linears)
        if together and _packed_for(linears[0], x, None) is not None:
            return onednn_linear(x, packed.matrix, packed.bias).split(packed.widths, -1)
    return [linear(x) for linear in linears]


def held(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a model, each once, to be read: layers stay packed."""
    each = (one for module in model.modules() for one in dict.values(module._parameters))
    return (one for one in dict.fromkeys(each) if one is not None)


@runtime_checkable
class Modules(Protocol):
    """A module, or what shows those of one."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Each module by its place."""


def held_by_name(model: Modules) -> dict[str, nn.Parameter]:
    """`model.named_parameters()`, to be read: layers stay packed."""
    names: dict[nn.Parameter, str] = {}
    for place, module in model.named_modules():
        for name, one in dict.items(module._parameters):
            if one is not None:
                names.setdefault(one, f"{place}.{name}" if place else name)
    return {name: one for one, name in names.items()}


def pack(model: nn.Module) -> None:
    """Pack the weights of linear layers that were just read from a file, as the rule says.

    The file's pages are given back, where nothing else lies in them. A module names in `same_input`
    those of its layers that read the same x. A weight that an embedding holds too is packed for
    both; one that two other modules hold is not.
    """
    modules = list(model.modules())
    tables = {id(one.readable): one for one in modules if isinstance(one, Embedding)}
    uses = Counter(
        id(one)
        for module in modules
        if module not in tables.values()
        for one in dict.values(module._parameters)
    )
    groups = [[getattr(one, name) for name in getattr(one, "same_input", ())] for one in modules]
    for linears in [*groups, *([one] for one in modules)]:
        free = [one for one in linears if isinstance(one, Linear) and _packed_of(one) is None]
        if not free or len(free) < len(linears):
            continue
        weights = [one.readable for one in free]
        mapped = [getattr(weight, "mapped", None) for weight in weights]
        if not all(mapped) or any(uses[id(weight)] > 1 for weight in weights):
            continue
        d_out = sum(map(len, weights))
        choice = chosen(weights[0].dtype, weights[0].shape[1], d_out)
        if weights[0].is_cpu and choice.name == "onednn-packed":
            _pack(free, weights, [one for w in weights if (one := tables.get(id(w)))])
            # Pages that hold other layers' weights too are given back with those or not at all.
            for one in filter(None, mapped):
                if one.parts in (1, len(weights)):
                    one.release()


def _pack(
    linears: Sequence[Linear], weights: Sequence[Tensor], tables: Sequence[Embedding]
) -> None:
    """Make one packed copy of the weights of layers with one input; `tables` hold them too."""
    biases = [linear.readable_bias for linear in linears]
    # A layer by itself adds its own bias.
    several = [bias.detach() for bias in biases if bias is not None and len(linears) > 1]
    matrix = packed_copy(_joined([weight.detach() for weight in weights]))
    packed = Packed(matrix, torch.cat(several) if several else None, list(map(len, weights)))
    for one in (*linears, *tables):
        one.__dict__["_parameters"] = HandedOut(one._parameters, packed)


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """The weights below one another, in one piece of memory, to be read once."""
    if len(weights) == 1 and weights[0].is_contiguous():
        return weights[0]
    shape = (sum(map(len, weights)), weights[0].shape[1])
    # malloc keeps what is freed between longer-lived blocks: a fifth of a GPT-2. This goes back.
    buffer = mmap.mmap(-1, math.prod(shape) * weights[0].element_size())
    whole = torch.frombuffer(buffer, dtype=weights[0].dtype).view(shape)
    return torch.cat(list(weights), out=whole)


def unpack(model: nn.Module) -> None:
    """Drop every packed copy. The weights themselves were never changed by packing."""
    for packed in map(_packed_of, model.modules()):
        if packed is not None:
            packed.drop()


def describe(model: nn.Module) -> str:
    """The back end of a model's largest linear layer, with the processor and the rule."""
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    if any(isinstance(one, Int8Linear) for one in linears):
        return f"int8 ({processor().name}; {int8_by(processor())})"
    if not linears:
        return "torch (there is no linear layer)"
    largest = max((one.readable for one in linears), key=Tensor.numel)
    if not largest.is_cpu:
        return f"torch (the weights are on {largest.device.type})"
    choice = chosen(largest.dtype, *reversed(largest.shape))
    if choice.name != "torch" and not any(one.is_packed for one in linears):
        return f"torch ({processor().name}; rule: the weights are not packed)"
    return f"{choice.name} ({processor().name}; rule: {choice.rule})"


def _packed_of(linear: nn.Module) -> Packed | None:
    found: Packed | None = getattr(linear._parameters, "packed", None)
    return found


def _packed_for(linear: nn.Module, x: Tensor, residual: Tensor | None) -> Packed | None:
    """The packed copy, where this call may multiply by it; None for each weight as it is."""
    packed = _packed_of(linear)
    if packed is None or packed.matrix is None:
        return None
    if (
        not x.is_cpu
        or x.dtype != packed.matrix.dtype
        # Where oneDNN's operators do not exist or would be recorded.
        or torch.is_autocast_enabled("cpu")
        or _is_transformed()
        or named() not in (None, "onednn-packed")
        # A packed weight gives no gradient.
        or (
            torch.is_grad_enabled()
            and (x.requires_grad or (residual is not None and residual.requires_grad))
        )
    ):
        return None
    return packed


def _is_transformed() -> bool:
    """True where torch compiles, records or transforms what is computed."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or _is_forward_mode()
    )


def _is_forward_mode() -> bool:
    """True in torch.func.jvp and its like, which take no notice of no_grad."""
    return forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


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
                "model. Write into the parameter itself, such as model.body.word.weight (W_E) "
                "or model.body.layers[1].attention.output.weight, or change a copy: .clone()."
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


NAMES = ("torch", "onednn-packed")
# The rule of `backend_for` comes from measurements: docs/decisions/002. A smaller weight gains less
# than oneDNN's 10 microseconds a call.
PACK_FROM = 1 << 17

_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "relu": torch.relu_,
    "silu": partial(F.silu, inplace=True),
    "tanh": torch.tanh_,
}
_OUT_OF_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# Activations oneDNN fuses into the multiplication: (its name, its algorithm).
_FUSED = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "tanh": ("tanh", ""),
}


@dataclass(frozen=True)
class Processor:
    """What the rule reads of a processor."""

    vendor: str
    """As in /proc/cpuinfo: AuthenticAMD, GenuineIntel; "" where it is not known."""
    name: str
    features: frozenset[str] = frozenset()
    onednn_dtypes: frozenset[torch.dtype] = frozenset()
    """The types that this torch multiplies through oneDNN here."""


class Choice(NamedTuple):
    """A back end and, in words, the rule that chose it."""

    name: str
    rule: str


def activate(x: Tensor, activation: str) -> Tensor:
    """activation(x), out of place and differentiable."""
    return _OUT_OF_PLACE[activation](x)


def torch_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(x·weightᵀ + bias) + residual through torch, on any device, differentiable."""
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    asked = torch.is_grad_enabled() and x.requires_grad and not trained
    linear = _OfFewRows.apply if asked and x.is_cpu and not _is_transformed() else F.linear
    return _finished(linear(x, weight, bias), activation, residual)


def _finished(out: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
    """activation(out) + residual."""
    # In place where no gradient needs the value: a fresh buffer of this size costs page faults.
    if activation is not None:
        change = None if out.requires_grad else _IN_PLACE.get(activation)
        out = change(out) if change else activate(out, activation)
    if residual is None:
        return out
    if out.requires_grad or residual.requires_grad:
        return out + residual
    return out.add_(residual)


class _OfFewRows(torch.autograd.Function):
    """x·weightᵀ + bias, where rows without a gradient take no time on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        weight = weight.to(gradient.dtype)
        # Several gradients at once have no number that `if` could ask.
        batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
        if batched or _is_transformed() or bool((rows := gradient.detach().any(-1)).all()):
            return gradient @ weight, None, None
        back = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
        return back.index_put((rows,), gradient[rows] @ weight), None, None


def onednn_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """A linear layer by oneDNN, with the activation or the residual fused in; no gradient.

    `weight` is made by `packed_copy`.
    """
    # The overloads by name: choosing among them, torch writes the tensors into an error it drops.
    linear = torch.ops.mkldnn._linear_pointwise
    if residual is not None and activation is None:
        return linear.binary(x, residual, weight, bias, "add")
    fused = _FUSED.get(activation)
    name, algorithm = fused or _FUSED[None]
    out = linear.default(x, weight, bias, name, [], algorithm)
    if fused is None and activation is not None:
        change = _IN_PLACE.get(activation)
        out = change(out) if change else activate(out, activation)
    return out if residual is None else out.add_(residual)


def packed_copy(weight: Tensor) -> Tensor:
    """A copy of `weight` (out, in) in the block layout oneDNN multiplies fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


@lru_cache
def processor() -> Processor:
    """The processor of this machine."""
    about: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().split("\n\n", 1)[0]
        pairs = [line.split(":", 1) for line in first.splitlines() if ":" in line]
        about = {name.strip(): text.strip() for name, text in pairs}
    return Processor(
        vendor=about.get("vendor_id", ""),
        name=about.get("model name") or platform.processor() or platform.machine(),
        features=frozenset(about.get("flags", "").split()),
        onednn_dtypes=frozenset(_onednn_dtypes()),
    )


def _onednn_dtypes() -> set[torch.dtype]:
    operators = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(operators, "_linear_pointwise"):
        return set()
    half = {
        torch.bfloat16: operators._is_mkldnn_bf16_supported(),
        torch.float16: operators._is_mkldnn_fp16_supported(),
    }
    return {torch.float32} | {dtype for dtype, there in half.items() if there}


def backend_for(
    processor: Processor, dtype: torch.dtype, d_in: int, d_out: int, *, name: str | None = None
) -> Choice:
    """How to multiply by a weight (d_out, d_in) on this processor, and the rule that says so.

    `name` is the back end that the user named, if any.
    """
    kind = str(dtype).removeprefix("torch.")
    if dtype not in processor.onednn_dtypes:
        return Choice("torch", f"oneDNN does not multiply {kind} here")
    large = d_in * d_out >= PACK_FROM
    if name is not None:
        return Choice(name if large else "torch", "named by MINIBERT_LINEAR")
    if processor.vendor == "GenuineIntel":
        return Choice("torch", "Intel: oneDNN gains little over MKL, and errs more")
    if processor.vendor != "AuthenticAMD" or "avx2" not in processor.features:
        return Choice("torch", "oneDNN is used on AMD processors with AVX2 alone")
    # Against float64, through a GPT-2: 1.8 to 2.05 times MKL's error with AVX2, 1.3 with AVX-512.
    if "avx512f" not in processor.features:
        return Choice("torch", "AMD without AVX-512: oneDNN's products err twice as much")
    if dtype == torch.float16:
        return Choice("torch", "AMD: float16 is not measured")
    if not large:
        return Choice("torch", f"AMD, {kind}: weights of fewer than {PACK_FROM:,} numbers")
    return Choice("onednn-packed", f"AMD, {kind}: weights of {PACK_FROM:,} numbers or more")


def int8_by(processor: Processor) -> str:
    """What multiplies whole numbers of 8 bits faster here than float32; "" where nothing does."""
    features = ("amx_int8", "avx512_vnni") if _multiplies_int8() else ()
    return next((name for name in features if name in processor.features), "")


@lru_cache
def _multiplies_int8() -> bool:
    """True where this torch has the product."""
    one = torch.ones(1, 1, dtype=torch.int8)
    try:
        packed = torch.ops.onednn.qlinear_prepack(one, None)
        return int8_product(-one, packed, torch.ones(1)).item() == -1
    except (AttributeError, RuntimeError):
        return False


def chosen(dtype: torch.dtype, d_in: int, d_out: int) -> Choice:
    """`backend_for` on this machine, with the back end that is named, if any."""
    return backend_for(processor(), dtype, d_in, d_out, name=named())


def named() -> str | None:
    """The back end that MINIBERT_LINEAR names; None where the rule decides.

    Raises MinibertError when it names none.
    """
    name = os.environ.get("MINIBERT_LINEAR") or None
    if name is not None and name not in NAMES:
        raise MinibertError(
            f"MINIBERT_LINEAR={name!r} is not a back end; known are {', '.join(NAMES)}."
        )
    return name
