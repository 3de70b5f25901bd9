"""How a linear layer multiplies: the back ends, and which of them is fastest on this machine.

torch's `F.linear` runs through MKL in float32, which is far behind oneDNN on some processors
and level with it on others. So the choice is measured, for a few milliseconds, once per machine,
number of threads, data type and shape class, and kept in a small file. A back end other than
plain torch is chosen only where it is at least 7 % faster.

Override it with the environment variable MINIBERT_LINEAR (torch, onednn, onednn-packed) or with
`use(...)`; see it with `minibert models --backends`.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import MinibertError

__all__ = ["NAMES", "choose", "chosen", "onednn_linear", "torch_linear", "use"]

NAMES = ("torch", "onednn", "onednn-packed")
# Below this many weights a packed copy saves microseconds and costs as many in bookkeeping.
PACK_FROM = 512 * 512
_MARGIN = 0.93
_ROW_CLASSES = (8, 64, 256)
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
_measured: dict[str, dict[str, float]] | None = None


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
    linear = torch.ops.mkldnn._linear_pointwise
    if residual is not None and activation is None:
        return linear(x, residual, weight, bias, "add")
    fused = _FUSED.get(activation)
    name, algorithm = fused or _FUSED[None]
    out = linear(x, weight, bias, name, [], algorithm)
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


def choose(rows: int, d_in: int, d_out: int, dtype: torch.dtype) -> str:
    """The name of the fastest back end for `rows` inputs of width `d_in` on this machine."""
    forced = _forced or os.environ.get("MINIBERT_LINEAR")
    if forced:
        if forced not in NAMES:
            raise MinibertError(
                f"MINIBERT_LINEAR={forced!r} is no back end; known are {', '.join(NAMES)}."
            )
        return forced if onednn_available(dtype) else "torch"
    if not onednn_available(dtype):
        return "torch"
    shape = _shape_class(rows, d_in, d_out)
    key = f"{str(dtype).removeprefix('torch.')} rows={shape[0]} width={shape[1]}"
    times = _store().get(key)
    if times is None:
        times = _measure(*shape, dtype)
        _remember(key, times)
    return _winner(times)


def chosen() -> dict[str, tuple[str, dict[str, float]]]:
    """What was measured on this machine: shape class -> (back end, microseconds of each)."""
    return {key: (_winner(times), times) for key, times in sorted(_store().items())}


def machine() -> str:
    """What a measurement is valid for: processor, torch and number of threads."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    return f"{processor}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _winner(times: dict[str, float]) -> str:
    best = min(times, key=lambda name: times[name])
    return best if times[best] < _MARGIN * times["torch"] else "torch"


def _shape_class(rows: int, d_in: int, d_out: int) -> tuple[int, int]:
    row_class = next((size for size in _ROW_CLASSES if rows <= size), _ROW_CLASSES[-1])
    width = 1 << round(((d_in * d_out).bit_length() - 1) / 2)
    return row_class, min(max(width, 32), 2048)


@torch.no_grad()
def _measure(rows: int, width: int, dtype: torch.dtype) -> dict[str, float]:
    """Microseconds of each back end, the best of some interleaved runs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(width, width, generator=generator).to(dtype)
    bias = torch.zeros(width, dtype=dtype)
    runs = {
        "torch": lambda: F.linear(x, weight, bias),
        "onednn": lambda: onednn_linear(x, weight, bias),
    }
    if width * width >= PACK_FROM:
        packed = pack(weight)
        runs["onednn-packed"] = lambda: onednn_linear(x, packed, bias)
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    begin = time.perf_counter()
    # The best of many short turns: on a busy machine most of them measure somebody else.
    for turn in range(40):
        if turn >= 8 and time.perf_counter() - begin > 0.06:
            break
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: round(seconds * 1e6, 1) for name, seconds in best.items()}


def cache_file() -> Path:
    """Where the measurements are kept: $XDG_CACHE_HOME/minibert/linear.json."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "minibert" / "linear.json"


def _read() -> dict[str, dict[str, dict[str, float]]]:
    try:
        stored = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _store() -> dict[str, dict[str, float]]:
    global _measured
    if _measured is None:
        rows = _read().get(machine(), {})
        _measured = {key: times for key, times in rows.items() if "torch" in times}
    return _measured


def _remember(key: str, times: dict[str, float]) -> None:
    _store()[key] = times
    path = cache_file()
    stored = _read() | {machine(): _store()}
    # A machine where nothing can be written measures again in the next process: no harm done.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(stored, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        return
