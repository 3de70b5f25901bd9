"""Hooks that save what passes through the points of a model: what `run_with_cache` adds."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.trace.lens_slice import Slice

__all__ = ["chosen_names", "saving"]

# Their positions stand in front of a head axis.
_BY_HEAD = (
    *("hook_q", "hook_k", "hook_v", "hook_rot_q", "hook_rot_k", "hook_z", "hook_result"),
    *("hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"),
)


def chosen_names(names_filter: Any, names: Iterable[str]) -> list[str]:
    """The names that a filter takes: None (all), a name, a list of names, or a function of a name.

    Raises TraceError for another filter, and for a name that there is not.
    """
    every = list(names)
    if names_filter is None:
        return every
    if callable(names_filter):
        return [name for name in every if names_filter(name)]
    asked = [names_filter] if isinstance(names_filter, str) else names_filter
    if not isinstance(asked, list | tuple | set) or not all(isinstance(n, str) for n in asked):
        raise TraceError(
            f"names_filter is {names_filter!r:.80}; expected a name, a list of names, a function "
            "of a name, or None."
        )
    for name in asked:
        if name not in every:
            raise TraceError(
                f"names_filter has {name!r:.80}, which is no hook point here; `model.hook_dict` "
                "has all of them."
            )
    return [name for name in every if name in asked]


def saving(
    cache: dict[str, Tensor],
    *,
    device: torch.device | str | None,
    remove_batch_dim: bool,
    pos_slice: Slice,
    gradient: bool = False,
) -> Callable[..., None]:
    """A hook that puts the tensor under its point's name into `cache`, a gradient as name_grad."""
    save = partial(
        _save, cache, device=device, unbatched=remove_batch_dim, at=pos_slice, gradient=gradient
    )
    save.reads_only = True  # type: ignore[attr-defined]
    return save


def _save(
    cache: dict[str, Tensor],
    tensor: Tensor,
    *,
    hook: Any,
    device: torch.device | str | None,
    unbatched: bool,
    at: Slice,
    gradient: bool,
) -> None:
    saved = tensor.detach().to(device)
    if unbatched:
        if saved.dim() and saved.shape[0] != 1:
            raise TraceError(
                f"remove_batch_dim=True, and {hook.name} holds {saved.shape[0]} sentences; "
                "expected one."
            )
        saved = saved[0]
    # A norm of inputs of heads has their axis too.
    by_head = hook.name.endswith(_BY_HEAD) or (".ln1." in hook.name and tensor.dim() == 4)
    places = -3 if by_head else -2
    if saved.dim() >= -places:
        saved = at.apply(saved, places)
    cache[f"{hook.name}_grad" if gradient else hook.name] = saved
