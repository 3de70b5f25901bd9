"""Standing between a transformers model and the function that it attends with.

A model asks transformers' attention interface for the function that its config names, and calls it
with query, key and value. While somebody listens, the interface hands out a function that tells the
listeners and then calls the model's own. Names, entries, masks and configs stay as they are: a
model that looks at them takes the same branches. Only the thread that listens is heard, and when
the last listener has gone the interface is what it was.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, local
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from minibert.attached.call import Call
from minibert.errors import TraceError

_LOCK = RLock()
_HERE = local()
Function = Callable[..., Any]
_OURS = "minibert_listens_to"
_IMPLEMENTATIONS = ("eager", "sdpa", "minibert")
# Of the signature of every attention function: module, query, key, value, attention_mask.
_NAMED = 5


@runtime_checkable
class Listener(Protocol):
    """A listener that is told about the calls of some modules and may change what they compute."""

    keeps: bool
    """Whether it reads a call after the next one."""

    def hears(self, module: nn.Module) -> bool:
        """True for a module whose calls this listener wants."""

    def before(self, call: Call) -> None:
        """Change query, key and value of a call, or refuse it."""

    def instead(self, call: Call) -> Tensor | None:
        """z of a call whose scores or probs change; None where the model computes it itself."""

    def after(self, call: Call) -> None:
        """Look at a call that has z, and change that."""


def attention_interface(model: object) -> type | None:
    """The class of transformers' attention interface; None for what transformers did not build.

    transformers is not imported: it is found by the classes that the model, or one of its modules,
    is made of.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ == "PreTrainedModel":
                return getattr(sys.modules.get(kind.__module__), "AttentionInterface", None)
    return None


@contextmanager
def listening(interface: type, listener: Listener) -> Iterator[None]:
    """Tell `listener` about the calls of its modules in this thread while the block runs."""
    listeners: list[Listener] = _HERE.__dict__.setdefault("listeners", [])
    _STANDING.begin(interface)
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
        _STANDING.end(interface)


class _Standing:
    """The interfaces whose two ways to a function are ours, and for how many listeners."""

    def __init__(self) -> None:
        self.counts: dict[type, int] = {}
        self.before: dict[type, dict[str, object]] = {}
        self.heard: dict[tuple[int, str], Function] = {}
        """What was made of each function: every layer of a pass asks for it again."""

    def begin(self, interface: type) -> None:
        with _LOCK:
            self.counts[interface] = self.counts.get(interface, 0) + 1
            if self.counts[interface] == 1:
                own = vars(interface)
                ways = {"__getitem__": _getitem, "get_interface": _get_interface}
                ways = {name: way for name, way in ways.items() if hasattr(interface, name)}
                self.before[interface] = {name: own.get(name) for name in ways}
                for name, way in ways.items():
                    setattr(interface, name, way(getattr(interface, name)))

    def end(self, interface: type) -> None:
        with _LOCK:
            self.counts[interface] -= 1
            if not self.counts[interface]:
                del self.counts[interface]
                self.heard = {}
                for name, way in self.before.pop(interface).items():
                    if way is None:
                        delattr(interface, name)
                    else:
                        setattr(interface, name, way)


_STANDING = _Standing()


def _getitem(original: Function) -> Function:
    @functools.wraps(original)
    def found(self: object, name: str) -> Function:
        function = original(self, name)
        return function if getattr(_HERE, "inside", False) else _heard(function, name)

    return found


def _get_interface(original: Function) -> Function:
    @functools.wraps(original)
    def found(self: object, name: str, default: Function) -> Function:
        # It looks for the name by the way above, several times.
        _HERE.inside = True
        try:
            function = original(self, name, default)
        finally:
            _HERE.inside = False
        # A model's own function, which it falls back to, is eager whatever the config names.
        return _heard(function, "eager" if function is default else name)

    return found


def _heard(function: Function, implementation: str) -> Function:
    """The function, told to the listeners of this thread; the function itself without any."""
    if not getattr(_HERE, "listeners", ()) or not callable(function) or hasattr(function, _OURS):
        return function
    # By identity, which lasts: what is made of a function holds it.
    where = (id(function), implementation)
    known = _STANDING.heard.get(where)
    if known is None:
        known = _STANDING.heard[where] = _telling(function, implementation)
    return known


def _telling(function: Function, implementation: str) -> Function:
    """A function that tells the listeners of its thread and calls this one."""

    @functools.wraps(function)
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *more: object,
        **options: object,
    ) -> Any:
        listeners = [one for one in getattr(_HERE, "listeners", ()) if one.hears(module)]
        if not listeners:
            return function(module, query, key, value, attention_mask, *more, **options)
        if more:
            options |= dict(zip(_names_after(function), more, strict=False))
        _check_implementation(module, implementation)
        call = Call(module, implementation, query, key, value, attention_mask, options)
        return _tell(listeners, call, function)

    setattr(attention, _OURS, function)
    return attention


def _tell(listeners: list[Listener], call: Call, function: Function) -> Any:
    for one in listeners:
        one.before(call)
    if any(one.keeps for one in listeners):
        call.settle()
    given = [z for one in listeners if (z := one.instead(call)) is not None]
    weights: tuple[object, ...] = (None,)
    if given:
        call.out = given[-1].transpose(1, 2).contiguous()
        if call.implementation == "eager":
            weights = (call.probs(),)
    else:
        vectors = (call.query, call.key, call.value)
        call.out, *rest = function(call.module, *vectors, call.mask, **call.options)
        weights = tuple(rest)
    for one in reversed(listeners):
        one.after(call)
    call.seal()
    return (call.out, *weights)


def _names_after(function: Function) -> list[str]:
    return list(inspect.signature(function).parameters)[_NAMED:]


def _check_implementation(module: nn.Module, name: str) -> None:
    if name not in _IMPLEMENTATIONS:
        raise TraceError(
            f"{type(module).__name__} attends with {name!r}; attach reads "
            f"{', '.join(map(repr, _IMPLEMENTATIONS))}. "
            'Call hf_model.set_attn_implementation("sdpa"), or "eager", and trace again.'
        )
