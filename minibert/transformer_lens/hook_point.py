"""Hook points: places in a forward pass where functions read or change what passes through.

The hooks, their arguments and their order are those of TransformerLens 3.9. A hook gets the tensor
and, by keyword, the point: `hook(tensor, hook=point)`. What it returns takes the tensor's place;
None leaves the tensor, with what the hook wrote into it. Unlike there, a point on which a hook may
write hands out a copy, so that nothing else that holds the tensor changes with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from minibert.errors import EditError

__all__ = ["Hook", "HookPoint", "LensHandle"]

Hook = Callable[..., Any]


@dataclass
class LensHandle:
    """A hook on a point, and until when it stays."""

    user_hook: Hook
    is_permanent: bool = False
    context_level: int | None = None


class HookPoint(nn.Module):
    """The identity, with hooks on the tensor (forward) and on its gradient (backward)."""

    def __init__(self) -> None:
        super().__init__()
        self.fwd_hooks: list[LensHandle] = []
        self.bwd_hooks: list[LensHandle] = []
        self.ctx: dict[Any, Any] = {}
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
        hooks = self._hooks(dir)
        hooks.insert(0 if prepend else len(hooks), LensHandle(hook, is_permanent, level))

    def add_perma_hook(self, hook: Hook, dir: str = "fwd") -> None:
        """Call `hook` until `remove_hooks(including_permanent=True)`."""
        self.add_hook(hook, dir, is_permanent=True)

    def remove_hooks(
        self,
        dir: str = "fwd",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of a direction ("fwd", "bwd" or "both"), or those of a level of it."""
        for each in ("fwd", "bwd") if dir == "both" else (dir,):
            hooks = self._hooks(each)
            hooks[:] = [
                handle
                for handle in hooks
                if (handle.is_permanent and not including_permanent)
                or (level is not None and handle.context_level != level)
            ]

    def has_hooks(self, dir: str = "both") -> bool:
        """True where a hook of that direction is here."""
        return any(map(self._hooks, ("fwd", "bwd") if dir == "both" else (dir,)))

    @property
    def writes(self) -> bool:
        """True where a hook may change the tensor or its gradient."""
        fwd = (getattr(each.user_hook, "reads_only", False) for each in self.fwd_hooks)
        return bool(self.bwd_hooks) or not all(fwd)

    def clear_context(self) -> None:
        """Empty `ctx`, where hooks keep what they like."""
        self.ctx = {}

    def layer(self) -> int:
        """The layer that the name "blocks.3.attn.hook_q" says. Raises EditError without one."""
        parts = (self.name or "").split(".")
        if len(parts) < 2 or not parts[1].isdigit():
            raise EditError(f"{self.name} belongs to no layer.")
        return int(parts[1])

    def forward(self, x: Tensor) -> Tensor:
        """x, after the hooks.

        Raises EditError for a hook that returns something else than a tensor of the same shape.
        """
        if not self.has_hooks():
            return x
        if self.writes:
            x = x.clone()
        for handle in tuple(self.fwd_hooks):
            x = self._changed(handle.user_hook(x, hook=self), x)
        if self.bwd_hooks and x.requires_grad:
            # A tensor of its own: a gradient hook must see this point's gradient alone.
            x = x.view_as(x)
            x.register_hook(self._backward)
        return x

    def _backward(self, gradient: Tensor) -> Tensor:
        for handle in tuple(self.bwd_hooks):
            found = handle.user_hook(gradient, hook=self)
            first = found[0] if isinstance(found, tuple) and len(found) == 1 else found
            gradient = self._changed(first, gradient)
        return gradient

    def _changed(self, found: Any, x: Tensor) -> Tensor:
        if found is None:
            return x
        if not isinstance(found, Tensor) or found.shape != x.shape:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EditError(
                f"A hook on {self.name} returned {shown}; expected a tensor of the shape "
                f"{tuple(x.shape)}, or None."
            )
        return found

    def _hooks(self, direction: str) -> list[LensHandle]:
        if direction not in ("fwd", "bwd"):
            raise EditError(f'dir={direction!r:.80}: expected "fwd" or "bwd".')
        return self.fwd_hooks if direction == "fwd" else self.bwd_hooks
