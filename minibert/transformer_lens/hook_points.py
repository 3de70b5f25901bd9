"""Hooks: the points that can be hooked, and modules that know the points below them.

HookPoint          a place of the model with its hooks
HookedRootModule   `run_with_hooks`, `run_with_cache` and what adds and removes hooks
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import EditError, TraceError, did_you_mean
from minibert.trace.edit import checked_result, kind_of
from minibert.transformer_lens.utils import layer_number, taken

Hook = Callable[..., object]
Name = str | Callable[[str], bool]
Hooks = Sequence[tuple[Name, Hook]]
Device = torch.device | str | None


@dataclass
class LensHandle:
    """A hook on a point, whether `reset_hooks` leaves it, and the level of `hooks` it ends with."""

    user_hook: Hook
    is_permanent: bool = False
    context_level: int | None = None


class HookPoint(nn.Module):
    """The identity, with hooks on the tensor (forward) and on its gradient (backward).

    by_head   its positions stand in front of a head axis
    ignored   what stands at masked places, where there are such
    """

    ignored = float("-inf")

    def __init__(self, *, by_head: bool = False) -> None:
        super().__init__()
        self.by_head = by_head
        self.fwd_hooks: list[LensHandle] = []
        self.bwd_hooks: list[LensHandle] = []
        self.ctx: dict[object, object] = {}
        """Where hooks keep what they like."""
        self.name: str | None = None

    def add_hook(
        self,
        hook: Hook,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Call `hook` from now on; with `prepend` before those that are here already."""
        if not callable(hook):
            raise EditError(f"{self.name}: a hook is {hook!r:.80}; expected a function.")
        [hooks] = self._hooks(dir)
        handle = LensHandle(hook, is_permanent, level)
        hooks.insert(0 if prepend else len(hooks), handle)

    def add_perma_hook(self, hook: Hook, dir: str = "fwd") -> None:
        """Add a hook that `reset_hooks` leaves."""
        self.add_hook(hook, dir, is_permanent=True)

    def remove_hooks(
        self, dir: str = "fwd", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """Remove the hooks of a direction, "fwd", "bwd" or "both", and of a level, if given."""
        for hooks in self._hooks(dir):
            hooks[:] = [
                each
                for each in hooks
                if not including_permanent
                and (each.is_permanent or level not in (None, each.context_level))
            ]

    def has_hooks(self, dir: str = "both") -> bool:
        """True where a hook of that direction is here."""
        return any(self._hooks(dir))

    @property
    def writes(self) -> bool:
        """True where a hook may change the tensor or its gradient."""
        fwd = (getattr(each.user_hook, "reads_only", False) for each in self.fwd_hooks)
        return bool(self.bwd_hooks) or not all(fwd)

    def layer(self) -> int:
        """The layer that the name "blocks.3.attn.hook_q" says. Raises EditError without one."""
        parts = (self.name or "").split(".")
        if len(parts) < 2 or not parts[1].isdigit():
            raise EditError(f"{self.name} belongs to no layer.")
        return int(parts[1])

    def forward(self, x: Tensor) -> Tensor:
        """x, after the hooks.

        Raises EditError for a hook that returns another shape, dtype or device than it was given.
        """
        if not self.has_hooks():
            return x
        if self.writes:
            x = x.clone()
        for handle in tuple(self.fwd_hooks):
            x = self._changed(handle.user_hook, x)
        if self.bwd_hooks and x.requires_grad:
            # A tensor of its own: a gradient hook must see this point's gradient alone.
            x = x.view_as(x)
            x.register_hook(self._backward)
        return x

    def _backward(self, gradient: Tensor) -> Tensor:
        for handle in tuple(self.bwd_hooks):
            gradient = self._changed(handle.user_hook, gradient)
        return gradient

    def _changed(self, hook: Hook, x: Tensor) -> Tensor:
        """What a hook makes of x: what it returns, or x itself, which it may have written to."""
        given = kind_of(x)
        found = hook(x, hook=self)
        if isinstance(found, tuple) and len(found) == 1:
            found = found[0]
        return checked_result(x if found is None else found, given, f"A hook on {self.name}")

    def _hooks(self, direction: str) -> list[list[LensHandle]]:
        found = {"fwd": [self.fwd_hooks], "bwd": [self.bwd_hooks]}
        if direction not in (*found, "both"):
            raise EditError(f'dir={direction!r:.80}: expected "fwd" or "bwd".')
        return found.get(direction, [self.fwd_hooks, self.bwd_hooks])


def chosen_names(names_filter: object, names: Iterable[str]) -> list[str]:
    """The names that a filter takes: None (all), a name, a list of names, or a function of a name.

    Raises TraceError for another filter, and for an unknown name.
    """
    every = list(names)
    if names_filter is None or callable(names_filter):
        return [name for name in every if names_filter is None or names_filter(name)]
    asked = [names_filter] if isinstance(names_filter, str) else names_filter
    if not isinstance(asked, list | tuple | set) or not all(isinstance(n, str) for n in asked):
        raise TraceError(
            f"names_filter is {names_filter!r:.80}; expected a name, a list of names, a function "
            "of a name, or None."
        )
    for name in asked:
        if name not in every:
            raise TraceError(
                f"names_filter has {name!r:.80}, which is not a hook point here; `model.hook_dict` "
                "has all of them."
            )
    return [name for name in every if name in asked]


def saving(
    cache: dict[str, Tensor], device: Device, remove_batch_dim: bool, pos_slice: object, ending: str
) -> Hook:
    """A hook that puts the tensor under its point's name and `ending` into `cache`."""
    # The axis of positions stays.
    positions = pos_slice if layer_number(pos_slice) is None else [pos_slice]

    def save(tensor: Tensor, *, hook: HookPoint) -> None:
        saved = tensor.detach().to(device)
        if remove_batch_dim:
            if saved.dim() and saved.shape[0] != 1:
                raise TraceError(
                    f"remove_batch_dim=True, and {hook.name} holds {saved.shape[0]} sentences; "
                    "expected one."
                )
            saved = saved[0]
        axis = -1 if not saved.is_floating_point() else -3 if hook.by_head else -2
        if saved.dim() >= -axis:
            saved = taken(saved, positions, axis)
        cache[f"{hook.name}{ending}"] = saved

    save.reads_only = True  # type: ignore[attr-defined]
    return save


class HookedRootModule(nn.Module):
    """A module that knows the hook points below it by name.

    mod_dict    every module below, by name
    hook_dict   every hook point below, by name
    """

    def __init__(self) -> None:
        super().__init__()
        self.mod_dict: dict[str, nn.Module] = {}
        self.hook_dict: dict[str, HookPoint] = {}
        self.context_level = 0

    def setup(self) -> None:
        """Name every module below. Called when all of them are made."""
        self.mod_dict = {name: module for name, module in self.named_modules() if name}
        for name, module in self.mod_dict.items():
            module.name = name  # type: ignore[assignment]
        points = self.mod_dict.items()
        self.hook_dict = {name: point for name, point in points if isinstance(point, HookPoint)}

    def hook_points(self) -> list[HookPoint]:
        """Every hook point below."""
        return list(self.hook_dict.values())

    def add_hook(
        self,
        name: Name,
        hook: Hook,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Add a hook to the point of that name, or to all whose name the function takes.

        With a level it goes when the `hooks` ends that is so many deep (1: the outermost).
        Raises EditError for a name that is not a hook point.
        """
        for point in self._points(name):
            point.add_hook(hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, name: Name, hook: Hook, dir: str = "fwd") -> None:
        """Add a hook that `reset_hooks` leaves."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points, or those of a level, and empty the points' `ctx`."""
        for point in self.hook_points():
            if clear_contexts:
                point.ctx = {}
            point.remove_hooks(direction, including_permanent, level)

    def remove_all_hook_fns(
        self,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points, and leave their `ctx`."""
        self.reset_hooks(False, direction, including_permanent, level)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator["HookedRootModule"]:
        """With these hooks, each a pair (name or function of a name, hook); then without them.

        Hooks that were added with the level of this context go with them, as in TransformerLens.
        """
        self.context_level += 1
        try:
            for direction, pairs in (("fwd", fwd_hooks), ("bwd", bwd_hooks)):
                for name, hook in pairs:
                    self.add_hook(name, hook, direction, level=self.context_level)
            yield self
        finally:
            if reset_hooks_end:
                self.reset_hooks(clear_contexts, level=self.context_level)
            self.context_level -= 1

    def run_with_hooks(
        self,
        *model_args: object,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **model_kwargs: object,
    ) -> Any:
        """One forward pass with these hooks.

        Backward hooks are gone when it returns, unless reset_hooks_end=False; a warning says so.
        """
        if len(bwd_hooks) and reset_hooks_end:
            warnings.warn(
                "run_with_hooks removes its backward hooks before a backward pass can run; pass "
                "reset_hooks_end=False, or use `with model.hooks(bwd_hooks=...)`.",
                stacklevel=2,
            )
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self(*model_args, **model_kwargs)

    def run_with_cache(
        self,
        *model_args: object,
        names_filter: object = None,
        device: Device = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: object = None,
        **model_kwargs: Any,
    ) -> tuple[Any, Any]:
        """What the module returns, and what passed through its hook points, by name.

        names_filter    which points: a name, a list, a function of a name; None: all
        device          where the tensors are kept; None: where they are
        incl_bwd        call backward on what is returned, one number; gradients are name_grad
        pos_slice       the positions that are kept: an int, a list, (start, stop) or a slice
        """
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, pos_slice=pos_slice
        )
        with self.hooks(forward, backward, reset_hooks_end, clear_contexts):
            out = self(*model_args, **model_kwargs)
            if incl_bwd:
                _check_number(out)
                out.backward()
        # In the order of the data: hooks inside a norm are called when it is done.
        order = [f"{name}{end}" for end in ("", "_grad") for name in self.hook_dict]
        return out, {name: cache[name] for name in order if name in cache}

    def get_caching_hooks(
        self,
        names_filter: object = None,
        incl_bwd: bool = False,
        device: Device = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: object = None,
    ) -> tuple[dict[str, Tensor], Hooks, Hooks]:
        """A dictionary and the hooks, forward and backward, that fill it; as `run_with_cache`."""
        filled = {} if cache is None else cache
        names = chosen_names(names_filter, self._cached_names(names_filter))
        forward, backward = (
            [(n, saving(filled, device, remove_batch_dim, pos_slice, ending)) for n in names]
            for ending in ("", "_grad")
        )
        return filled, forward, backward if incl_bwd else []

    def _cached_names(self, names_filter: object) -> list[str]:
        """The names that a function of a name chooses from; all that there are for a list."""
        return list(self.hook_dict)

    def _points(self, name: Name) -> list[HookPoint]:
        if not isinstance(name, str):
            return [self.hook_dict[each] for each in self._cached_names(name) if name(each)]
        if name not in self.hook_dict:
            near = [each for each in self.hook_dict if not each.startswith("blocks.")]
            near += [each for each in self.hook_dict if each.startswith("blocks.0.")]
            raise EditError(
                f"{name!r:.80} is not a hook point{did_you_mean(name, self.hook_dict)}; there are "
                f"{', '.join(near)}."
            )
        return [self.hook_dict[name]]


def _check_number(out: object) -> None:
    if not isinstance(out, Tensor) or out.numel() != 1 or not out.requires_grad:
        raise TraceError(
            "incl_bwd=True differentiates what the model returns, which is not one number with a "
            'gradient here; pass return_type="loss", with gradients switched on.'
        )
