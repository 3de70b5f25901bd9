"""What compiled kernels take of the device: registers, spills and shared memory, for each row."""

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from minibert.bench.result_rows import Row

__all__ = ["kernel_rows", "watched"]


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], list[Row]]]:
    """Gives a function that says which of Triton's kernels were started in here, each once."""
    started: dict[int, Any] = {}
    if find_spec("triton") is None:
        yield list
        return
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        kernel = run(self, *arguments, **options)
        started[id(kernel)] = kernel
        return kernel

    with patch.object(JITFunction, "run", noted):
        yield lambda: kernel_rows(started.values())


def kernel_rows(kernels: Any) -> list[Row]:
    """Name, registers of a thread, bytes of it that were spilled, shared bytes, warps, stages."""
    return [
        {
            "name": one.metadata.name,
            "registers": one.n_regs,
            # The driver counts words of local memory.
            "spilled_bytes": 4 * one.n_spills,
            "shared_bytes": one.metadata.shared,
            "warps": one.metadata.num_warps,
            "stages": one.metadata.num_stages,
        }
        for one in kernels
        if hasattr(one, "n_regs")
    ]
