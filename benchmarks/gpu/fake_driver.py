"""A CUDA driver for Triton that starts nothing: it loads what was compiled, and looks at arguments.

What a real driver refuses is refused: a kernel with more shared memory than an SM has, a block of
more threads than its registers allow, a tensor that is not on the GPU, a grid that is empty or too
large, a descriptor that the copy unit cannot read.
"""

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["FakeDriver", "Launch", "Loaded", "check_argument", "usage"]

#: Of an SM of compute capability 9.0 (CUDA C++ programming guide, technical specifications).
SHARED_BYTES, REGISTERS, THREADS = 227 * 1024, 65_536, 1024
LARGEST_GRID = (2**31 - 1, 65_535, 65_535)
#: cuTensorMapEncodeTiled (CUDA driver API): alignment in bytes, and the longest side of a box.
ALIGNED, LONGEST_BOX = 16, 256


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
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": 132, "warpSize": 32}

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
    elif isinstance(argument, Tensor):
        if not argument.is_cuda:
            raise ValueError(f"{kernel}: a tensor on {argument.device} cannot be read by the GPU")
    elif hasattr(argument, "block_shape"):
        _check_descriptor(kernel, argument)


def _check_descriptor(kernel: str, told: Any) -> None:
    size = told.base.element_size()
    steps = [step * size for step in told.strides[:-1]]
    if told.base.data_ptr() % ALIGNED or any(
        not 0 < step < 2**40 or step % ALIGNED for step in steps
    ):
        raise ValueError(f"{kernel}: the copy unit cannot read strides of {steps} bytes")
    if any(side > LONGEST_BOX for side in told.block_shape):
        raise ValueError(f"{kernel}: the copy unit cannot read a box of {told.block_shape}")


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
