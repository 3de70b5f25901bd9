"""transformers in float64 from end to end, where its code asks for float32 by name.

RMSNorm, rotary angles, softmax and Gemma's factor on embeddings are computed in float32 there,
whatever the dtype of the model: a model in float64 is then exact to some 1e-7 only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Wide(TorchFunctionMode):
    """Every call of torch that names float32 gets float64 instead."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = Tensor.double if func is Tensor.float else func
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wider, args), **named)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def wide() -> Iterator[None]:
    """Inside, models are made in float64, their buffers included, and compute in it throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(before)
