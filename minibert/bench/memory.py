"""The most bytes of tensors that one call holds."""

import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from minibert.kernels.work_memory import release


def peak_bytes(
    run: Callable[[], Any],
    device: torch.device,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """The most bytes a call holds on top of what was there before, its results included.

    On a GPU by torch's account; on a CPU by torch's profiler, which does not see the memory that
    a library such as oneDNN takes for itself.
    """
    with around():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            run()
            torch.cuda.synchronize(device)
            return torch.cuda.max_memory_allocated(device) - before
        # What is kept between calls counts as what a call takes.
        release()
        return _profiled(run)


def _profiled(run: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    memory = [event for event in events if event.get("name") == "[memory]"]
    for event in sorted(memory, key=lambda event: float(event["ts"])):
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak
