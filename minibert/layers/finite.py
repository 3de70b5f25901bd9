"""Numbers that became NaN or infinite, or so large that a norm cannot square them: refused."""

import math

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.allowed_keys import AllowedKeys


class NumbersError(MinibertError):
    """Numbers became NaN, infinite or too large."""


def check_stream(
    stream: Tensor, allowed: AllowedKeys | None = None, what: str = "stream after the layers"
) -> None:
    """Raise MinibertError for NaN, infinity and numbers whose squares a norm cannot sum.

    It costs one read of the stream; padding is left out.
    """
    if not _may_look(stream):
        return
    wide = torch.promote_types(stream.dtype, torch.float32)
    most = math.sqrt(torch.finfo(wide).max / stream.shape[-1])
    if not _largest(stream) <= most and not _largest(_real(stream, allowed)) <= most:
        raise _too_large(what, stream)


def check_computed(value: Tensor, what: str) -> None:
    """Raise MinibertError for NaN and infinity in what was computed when it was read."""
    if _may_look(value) and not _largest(value) < math.inf:
        raise _too_large(what, value)


def check_logits(logits: Tensor, allowed: AllowedKeys | None = None) -> None:
    """Raise MinibertError for NaN and infinity; −inf, a probability of 0, may stand in logits."""
    if not _may_look(logits):
        return
    if not float(logits.detach().amax()) < math.inf:
        real = _real(logits.detach(), allowed)
        if real.numel() and not float(real.amax()) < math.inf:
            raise _too_large("logits", logits)


def _may_look(value: Tensor) -> bool:
    """False where a number cannot be asked for: in a compiled, traced or captured pass."""
    return not (
        torch.compiler.is_compiling()
        or value.numel() == 0
        or value.is_meta
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.maybe_current_level() is not None
        or (value.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _largest(value: Tensor) -> float:
    """The largest absolute value; NaN where there is one."""
    if value.numel() == 0:
        return 0.0
    low, high = value.detach().aminmax()
    return float(torch.maximum(-low, high))


def _real(value: Tensor, allowed: AllowedKeys | None) -> Tensor:
    """The rows of real tokens."""
    tokens = None if allowed is None else allowed.tokens
    return value if tokens is None or value.shape[:2] != tokens.shape else value[tokens]


def _too_large(what: str, value: Tensor) -> NumbersError:
    return NumbersError(
        f"There is NaN, infinity or a number too large to be squared in the {what}: weights or "
        f"an edit are broken, or too large for {value.dtype}. Try a wider type, such as "
        "minibert.load(..., dtype=torch.float64)."
    )
