"""The Triton kernels that a function launches, compiled for a GPU that is not there.

The function is called with tensors that have a shape, a type and a device but no numbers; each
launch is caught, specialised as Triton would do it for these arguments, and compiled. So it is
known whether the kernels compile, and what they need; not whether their numbers are right.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from minibert.kernels.check.problem import Problem

_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
}
#: Hopper, whose ptxas comes with Triton.
_CAPABILITY = 90


@dataclass(frozen=True)
class Launch:
    """A kernel and what it was called with: Triton types, constants, options of the compiler."""

    kernel: Any
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True)
class Compiled:
    """What a kernel needs on Hopper; `error` in its place where it does not compile."""

    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    warps: int = 0
    error: str = ""


@contextmanager
def without_numbers() -> Iterator[None]:
    """Tensors made inside have a shape, a type and a device, "cuda" too, and no numbers."""
    # torch's own ask the driver for the device, even where there is nothing to be copied.
    copied = patch.multiple(Tensor, contiguous=_contiguous, cuda=_on_cuda)
    with FakeTensorMode(allow_non_fake_inputs=True), copied:
        yield


def _contiguous(numbers: Tensor, memory_format: Any = torch.contiguous_format) -> Tensor:
    if numbers.is_contiguous(memory_format=memory_format):
        return numbers
    return numbers.clone(memory_format=memory_format)


def _on_cuda(numbers: Tensor, *_: Any, **__: Any) -> Tensor:
    return numbers if numbers.is_cuda else torch.empty_like(numbers, device="cuda")


def on_a_gpu(problem: Problem) -> Problem:
    """The problem in tensors of a GPU, which have no numbers; inside `without_numbers`."""
    moved: dict[str, Any] = {
        name: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda")
        for name, one in problem.tensors().items()
    }
    return replace(problem, **moved)


@contextmanager
def caught_launches() -> Iterator[list[Launch]]:
    """The launches inside, none of which runs; of an autotuner the first configuration.

    Raises ImportError where there is no Triton.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    found: list[Launch] = []

    def launched(kernel: Any, *given: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        one = _launch(kernel, given, named)
        if callable(grid):
            grid(dict(one.constants) | _arguments(kernel, given, named))
        if one not in found:
            found.append(one)

    def tuned(tuner: Any, *given: Any, **named: Any) -> Any:
        return tuner.fn.run(*given, **named | tuner.configs[0].all_kwargs())

    with patch.object(JITFunction, "run", launched), patch.object(Autotuner, "run", tuned):
        yield found


def _arguments(kernel: Any, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    names = list(kernel.arg_names)
    known = {one.name: one.default for one in kernel.params if one.has_default}
    return (
        known | dict(zip(names, given, strict=False)) | {n: named[n] for n in names if n in named}
    )


def _launch(kernel: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Launch:
    arguments = _arguments(kernel, given, named)
    fixed = {one.name for one in kernel.params if one.is_constexpr}
    types, constants, aligned = [], [], []
    for name in kernel.arg_names:
        one = arguments[name]
        # None and 1 are compiled in, as in a real call.
        if name in fixed or one is None or (type(one) is int and one == 1):
            constants.append((name, one))
            continue
        types.append((name, _type(one)))
        if isinstance(one, Tensor) or (type(one) is int and one % 16 == 0):
            aligned.append(name)
    options = [(n, named[n]) for n in ("num_warps", "num_stages") if n in named]
    return Launch(kernel, tuple(types), tuple(constants), tuple(aligned), tuple(options))


def _type(one: Any) -> str:
    if isinstance(one, Tensor):
        return f"*{_TYPES[one.dtype]}"
    if isinstance(one, bool):
        return "i1"
    if isinstance(one, int):
        return "i32" if -(2**31) <= one < 2**31 else "i64"
    if isinstance(one, float):
        return "fp32"
    raise TypeError(f"an argument of type {type(one).__name__} is not specialised here")


def compiled(launch: Launch) -> Compiled:
    """The launch compiled for Hopper by Triton and its ptxas."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, constants = list(launch.kernel.arg_names), dict(launch.constants)
    types = dict(launch.types)
    source = ASTSource(
        fn=launch.kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned},
    )
    target = GPUTarget("cuda", _CAPABILITY, 32)
    try:
        binary = triton.compile(source, target=target, options=dict(launch.options))
        registers, spilled = _resources(binary.asm["ptx"])
    # A kernel that does not compile is what is asked for here.
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return Compiled(error=f"{type(error).__name__}: {text[-1].strip()[:200]}")
    metadata = binary.metadata
    return Compiled(registers, spilled, metadata.shared, metadata.num_warps)


def _resources(ptx: str) -> tuple[int, int]:
    """Registers of a thread, and bytes that do not fit into them, as ptxas says."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name=sm_{_CAPABILITY}a", source]
        done = subprocess.run(
            [*map(str, command), "-o", os.devnull], capture_output=True, text=True, check=True
        )

    def largest(pattern: str) -> int:
        return max((int(one) for one in re.findall(pattern, done.stderr)), default=0)

    spilled = largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads")
    return largest(r"Used (\d+) registers"), spilled
