"""What a trace can be asked for, checked before anything is computed."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from minibert.errors import TraceError

__all__ = ["check_grad", "check_keep"]


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


def check_grad(grad: bool, until: int | None, weights: Iterable[Tensor]) -> None:
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
    if grad and any(weight.is_inference() for weight in weights):
        raise TraceError(
            "grad=True, and weights of the model were made inside torch.inference_mode() (by "
            "model.to(...), or in a transformers model), so nothing can be differentiated through "
            "them. Load the model again outside of it."
        )
