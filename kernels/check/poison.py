"""Memory that is NaN until it is written: what a kernel leaves unwritten shows."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def poisoned_memory(query: Tensor, n_keys: int) -> Iterator[None]:
    """Memory handed out inside is NaN until it is written.

    torch fills what `empty` gives when told to; and for memory that comes another way, tensors of
    the outputs' sizes full of NaN were freed just before.
    """
    # Typed as a plain module; the setting is a property that torch puts there at run time.
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = True
        rows, K = query.shape[:3], n_keys
        shapes = (query.shape, rows, (*rows, K), (*query.shape[:2], K))
        poison = [torch.full(shape, math.nan).to(query) for shape in shapes for _ in range(2)]
        del poison
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            memory.fill_uninitialized_memory = fill
