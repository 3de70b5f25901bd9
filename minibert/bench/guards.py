"""What a kernel must leave alone, and how long it may take.

A kernel that patches the clock, by design or by accident, is found
by comparing the functions that time and synchronise before and after it ran.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from minibert.bench import verdict
from minibert.errors import MinibertError

__all__ = ["Guards", "time_limit"]

_WATCHED: tuple[tuple[str, Any, str], ...] = (
    ("time.perf_counter", time, "perf_counter"),
    ("time.perf_counter_ns", time, "perf_counter_ns"),
    ("time.time", time, "time"),
    ("torch.cuda.Event", torch.cuda, "Event"),
    ("torch.cuda.Event.record", torch.cuda.Event, "record"),
    ("torch.cuda.Event.elapsed_time", torch.cuda.Event, "elapsed_time"),
    ("torch.cuda.Event.synchronize", torch.cuda.Event, "synchronize"),
    ("torch.cuda.synchronize", torch.cuda, "synchronize"),
    ("torch.empty", torch, "empty"),
    ("torch.equal", torch, "equal"),
    ("torch.Tensor.normal_", torch.Tensor, "normal_"),
    ("torch.Tensor.clone", torch.Tensor, "clone"),
)


@dataclass(frozen=True)
class Guards:
    """The functions of the clock and the check as they were before the user's file ran."""

    before: tuple[Any, ...]

    @classmethod
    def now(cls) -> "Guards":
        """As they are now."""
        return cls(tuple(getattr(owner, name) for _, owner, name in _WATCHED))

    def check(self, label: str) -> None:
        """Raises MinibertError when one of them is another; all are put back first."""
        replaced = []
        for before, (full_name, owner, name) in zip(self.before, _WATCHED, strict=True):
            if getattr(owner, name) is not before and getattr(owner, name) != before:
                setattr(owner, name, before)
                replaced.append(full_name)
        if replaced:
            raise MinibertError(
                f"{label} replaces {', '.join(replaced)}, which the check and the clock are made "
                "of: nothing it does can be trusted. Leave them as they are."
            )


@contextmanager
def time_limit(seconds: float, complaint: str) -> Iterator[None]:
    """The process ends with one line and status 1 when what is inside takes longer.

    A hung kernel cannot be interrupted in any gentler way: it may wait in C or for the GPU.
    """

    def give_up() -> None:
        verdict.ends(1)
        os.write(2, f"error: {complaint} after {seconds:g} seconds (--timeout).\n".encode())
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    sys.stdout.flush()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
