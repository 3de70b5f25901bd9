"""The linear layer: y = activation(x·Wᵀ + b)·m + residual, on the back end that the rule names.

The rule is in linear_backends.py. packing.py makes one state of a layer, and takes it back: its
weight, or those of layers that read the same x (query, key and value), have one copy packed for
oneDNN. `linear.weight` is always the weight itself. A packed weight whose memory is handed out or
written to is not packed any more.
"""

from collections.abc import Callable, Sequence
from typing import SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from minibert.layers import linear_backends as backends
from minibert.layers.weight_views import leaves_alone, packed_view, read_only
from minibert.quantities import Float


class PackedWeight(nn.Parameter):
    """The weight of a packed layer, which torch asks before anything is done with it.

    What leaves the memory alone and hands none of it out, such as a sum or a copy, leaves the layer
    packed. After everything else, a view, an array or a change, this is a plain parameter, and its
    layer multiplies by it.
    """

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """What the function gives, after which the weights that it may have changed are plain."""
        named = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **named)
            for weight in _packed_among((*args, *named.values())):
                if not leaves_alone(function, found, weight):
                    cast(nn.Parameter, weight).__class__ = nn.Parameter
        return found

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(values_of(self).clone(), requires_grad=False)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        # A file of a pickled model holds plain parameters.
        return nn.Parameter(values_of(self), requires_grad=False).__reduce_ex__(protocol)


def values_of(weight: Tensor) -> Tensor:
    """The numbers of a weight, to be read: without a gradient, and a packed one stays packed."""
    with torch._C.DisableTorchFunctionSubclass():
        return weight.detach()


def _packed_among(values: Sequence[object]) -> list[PackedWeight]:
    """The packed weights among the arguments of a function, those in lists too."""
    found = []
    for value in values:
        if isinstance(value, list | tuple):
            found += _packed_among(value)
        elif type(value) is PackedWeight:
            found.append(value)
    return found


class OneMatrix:
    """A packed copy of the weights of linear layers, below one another.

    `sources` has each weight with its count of changes, and each bias that is part of `bias`, which
    is the memory that they lie in. When one is something else the copy is dropped for good.
    """

    def __init__(
        self,
        matrix: Tensor,
        bias: Tensor | None,
        weights: Sequence[nn.Parameter],
        biases: Sequence[nn.Parameter],
    ) -> None:
        self.matrix: Tensor | None = matrix
        self.bias = bias
        self.widths = [len(weight) for weight in weights]
        # A detached tensor shares the count of changes, and nothing is asked before it is read.
        self.sources = tuple(
            (one, one.detach(), one._version if number < len(weights) else -1)
            for number, one in enumerate((*weights, *biases))
        )
        for weight in weights:
            weight.__class__ = PackedWeight

    @property
    def stands(self) -> bool:
        """True while the copy is that of the weights."""
        return self.matrix_for([source for source, _, _ in self.sources]) is not None

    def matrix_for(self, parameters: Sequence[Tensor | None]) -> Tensor | None:
        """The copy, where these are its parameters and as they were; None otherwise."""
        for parameter, (source, alias, changes) in zip(parameters, self.sources, strict=False):
            if parameter is not source:
                # Another parameter, as in torch.func.functional_call: this call goes without.
                return None
            if changes < 0:
                same = source.data_ptr() == alias.data_ptr()
            else:
                same = type(source) is PackedWeight and alias._version == changes
            if not same:
                self.drop()
        return self.matrix

    def drop(self) -> None:
        """Never use the copy again; the weights are plain parameters from now on."""
        self.matrix = None
        sources, self.sources = self.sources, ()
        for parameter, _, _ in sources:
            if type(parameter) is PackedWeight:
                cast(nn.Parameter, parameter).__class__ = nn.Parameter


class Linear(nn.Module):
    """activation(x·Wᵀ + b)·multiplier + residual.

    `weight` and `bias` are what a file holds. Whoever asks what the layer computes reads `matrix`
    and `offset`, in which the multiplier is.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    one_matrix: OneMatrix | None = None
    """The packed copy of the weight, while the layer is packed."""

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
        parameters = self._parameters
        added = residual if self.multiplier == 1.0 else None
        if "weight" not in parameters or "bias" not in parameters:
            # Pruned or parametrized: computed from other parameters each time.
            out = backends.torch_linear(x, self.weight, self.bias, activation, added)
        else:
            one, bias, packed = self.one_matrix, parameters["bias"], None
            if one is not None:
                packed = _packed_for(x, added, (parameters["weight"], bias), one)
            if packed is None:
                out = backends.torch_linear(x, self.readable, bias, activation, added)
            else:
                out = backends.onednn_linear(x, packed, bias, activation, added)
        if self.multiplier == 1.0:
            return out
        out = out * self.multiplier
        return out if residual is None else residual + out

    @property
    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """What x is multiplied by from the right, the multiplier included.

        It is a view of the weight, or read-only where it is computed.
        """
        weight = self.weight
        if self.multiplier != 1.0:
            return read_only(self.readable.mT * self.multiplier, f"a weight * {self.multiplier:g}")
        if type(weight) is PackedWeight:
            return packed_view(values_of(weight).mT, weight)
        return weight.mT if "weight" in self._parameters else read_only(weight.mT, _COMPUTED)

    @property
    def readable(self) -> Float[Tensor, "d_out d_in"]:
        """The weight, to be read: views of a packed one leave the layer packed."""
        weight = self.weight
        return values_of(weight) if type(weight) is PackedWeight else weight

    @property
    def offset(self) -> Float[Tensor, " d_out"] | None:
        """What is added to the product, the multiplier included; None without a bias."""
        bias = self.bias
        if bias is None or self.multiplier == 1.0:
            return bias
        return read_only(bias * self.multiplier, f"a bias * {self.multiplier:g}")

    def __getstate__(self) -> dict[str, object]:
        # A copied or pickled layer is not packed.
        return {name: value for name, value in self.__dict__.items() if name != "one_matrix"}


_COMPUTED = "what a module in the place of a weight computes"


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
    # Asked what it does to each entry of x: an adapter beside a weight is no part of that weight.
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


class SharedInput:
    """Linear layers that read the same x (query, key and value), run as one while packed."""

    one_matrix: OneMatrix | None = None
    """The packed copy of their weights, where there is one."""

    def __init__(self, linears: tuple[Linear, ...]) -> None:
        self.linears = linears

    def __reduce__(self) -> tuple[object, ...]:
        # A copied or pickled model has its weights apart.
        return SharedInput, (self.linears,)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """One output a linear layer. The layers are plain; see `linear_is_plain`."""
        one = self.one_matrix
        if one is None:
            return tuple([linear.forward(x) for linear in self.linears])
        # Loops and not comprehensions, which are calls of Python.
        parameters = []
        for linear in self.linears:
            parameters.append(linear._parameters["weight"])
        for linear in self.linears:
            parameters.append(linear._parameters["bias"])
        packed = _packed_for(x, None, parameters, one)
        if packed is None:
            return tuple([linear.forward(x) for linear in self.linears])
        return backends.onednn_linear(x, packed, one.bias).split(one.widths, dim=-1)


def _packed_for(
    x: Tensor,
    residual: Tensor | None,
    # Not all are Parameters: torch.func.functional_call puts plain tensors in their place.
    parameters: Sequence[Tensor | None],
    one: OneMatrix,
) -> Tensor | None:
    """The packed copy, where this call may multiply by it; None for each weight as it is."""
    if (
        not x.is_cpu
        # Where oneDNN's operators do not exist or would be recorded.
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._get_tracing_state() is not None
        # Forward mode (torch.func.jvp) takes no notice of no_grad.
        or forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None
        or backends.named() not in (None, "onednn-packed")
    ):
        return None
    packed = one.matrix_for(parameters)
    if packed is None or x.dtype != packed.dtype:
        return None
    if torch.is_grad_enabled():
        # A packed weight has no gradient.
        biases = (each for each in parameters if type(each) is not PackedWeight)
        if any(each is not None and each.requires_grad for each in (x, residual, *biases)):
            return None
    return packed
