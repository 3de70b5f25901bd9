"""How a linear layer multiplies: the back ends, and the rule that chooses one.

torch's `F.linear` runs float32 through MKL, which takes a slow path on processors that Intel did
not make; oneDNN does not, and is fastest with a copy of the weight in its own block layout. Whether
there is such a copy follows from the processor, the data type and the shape, and from nothing else:
the same input gives the same bits in every process on a machine.

Name a back end yourself with the environment variable MINIBERT_LINEAR (torch, onednn-packed), set
before a model is loaded; see the choice with `print(model.trace(text))`.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import MinibertError

NAMES = ("torch", "onednn-packed")
# The rule of `backend_for` comes from measurements: docs/decisions/002. A smaller weight gains less
# than oneDNN's 10 microseconds a call.
PACK_FROM = 1 << 17

_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "relu": torch.relu_,
    "silu": partial(F.silu, inplace=True),
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


@dataclass(frozen=True)
class Processor:
    """What the rule reads of a processor."""

    vendor: str
    """As in /proc/cpuinfo: AuthenticAMD, GenuineIntel; "" where it is not known."""
    name: str
    features: frozenset[str] = frozenset()
    onednn_dtypes: frozenset[torch.dtype] = frozenset()
    """The types that this torch multiplies through oneDNN here."""


class Choice(NamedTuple):
    """A back end and, in words, the rule that chose it."""

    name: str
    rule: str


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

    `weight` is made by `packed_copy`.
    """
    # The overloads by name: choosing among them, torch writes the tensors into an error it drops.
    linear = torch.ops.mkldnn._linear_pointwise
    if residual is not None and activation is None:
        return linear.binary(x, residual, weight, bias, "add")
    fused = _FUSED.get(activation)
    name, algorithm = fused or _FUSED[None]
    out = linear.default(x, weight, bias, name, [], algorithm)
    if fused is None and activation is not None:
        change = _IN_PLACE.get(activation)
        out = change(out) if change else activate(out, activation)
    return out if residual is None else out.add_(residual)


def packed_copy(weight: Tensor) -> Tensor:
    """A copy of `weight` (out, in) in the block layout oneDNN multiplies fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


@lru_cache
def processor() -> Processor:
    """The processor of this machine."""
    about: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().split("\n\n", 1)[0]
        pairs = [line.split(":", 1) for line in first.splitlines() if ":" in line]
        about = {name.strip(): text.strip() for name, text in pairs}
    return Processor(
        vendor=about.get("vendor_id", ""),
        name=about.get("model name") or platform.processor() or platform.machine(),
        features=frozenset(about.get("flags", "").split()),
        onednn_dtypes=frozenset(_onednn_dtypes()),
    )


def _onednn_dtypes() -> set[torch.dtype]:
    operators = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(operators, "_linear_pointwise"):
        return set()
    half = {
        torch.bfloat16: operators._is_mkldnn_bf16_supported(),
        torch.float16: operators._is_mkldnn_fp16_supported(),
    }
    return {torch.float32} | {dtype for dtype, there in half.items() if there}


def backend_for(
    processor: Processor, dtype: torch.dtype, d_in: int, d_out: int, *, name: str | None = None
) -> Choice:
    """How to multiply by a weight (d_out, d_in) on this processor, and the rule that says so.

    `name` is the back end that the user named, if any.
    """
    kind = str(dtype).removeprefix("torch.")
    if dtype not in processor.onednn_dtypes:
        return Choice("torch", f"oneDNN does not multiply {kind} here")
    large = d_in * d_out >= PACK_FROM
    if name is not None:
        return Choice(name if large else "torch", "named by MINIBERT_LINEAR")
    if processor.vendor == "GenuineIntel":
        return Choice("torch", "Intel: oneDNN gains little over MKL, and errs more")
    if processor.vendor != "AuthenticAMD" or "avx2" not in processor.features:
        return Choice("torch", "oneDNN is used on AMD processors with AVX2 alone")
    # Against float64, through a GPT-2: 1.8 to 2.05 times MKL's error with AVX2, 1.3 with AVX-512.
    if "avx512f" not in processor.features:
        return Choice("torch", "AMD without AVX-512: oneDNN's products err twice as much")
    if dtype == torch.float16:
        return Choice("torch", "AMD: float16 is not measured")
    if not large:
        return Choice("torch", f"AMD, {kind}: weights of fewer than {PACK_FROM:,} numbers")
    return Choice("onednn-packed", f"AMD, {kind}: weights of {PACK_FROM:,} numbers or more")


def chosen(dtype: torch.dtype, d_in: int, d_out: int) -> Choice:
    """`backend_for` on this machine, with the back end that is named, if any."""
    return backend_for(processor(), dtype, d_in, d_out, name=named())


def named() -> str | None:
    """The back end that MINIBERT_LINEAR names; None where the rule decides.

    Raises MinibertError when it names none.
    """
    name = os.environ.get("MINIBERT_LINEAR") or None
    if name is not None and name not in NAMES:
        raise MinibertError(
            f"MINIBERT_LINEAR={name!r} is not a back end; known are {', '.join(NAMES)}."
        )
    return name
