"""How a linear layer multiplies: the back ends, and which of them is fastest on this machine.

torch's `F.linear` runs through MKL in float32, which is far behind oneDNN on some processors
and level with it on others. So the choice is measured, for some milliseconds, once per machine,
number of threads, data type and shape, and kept in a small file. A back end other than plain
torch is chosen only where it is at least 7 % faster in a measurement that repeats itself.

Override it with the environment variable MINIBERT_LINEAR (torch, onednn, onednn-packed) or with
`use(...)`; see it with `minibert models --backends`.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import MinibertError

__all__ = ["NAMES", "choose", "chosen", "onednn_linear", "torch_linear", "use"]

NAMES = ("torch", "onednn", "onednn-packed")
# Below this many weights a packed copy saves microseconds and costs as many in bookkeeping.
PACK_FROM = 512 * 512
_MARGIN = 0.93
_OBVIOUS = 0.5
# Seconds a measurement may take before the machine counts as too busy to be measured.
_PATIENCE = 0.25
_ROW_CLASSES = (1, 8, 64, 256, 1024)
_WIDEST = 4096
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: torch.ops.aten.gelu_(x),
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "relu": torch.relu_,
    "silu": lambda x: F.silu(x, inplace=True),
    "tanh": torch.tanh_,
}
_OUT_OF_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# Activations oneDNN fuses into the multiplication: (its name, its algorithm).
_FUSED = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "tanh": ("tanh", ""),
}

_forced: str | None = None
_expected_rows: ContextVar[int | None] = ContextVar("expected_rows", default=None)
# machine -> shape -> microseconds of each back end
_measured: dict[str, dict[str, dict[str, float]]] = {}


def activate(x: Tensor, activation: str) -> Tensor:
    """activation(x), out of place and differentiable."""
    return _OUT_OF_PLACE[activation](x)


def torch_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(x·weightᵀ + bias) + residual through torch, on any device, differentiable."""
    out = F.linear(x, weight, bias)
    # In place where no gradient needs the value: a fresh buffer of this size costs page faults.
    if activation is not None:
        change = None if out.requires_grad else _IN_PLACE.get(activation)
        out = change(out) if change else activate(out, activation)
    if residual is None:
        return out
    if out.requires_grad or residual.requires_grad:
        return out + residual
    return out.add_(residual)


def onednn_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """The same through oneDNN, with the activation or the residual fused in; no gradient.

    `weight` is plain or packed by `pack`.
    """
    # The overloads by name: choosing among them, torch writes the tensors into an error it drops.
    linear = torch.ops.mkldnn._linear_pointwise
    if residual is not None and activation is None:
        return linear.binary(x, residual, weight, bias, "add")
    fused = _FUSED.get(activation)
    name, algorithm = fused or _FUSED[None]
    out = linear.default(x, weight, bias, name, [], algorithm)
    if fused is None and activation is not None:
        out = activate(out, activation)
    return out if residual is None else out.add_(residual)


def pack(weight: Tensor) -> Tensor:
    """A copy of `weight` (out, in) in the block layout oneDNN multiplies fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def onednn_available(dtype: torch.dtype) -> bool:
    """True when this torch can multiply this dtype through oneDNN's linear on this processor."""
    if not torch.backends.mkldnn.is_available() or dtype not in _DTYPES:
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


def use(name: str | None) -> None:
    """Force one back end for every linear layer prepared from now on; None measures again.

    Raises MinibertError for an unknown name.
    """
    global _forced
    if name is not None and name not in NAMES:
        raise MinibertError(f"Unknown linear back end {name!r}; known are {', '.join(NAMES)}.")
    _forced = name


def forced() -> str | None:
    """The back end that `use` or MINIBERT_LINEAR forces; None when it is measured.

    Raises MinibertError when MINIBERT_LINEAR names none.
    """
    name = _forced or os.environ.get("MINIBERT_LINEAR") or None
    if name is not None and name not in NAMES:
        raise MinibertError(
            f"MINIBERT_LINEAR={name!r} is no back end; known are {', '.join(NAMES)}."
        )
    return name


@contextmanager
def expect(rows: int) -> Iterator[None]:
    """Within it, a weight is copied only where the copy is faster for this many rows.

    For generation: a long prompt is read once, and hundreds of tokens are then computed singly.
    """
    before = _expected_rows.set(rows)
    try:
        yield
    finally:
        _expected_rows.reset(before)


def expected() -> int | None:
    """The rows that `expect` announces; None outside of it."""
    return _expected_rows.get()


def choose(rows: int, d_in: int, d_out: int, dtype: torch.dtype, *, packed: bool = True) -> str:
    """The name of the fastest back end for `rows` inputs of width `d_in` on this machine.

    `packed=False` leaves out the one that needs a packed copy of the weight.
    """
    if not onednn_available(dtype):
        return "torch"
    name = forced()
    if name is not None:
        return "onednn" if name == "onednn-packed" and not packed else name
    # Rows are classed; widths are not, because the blocks of a kernel fit some better than others.
    rows = next((size for size in _ROW_CLASSES if rows <= size), _ROW_CLASSES[-1])
    d_in, d_out = min(d_in, _WIDEST), min(d_out, _WIDEST)
    key = f"{str(dtype).removeprefix('torch.')} {rows} x {d_in} -> {d_out}"
    times = _store().get(key)
    if times is None:
        times, steady = _measure(rows, d_in, d_out, dtype)
        # On a busy machine plain torch cannot be a mistake, unless the difference is no accident;
        # the next process measures again.
        if not steady and min(times.values()) > _OBVIOUS * times["torch"]:
            times = {"torch": times["torch"]}
        _remember(key, times, keep=steady)
    if not packed:
        times = {name: time for name, time in times.items() if name != "onednn-packed"}
    return _winner(times)


def chosen() -> dict[str, tuple[str, dict[str, float]]]:
    """What was measured on this machine: shape -> (back end, microseconds of each)."""
    return {key: (_winner(times), times) for key, times in sorted(_store().items())}


def machine() -> str:
    """What a measurement is valid for: processor, torch and number of threads."""
    return f"{_processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


@lru_cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0].split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _winner(times: dict[str, float]) -> str:
    best = min(times, key=lambda name: times[name])
    return best if times[best] < _MARGIN * times["torch"] else "torch"


@torch.no_grad()
def _measure(rows: int, d_in: int, d_out: int, dtype: torch.dtype) -> tuple[dict[str, float], bool]:
    """Microseconds of each back end, and whether the machine was quiet enough to believe them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, d_in, generator=generator).to(dtype)
    weight = torch.randn(d_out, d_in, generator=generator).to(dtype)
    bias = torch.zeros(d_out, dtype=dtype)
    runs = {"torch": lambda: F.linear(x, weight, bias)}
    if dtype == torch.float32:
        # Half types torch takes through oneDNN itself; there only packing adds something.
        runs["onednn"] = lambda: onednn_linear(x, weight, bias)
    if d_in * d_out >= PACK_FROM:
        packed = pack(weight)
        runs["onednn-packed"] = lambda: onednn_linear(x, packed, bias)
    return _clock(runs)


def _clock(runs: dict[str, Callable[[], Tensor]]) -> tuple[dict[str, float], bool]:
    """The best time of each in turns, until three turns of each agree or the time is over."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin, steady = time.perf_counter(), False
    while not steady and time.perf_counter() - begin < _PATIENCE:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seen[name].append((time.perf_counter() - start) * 1e6)
        # A turn that somebody else's work interrupted is never among the three best.
        steady = all(len(t) >= 6 and sorted(t)[2] < 1.1 * min(t) for t in seen.values())
    return {name: round(min(times), 1) for name, times in seen.items()}, steady


def cache_file() -> Path:
    """Where the measurements are kept: $XDG_CACHE_HOME/minibert/linear.json."""
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "minibert" / "linear.json"


def _read() -> dict[str, Any]:
    try:
        stored = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _store() -> dict[str, dict[str, float]]:
    name = machine()
    if name not in _measured:
        rows = _read().get(name)
        rows = rows.items() if isinstance(rows, dict) else ()
        _measured[name] = {key: times for key, times in rows if _is_measurement(times)}
    return _measured[name]


def _is_measurement(times: Any) -> bool:
    return (
        isinstance(times, dict)
        and "torch" in times
        and all(name in NAMES and isinstance(time, int | float) for name, time in times.items())
    )


def _remember(key: str, times: dict[str, float], *, keep: bool) -> None:
    _store()[key] = times
    if not keep:
        return
    # A machine where nothing can be written measures again in the next process: no harm done.
    with suppress(OSError, RuntimeError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as beside:
            written = Path(beside) / path.name
            written.write_text(json.dumps(_read() | {machine(): _store()}, indent=1))
            os.replace(written, path)
