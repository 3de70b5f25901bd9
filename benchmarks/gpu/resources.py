"""What compiled kernels take of the device: registers, spills and shared memory, for each row."""

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from minibert.bench.result_rows import Row


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


def compilations() -> Callable[[], Row]:
    """A function that says what was compiled in this process since it was asked last.

    Fields `compiled`, a count, and `compile_s`; none where everything lay in Triton's cache.
    """
    seconds: list[float] = []
    try:
        from triton import knobs
    except ImportError:
        # No Triton, or one from before 3.4, which tells nobody.
        return dict

    def listener(**told: Any) -> None:
        if not told["cache_hit"]:
            seconds.append(told["times"].total / 1e6)

    knobs.compilation.listener = listener

    def asked() -> Row:
        found = {"compiled": len(seconds), "compile_s": round(sum(seconds), 2)} if seconds else {}
        seconds.clear()
        return found

    return asked


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
