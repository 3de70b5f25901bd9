"""What a CUDA graph cannot record raises here, on any machine: copies to and from the host, waits.

A copy between host and device, and whatever waits for the device, ends the recording of a graph;
it also costs some 10 us a call where nothing is recorded. Source: CUDA C++ programming guide,
"Prohibited and unhandled operations" of stream capture.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["CaptureError", "capture_guard", "check_recordable"]

#: What looks at numbers: .item(), .tolist(), bool(), and shapes that depend on numbers.
LOOKS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::repeat_interleave",
        "aten::_unique2",
        "aten::unique_dim",
    }
)


class CaptureError(RuntimeError):
    """A call does what no CUDA graph can record."""


class _Guard(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        given = _devices((args, kwargs))
        if "cuda" in given and name in LOOKS:
            raise CaptureError(f"{name} looks at numbers that are on the GPU, so the host waits")
        if name == "aten::index" and "cuda" in given and _by_mask(args):
            raise CaptureError(
                "indexing by a mask on the GPU: how many there are, the host must wait for"
            )
        result = func(*args, **(kwargs or {}))
        if name in ("aten::_to_copy", "aten::copy_", "aten::copy"):
            whole = given | _devices(result)
            if len(whole) > 1:
                raise CaptureError(f"{name} copies between {' and '.join(sorted(whole))}")
        return result


def _devices(tree: Any) -> set[str]:
    return {one.device.type for one in tree_leaves(tree) if isinstance(one, Tensor)}


def _by_mask(args: Any) -> bool:
    return any(one.dtype in (torch.bool, torch.uint8) for one in args[1] if one is not None)


def _waits(*_: Any, **__: Any) -> None:
    raise CaptureError("the host waits for the GPU")


@contextlib.contextmanager
def capture_guard() -> Iterator[None]:
    """In here an operation that a CUDA graph cannot record raises CaptureError."""
    with contextlib.ExitStack() as stack:
        for target in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
            stack.enter_context(patch.object(target, "synchronize", _waits, create=True))
        stack.enter_context(_Guard())
        yield


def check_recordable(run: Callable[[], Any]) -> None:
    """Raises CaptureError, with the line, unless a graph could record `run` once it has run.

    Its tensors are of the fake device, which has no numbers to look at in the first run either.
    """
    try:
        run()
        with capture_guard():
            run()
    except (CaptureError, DataDependentOutputException, DynamicOutputShapeException) as error:
        said = str(error) if isinstance(error, CaptureError) else f"looks at numbers ({error})"
        raise CaptureError(f"{_line_of(error)}: {said}") from error


def _line_of(error: BaseException) -> str:
    """The innermost line of the kernels that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "kernels" in Path(one.filename).parts] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
