"""One matrix in the place of the weights of linear layers, and how it is kept from going stale.

Made by packing.py, used by linear.py. The matrix is either plain memory that the weights are views
of, so that there is nothing to go stale, or a copy packed for oneDNN.
"""

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["OneMatrix", "PackedWeight"]


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
