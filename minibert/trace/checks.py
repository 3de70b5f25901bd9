"""What a trace can be asked for, checked before anything is computed."""

from collections.abc import Collection

import torch

from minibert.errors import TraceError
from minibert.kernels.requests import Want

__all__ = ["check_grad", "check_keep", "check_statistics"]


def check_keep(names: Collection[str], *, packed: bool = False) -> None:
    """Raise TraceError for a name that cannot be kept, and for any with packed sentences."""
    if packed and names:
        raise TraceError(
            "keep with packed=True: packed sentences have no matrix of all their tokens; read "
            "trace.text(i)[layer].probs, which is computed then."
        )
    # Arrays and tensors count as collections, of numbers.
    if not isinstance(names, list | tuple | set | frozenset | dict):
        raise TraceError(
            f'keep={names!r:.80}: expected several names, as keep=("scores", "probs").'
        )
    for name in names:
        if not isinstance(name, str) or name not in ("scores", "probs"):
            raise TraceError(
                f"keep={name!r}: only scores and probs can be kept on top of what a trace keeps "
                "by itself; everything else is computed when it is read."
            )


def check_grad(grad: bool, until: int | None) -> None:
    """Raise TraceError where a trace with gradients cannot be made."""
    if grad and until is not None:
        raise TraceError(
            f"grad=True with until={until}: gradients need the whole pass; leave until out."
        )
    if grad and torch.is_inference_mode_enabled():
        raise TraceError(
            "grad=True inside torch.inference_mode(): nothing can be differentiated there. Use "
            "torch.no_grad() around the rest, or trace outside."
        )


def check_statistics(want: Want) -> None:
    """Raise TraceError for what is no statistic but a matrix."""
    for name in ("scores", "probs"):
        if name in want:
            raise TraceError(
                f'statistics={name!r}: that is a matrix; ask for it as keep=("{name}",).'
            )
