"""How many bytes a result keeps alive, weights left out."""

import gc
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

# References are not followed into the program, nor into a model with its weights.
NOT_FOLLOWED = (nn.Module, type, ModuleType, FunctionType, FrameType)


def held_bytes(result: Any) -> int:
    """Bytes of the different storages of all tensors that can be reached from `result`.

    What belongs to a model, and parameters wherever they are, is not counted.
    """
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors(result)
        if not isinstance(tensor, nn.Parameter)
    }
    return sum(storages.values())


def tensors(result: Any) -> Iterator[Tensor]:
    """All tensors reachable by references, not through a model, a module of Python or a class."""
    seen, waiting = set[int](), [result]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, NOT_FOLLOWED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        waiting.extend(gc.get_referents(one))
