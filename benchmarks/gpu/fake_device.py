"""A GPU that computes nothing: calls run through to Triton's own compiler and launch, without one.

Tensors on it have shapes, strides and addresses and no numbers (torch's FakeTensorMode). Triton
specialises a call on them as it does on a GPU, compiles it for that GPU, and hands it to a driver
that starts nothing: it loads what was compiled, looks at arguments, and notes what is started.
What a real driver refuses is refused: a kernel with more shared memory than an SM has, a block of
more threads than its registers allow, a tensor that is not on the GPU, a grid that is empty or too
large. torch's own autograd engine would ask a GPU's
driver, so nothing is recorded, while who asks is told that it is: in `recorded_functions` an
autograd function runs its forward at once and is kept, and `run_backward` runs its backward.
"""

import contextlib
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

#: Of an SM (CUDA C++ programming guide, technical specifications), by compute capability.
SHARED_BYTES = {(8, 0): 163 * 1024, (9, 0): 227 * 1024, (10, 0): 227 * 1024}
REGISTERS, THREADS = 65_536, 1024
LARGEST_GRID = (2**31 - 1, 65_535, 65_535)


@dataclass(frozen=True)
class Loaded:
    """A compiled kernel on the device: what a thread and a block take of it."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Launch:
    """A kernel that was started."""

    kernel: str
    grid: tuple[int, int, int]
    loaded: Loaded
    warps: int
    stages: int


class FakeDriver:
    """What Triton asks of a driver, for one GPU of that compute capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.launches: list[Launch] = []
        self.loaded: list[Loaded] = []
        self.seconds: list[float] = []
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        """Only where it is set."""
        return False

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 10 * self.capability[0] + self.capability[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: Any = None) -> int:
        return 0

    def get_device_capability(self, _: Any = None) -> tuple[int, int]:
        return self.capability

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_properties(self, _: Any) -> dict[str, int]:
        shared = SHARED_BYTES.get(self.capability, SHARED_BYTES[9, 0])
        return {"max_shared_mem": shared, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(
        self, name: str, binary: bytes, shared: int, _: Any
    ) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers, spilled words, threads of the largest block)."""
        registers, spilled = usage(binary)
        self.loaded.append(Loaded(name, registers, spilled, shared))
        whole = max(8, -(-registers // 8) * 8)
        largest = min(THREADS, REGISTERS // whole // 32 * 32)
        return self, self.loaded[-1], registers, spilled // 4, largest

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What starts that kernel."""
        return functools.partial(self._launch, metadata)

    def _launch(
        self, metadata: Any, x: int, y: int, z: int, _: Any, loaded: Any, *rest: Any
    ) -> None:
        # Between them and the arguments: packed metadata, launch metadata, two hooks.
        for one in rest[4:]:
            check_argument(metadata.name, one)
        for size, most in zip((x, y, z), LARGEST_GRID, strict=True):
            if not (isinstance(size, int) and 0 < size <= most):
                raise RuntimeError(f"{metadata.name}: the grid is {(x, y, z)}")
        warps, stages = metadata.num_warps, metadata.num_stages
        self.launches.append(Launch(metadata.name, (x, y, z), loaded, warps, stages))

    def compiled(self, **told: Any) -> None:
        """Triton's `knobs.compilation.listener`: the seconds of each compilation that was made."""
        if not told["cache_hit"]:
            self.seconds.append(told["times"].total / 1e6)


def check_argument(kernel: str, argument: Any) -> None:
    """Raises ValueError for an argument that a real launch would refuse."""
    if isinstance(argument, tuple | list):
        for one in argument:
            check_argument(kernel, one)
    elif isinstance(argument, Tensor) and not argument.is_cuda:
        raise ValueError(f"{kernel}: a tensor on {argument.device} cannot be read by the GPU")


def usage(binary: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of it that did not fit in them, of a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {said[:200]}")
    return int(found[1]), int(found[2]) + int(found[3])


NAME, CAPABILITY = "rehearsal (no GPU)", (9, 0)
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
        shared_memory_per_block_optin=SHARED_BYTES.get(capability, SHARED_BYTES[9, 0]),
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


class Kept:
    """The context of one autograd function, as its forward and backward use it."""

    def __init__(self, function: Any, given: tuple[Any, ...]) -> None:
        self.function = function
        self.needs_input_grad = tuple(
            isinstance(one, Tensor) and one.requires_grad for one in given
        )
        self.saved_tensors: tuple[Any, ...] = ()
        self.outputs: tuple[Any, ...] = ()
        self.constant: list[Any] = []

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant += tensors

    def set_materialize_grads(self, _: bool) -> None:
        pass


@contextlib.contextmanager
def recorded_functions() -> Iterator[list[Kept]]:
    """In here `Function.apply` runs the forward alone; the list has what was applied."""
    kept: list[Kept] = []

    def apply(function: Any, *given: Any) -> Any:
        context = Kept(function, given)
        # Inside a function torch records nothing, and says so.
        with patch.object(torch, "is_grad_enabled", lambda: False):
            if function.setup_context is not Function.setup_context:
                found = function.forward(*given)
                function.setup_context(context, given, found)
            else:
                found = function.forward(context, *given)
        context.outputs = found if isinstance(found, tuple) else (found,)
        kept.append(context)
        return found

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(patch.object(torch, "is_grad_enabled", lambda: True))
        stack.enter_context(patch.object(Function, "apply", classmethod(apply)))
        yield kept


def run_backward(kept: Kept) -> tuple[Any, ...]:
    """The gradients of the inputs, from one of each output that has one."""
    with torch.no_grad():
        given = [
            torch.empty_like(one) if _has_gradient(one, kept) else None for one in kept.outputs
        ]
        found = kept.function.backward(kept, *given)
    return found if isinstance(found, tuple) else (found,)


def _has_gradient(output: Any, kept: Kept) -> bool:
    return isinstance(output, Tensor) and not any(output is one for one in kept.constant)
