"""A GPU that computes nothing: calls run through to Triton's own compiler and launch, without one.

Tensors on it have shapes, strides and addresses and no numbers (torch's FakeTensorMode). Triton
specialises a call on them as it does on a GPU, compiles it for Hopper, loads it (registers, spills
and shared memory are checked as the driver does) and starts it: what is started is written down.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from benchmarks.gpu.fake_driver import FakeDriver, Launch, check_argument

__all__ = ["FakeDevice", "device", "not_compiled"]

NAME, CAPABILITY = "rehearsal (sm_90a, no GPU)", (9, 0)
#: The alignment that torch's allocator gives to every block.
_ALIGNED = 512


class _Tensors(FakeTensorMode):
    """Never asks torch's CUDA part for a tensor, whatever `torch.cuda.is_available` says."""

    avoid_device_init = True


class FakeDevice:
    """The fake GPU of this process; `launches` has what was started since it was entered."""

    def __init__(self, capability: tuple[int, int] = CAPABILITY) -> None:
        self.driver = FakeDriver(capability)
        self.tensors = _Tensors()

    @property
    def launches(self) -> list[Launch]:
        """What was started, in order."""
        return self.driver.launches

    @contextlib.contextmanager
    def entered(self, *, compiles: bool = True) -> Iterator["FakeDevice"]:
        """In here "cuda" is the fake GPU.

        Without `compiles` kernels are specialised and not compiled, which takes no time. Raises
        RuntimeError under Triton's interpreter.
        """
        from triton import knobs
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        if knobs.runtime.interpret:
            raise RuntimeError("TRITON_INTERPRET is set, so nothing would be compiled; unset it")
        before = driver._active
        self.driver.launches.clear()
        with contextlib.ExitStack() as stack:
            for target, name, stand_in in _stand_ins(self.driver.capability):
                stack.enter_context(patch.object(target, name, stand_in, create=True))
            driver.set_active(self.driver)
            stack.enter_context(
                patch.object(knobs.compilation, "listener", self.driver.compiled, create=True)
            )
            stack.callback(setattr, driver, "_active", before)
            if not compiles:
                stack.enter_context(patch.object(JITFunction, "_do_compile", not_compiled))
            stack.enter_context(self.tensors)
            stack.enter_context(_WithoutCuda())
            yield self


_known: list[FakeDevice] = []


def device() -> FakeDevice:
    """The one of this process: what kernels keep between calls stays valid."""
    if not _known:
        _known.append(FakeDevice())
    return _known[0]


class _WithoutCuda(TorchFunctionMode):
    """Answers what torch would ask its CUDA part, which need not be there.

    That is the current device, where "cuda" names none, and those of _GUARDED.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _GUARDED and isinstance(args[0], FakeTensor) and args[0].is_cuda:
            return _GUARDED[func](*args, **(kwargs or {}))
        # Numbers that nobody sees need no generator, of which a GPU's is made by its driver.
        named = {n: _with_number(one) for n, one in (kwargs or {}).items() if n != "generator"}
        return func(*map(_with_number, args), **named)


def _with_number(argument: Any) -> Any:
    if argument == "cuda" if isinstance(argument, str) else isinstance(argument, torch.device):
        place = torch.device(argument)
        return torch.device("cuda", 0) if place.type == "cuda" else place
    return argument


def _indexed(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` for numbers, slices, None, ... and one tensor of numbers."""
    parts = list(index) if isinstance(index, tuple) else [index]
    axes = sum(1 for one in parts if one is not None and one is not Ellipsis)
    if Ellipsis in [one for one in parts if not isinstance(one, Tensor)]:
        place = next(i for i, one in enumerate(parts) if one is Ellipsis)
        parts[place : place + 1] = [slice(None)] * (tensor.ndim - axes)
    axis = 0
    for one in parts:
        if one is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(one, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, one.start, one.stop, one.step or 1)
        elif isinstance(one, Tensor | list):
            places = torch.as_tensor(one, device=tensor.device)
            tensor = torch.ops.aten.index.Tensor(tensor, [None] * axis + [places])
        else:
            tensor, axis = tensor.select(axis, one), axis - 1
        axis += 1
    return tensor


#: Methods that set the current device first, and the same as operations, which do not.
_GUARDED: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _indexed,
    Tensor.contiguous: lambda one: one if one.is_contiguous() else torch.ops.aten.contiguous(one),
    Tensor.copy_: torch.ops.aten.copy_.default,
}


def _address(tensor: Tensor) -> int:
    """Where the numbers would be: a place of its own for each storage, aligned as torch does."""
    storage = tensor.untyped_storage()._cdata % 2**40
    return storage * _ALIGNED + tensor.storage_offset() * tensor.element_size()


class _Current:
    """torch.cuda.device and device_of: there is one device."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class _Event:
    """An event of a device on which a launch takes one millisecond."""

    def __init__(self, *_: Any, **options: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed_time(self, _: Any) -> float:
        return 1.0


def not_compiled(function: Any, *_: Any, **__: Any) -> Any:
    """What stands in for a compiled kernel: it looks at its arguments and is not kept."""
    name = function.fn.__name__

    def run(*given: Any) -> None:
        for one in given[9:]:
            check_argument(name, one)

    return SimpleNamespace(
        run=run, launch_metadata=lambda *_: None, function=None, packed_metadata=None
    )


def _stand_ins(capability: tuple[int, int]) -> Iterator[tuple[ModuleType | type, str, Any]]:
    """What of torch asks for a GPU, and what answers here."""
    properties = SimpleNamespace(
        name=NAME,
        major=capability[0],
        minor=capability[1],
        total_memory=80 * 2**30,
        L2_cache_size=50 * 2**20,
        multi_processor_count=132,
        shared_memory_per_block_optin=227 * 1024,
    )
    answers: dict[str, Callable[..., Any] | type] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: properties,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "device": _Current,
        "device_of": _Current,
        "Event": _Event,
    }
    for name, answer in answers.items():
        yield torch.cuda, name, answer
    yield torch, "Generator", lambda *_: torch.default_generator
    yield torch.version, "cuda", torch.version.cuda or "12.8"
    yield FakeTensor, "data_ptr", _address
