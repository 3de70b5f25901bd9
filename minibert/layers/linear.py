"""The linear layer: y = activation(x·Wᵀ + b)·m + residual, on the back end that the rule names.

The rule is in linear_backends.py. packing.py makes two states: a weight has a copy packed for
oneDNN, or the weights of layers that read the same x (query, key and value) lie side by side and
are multiplied as one. one_matrix.py says how a copy is kept from going stale. `linear.weight` is
always the weight itself; reading it unpacks nothing.
"""

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from minibert.layers import linear_backends as backends
from minibert.quantities import Float


class OneMatrix:
    """The weights of linear layers below one another.

    `sources` holds each weight (and each bias that is part of `bias`) with the address it had
    and, where the matrix is a copy, its count of changes. When an address or a count differs,
    the matrix is dropped for good.
    """

    def __init__(
        self,
        matrix: Tensor,
        bias: Tensor | None,
        weights: Sequence[nn.Parameter],
        biases: Sequence[nn.Parameter] = (),
    ) -> None:
        self.matrix: Tensor | None = matrix
        self.bias = bias
        self.packed: bool = matrix.is_mkldnn
        self.widths = [len(weight) for weight in weights]
        self.sources = tuple(
            [
                (weight, weight.data_ptr(), weight._version if self.packed else -1)
                for weight in weights
            ]
            + [(one, one.data_ptr(), -1) for one in biases]
        )
        if self.packed:
            for weight in weights:
                weight.__class__ = PackedWeight
                # Weak: a model nobody holds is freed at once.
                weight.one_matrix = weakref.ref(self)  # type: ignore[attr-defined]

    def drop(self) -> None:
        """Never use the matrix again; the weights are plain parameters from now on."""
        self.matrix = None
        sources, self.sources = self.sources, ()
        for parameter, _, _ in sources:
            if isinstance(parameter, PackedWeight):
                del parameter.one_matrix
                cast(Any, parameter).__class__ = nn.Parameter


class PackedWeight(nn.Parameter):
    """The weight of a packed layer: it unpacks the layer before it hands out its memory.

    Changes of the weight itself and of its views are counted by torch, and the layer looks at
    the count. What is changed through `.data`, through an array or through another library is
    not counted, so these hand-outs end the packing; `detach()` does too, because arrays are
    commonly taken from what it gives. So does a gradient: some optimizers write uncounted.
    """

    one_matrix: "weakref.ref[OneMatrix]"

    def _unpack(self) -> None:
        matrix = self.one_matrix()
        if matrix is None:
            # The layer is gone.
            cast(Any, self).__class__ = nn.Parameter
        else:
            matrix.drop()

    @property
    def data(self) -> Tensor:
        """The memory as a tensor whose changes are not counted."""
        self._unpack()
        return self.data

    @data.setter
    def data(self, value: Tensor) -> None:
        self._unpack()
        self.data = value

    def _set_requires_grad(self, value: bool) -> None:
        self._unpack()
        self.requires_grad = value

    def _set_grad(self, value: Tensor | None) -> None:
        self._unpack()
        self.grad = value

    # The getters are torch's own, without a call of Python.
    requires_grad = property(cast(Any, torch.Tensor.requires_grad).__get__, _set_requires_grad)
    grad = property(cast(Any, torch.Tensor.grad).__get__, _set_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Record gradients of the weight from now on."""
        self._unpack()
        return self.requires_grad_(requires_grad)

    def detach(self) -> Tensor:
        """The same memory without a gradient."""
        self._unpack()
        return self.detach()

    def numpy(self, *, force: bool = False) -> Any:
        """The same memory as an array."""
        self._unpack()
        return self.numpy(force=force)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        self._unpack()
        return self.__array__(*arguments, **options)

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        self._unpack()
        return self.__dlpack__(*arguments, **options)

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory itself."""
        self._unpack()
        return self.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(torch.clone(self), requires_grad=False)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A file of a pickled model holds plain parameters.
        plain = nn.Parameter(torch.Tensor.detach(self), requires_grad=False)
        return plain.__reduce_ex__(protocol)


# Not all are Parameters: torch.func.functional_call puts plain tensors in their place.
_Parameters = Sequence[Tensor | None]


class Linear(nn.Module):
    """activation(x·Wᵀ + b)·multiplier + residual.

    `weight` and `bias` are what a file holds. Whoever asks what the layer computes reads `matrix`
    and `offset`, in which the multiplier is.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    one_matrix: OneMatrix | None = None
    """The packed copy of the weight, where there is one."""

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
            weight, bias = parameters["weight"], parameters["bias"]
            run, matrix = _plan(x, added, (weight, bias), self.one_matrix)
            matrix = cast(Tensor, weight) if matrix is None else matrix
            out = run(x, matrix, bias, activation, added)
        if self.multiplier == 1.0:
            return out
        out = out * self.multiplier
        return out if residual is None else residual + out

    @property
    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """What x is multiplied by from the right, the multiplier included; a view without one."""
        return self.weight.mT if self.multiplier == 1.0 else self.weight.mT * self.multiplier

    @property
    def offset(self) -> Float[Tensor, " d_out"] | None:
        """What is added to the product, the multiplier included; None without a bias."""
        bias = self.bias
        return bias if bias is None or self.multiplier == 1.0 else bias * self.multiplier

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled layer is not packed.
        return {name: value for name, value in self.__dict__.items() if name != "one_matrix"}


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
    return linear(torch.eye(d_in).to(nothing)) - linear(nothing)


def offset_of(linear: nn.Module, d_in: int) -> Float[Tensor, " d_out"] | None:
    """What a linear layer adds to the product, or what stands in its place does; None: nothing."""
    if isinstance(linear, Linear):
        return linear.offset
    return linear.bias if type(linear) is nn.Linear else linear(_zeros_for(linear, d_in))[0]


def _zeros_for(linear: nn.Module, d_in: int) -> Float[Tensor, "1 d_in"]:
    like = next((p for p in linear.parameters() if p.is_floating_point()), torch.empty(0))
    return like.new_zeros(1, d_in)


class SharedInput:
    """Linear layers that read the same x (query, key and value), run as one when that is faster."""

    one_matrix: OneMatrix | None = None
    """Their weights as one matrix, where there is one."""

    def __init__(self, linears: tuple[Linear, ...]) -> None:
        self.linears = linears

    def __reduce__(self) -> tuple[Any, ...]:
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
        run, matrix = _plan(x, None, parameters, one)
        if matrix is None:
            return tuple([linear.forward(x) for linear in self.linears])
        return run(x, matrix, one.bias, None, None).split(one.widths, dim=-1)


def _plan(
    x: Tensor, residual: Tensor | None, parameters: _Parameters, one: OneMatrix | None
) -> tuple[backends.Run, Tensor | None]:
    """How to multiply, and the one matrix to multiply by; None for each weight as it is."""
    weight = cast(Tensor, parameters[0])
    if (
        not x.is_cpu
        # Where oneDNN's operators do not exist or would be recorded.
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._get_tracing_state() is not None
        # Forward mode (torch.func.jvp) takes no notice of no_grad.
        or forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None
        or x.dtype != weight.dtype
    ):
        return backends.torch_linear, None
    if torch.is_grad_enabled():
        if x.requires_grad or (residual is not None and residual.requires_grad):
            return backends.torch_linear, None
        for parameter in parameters:
            if parameter is not None and parameter.requires_grad:
                return backends.torch_linear, None
    matrix = None if one is None else one.matrix
    if one is not None and matrix is not None:
        for parameter, (source, address, changes) in zip(parameters, one.sources, strict=False):
            if parameter is not source:
                # Another parameter, as in torch.func.functional_call: this call goes without.
                matrix = None
                break
            if source.data_ptr() != address or (changes >= 0 and source._version != changes):
                one.drop()
                matrix = None
                break
        if one.packed and matrix is not None:
            if backends.named() in (None, "onednn-packed"):
                return backends.onednn_linear, matrix
            matrix = None
    if matrix is None and not weight.is_contiguous() and not weight.t().is_contiguous():
        # Columns of a wider matrix, as query is of the c_attn of transformers' GPT-2: oneDNN has
        # no fast way to multiply by those (1,340 ms beside torch's 1.3 for 96 x 768 x 768).
        return backends.torch_linear, None
    d_out, d_in = (weight if matrix is None else matrix).shape
    return backends.unpacked_run(x.dtype, x.numel() // d_in, d_in, d_out), matrix
