"""A module with hook points below it: hooks by name, for one run or until they are removed.

For modules of one's own: make `HookPoint`s in `__init__`, call `self.setup()` at its end, and send
tensors through the points in `forward`. Methods and arguments are those of TransformerLens 3.9.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import EditError, TraceError
from minibert.trace.lens_slice import Slice
from minibert.transformer_lens.caching import chosen_names, saving
from minibert.transformer_lens.hook_point import HookPoint

__all__ = ["HookedRootModule"]

Name = str | Callable[[str], bool]
Hooks = Sequence[tuple[Name, Callable[..., Any]]]
Device = torch.device | str | None


class HookedRootModule(nn.Module):
    """A module that knows the hook points below it by name.

    mod_dict    every module below, by name
    hook_dict   every hook point below, by name
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_caching = False
        self.context_level = 0
        self.mod_dict: dict[str, nn.Module] = {}
        self.hook_dict: dict[str, HookPoint] = {}

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
        hook: Callable[..., Any],
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Add a hook to the point of that name, or to all whose name the function takes.

        Raises EditError for a name that is no hook point.
        """
        for point in self._points(name):
            point.add_hook(hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, name: Name, hook: Callable[..., Any], dir: str = "fwd") -> None:
        """Add a hook that `reset_hooks` leaves."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def remove_all_hook_fns(
        self,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points."""
        for point in self.hook_points():
            point.remove_hooks(direction, including_permanent, level)

    def clear_contexts(self) -> None:
        """Empty the `ctx` of all points."""
        for point in self.hook_points():
            point.clear_context()

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points, and empty their `ctx`."""
        if clear_contexts:
            self.clear_contexts()
        self.remove_all_hook_fns(direction, including_permanent, level)
        self.is_caching = False

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator["HookedRootModule"]:
        """With these hooks, each a pair (name or function of a name, hook); then without them."""
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
        *model_args: Any,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **model_kwargs: Any,
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
        *model_args: Any,
        names_filter: Any = None,
        device: Device = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Any, Any]:
        """What the module returns, and what passed through its hook points, by name.

        names_filter    which points: a name, a list, a function of a name; None: all
        device          where the tensors are kept; None: where they are
        incl_bwd        call backward on what is returned, one number; gradients are name_grad
        pos_slice       the positions that are kept, see `Slice`
        """
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, pos_slice=pos_slice
        )
        with self.hooks(forward, backward, reset_hooks_end, clear_contexts):
            out = self(*model_args, **model_kwargs)
            if incl_bwd:
                _check_number(out)
                out.backward()
        return out, cache

    def get_caching_hooks(
        self,
        names_filter: Any = None,
        incl_bwd: bool = False,
        device: Device = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: Any = None,
    ) -> tuple[dict[str, Tensor], list[Any], list[Any]]:
        """A dictionary, and the forward and backward hooks that would fill it."""
        cache = {} if cache is None else cache
        options: dict[str, Any] = {
            "device": device,
            "remove_batch_dim": remove_batch_dim,
            "pos_slice": Slice.unwrap(pos_slice),
        }
        names = chosen_names(names_filter, self._cached_names(names_filter))
        forward = [(name, saving(cache, **options)) for name in names]
        backward = [(name, saving(cache, **options, gradient=True)) for name in names]
        return cache, forward, backward if incl_bwd else []

    def add_caching_hooks(
        self,
        names_filter: Any = None,
        incl_bwd: bool = False,
        device: Device = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """A dictionary that every pass fills from now on, until `reset_hooks`."""
        self.is_caching = True
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, cache
        )
        for direction, pairs in (("fwd", forward), ("bwd", backward)):
            for name, hook in pairs:
                self.add_hook(name, hook, direction)
        return cache

    def _cached_names(self, names_filter: Any) -> list[str]:
        """The names that a function of a name chooses from; all that there are for a list."""
        return list(self.hook_dict)

    def _points(self, name: Name) -> list[HookPoint]:
        if not isinstance(name, str):
            return [self.hook_dict[each] for each in self._cached_names(name) if name(each)]
        if name not in self.hook_dict:
            near = [each for each in self.hook_dict if not each.startswith("blocks.")]
            near += [each for each in self.hook_dict if each.startswith("blocks.0.")]
            raise EditError(f"{name!r:.80} is no hook point; there are {', '.join(near)}.")
        return [self.hook_dict[name]]


def _check_number(out: Any) -> None:
    if not isinstance(out, Tensor) or out.numel() != 1 or not out.requires_grad:
        raise TraceError(
            "incl_bwd=True differentiates what the model returns, which is not one number with a "
            'gradient here; pass return_type="loss", with gradients switched on.'
        )
