"""The implementations of attention that are known, and which one a call gets."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from minibert.errors import AttentionError
from minibert.kernels.built_in import BUILT_IN
from minibert.kernels.implementation import (
    FLOATS,
    Implementation,
    Request,
    accepted_options,
    listed,
)
from minibert.kernels.requests import MATRICES, WANTS

__all__ = [
    "Implementation",
    "Request",
    "accepted_options",
    "check_name",
    "choose",
    "chosen_for",
    "implementations",
    "register",
]

_IMPLEMENTATIONS: dict[str, Implementation] = {one.name: one for one in BUILT_IN}
#: What `chosen_for` found, by what it was asked.
_CHOICES: dict[tuple[object, ...], Implementation] = {}
#: What packed sentences do not have: each would have a matrix or a map of its own size.
_NOT_PACKED = frozenset({*MATRICES, "map"})


def register(
    name: str,
    fn: Callable[..., Any],
    *,
    wants: Collection[str] = (),
    devices: Iterable[str] = (),
    dtypes: Iterable[torch.dtype] = FLOATS,
    differentiable: Iterable[str] = (),
    rank: int | None = None,
    unavailable: str | None = None,
) -> Implementation:
    """The record of a new implementation, from now on known to `attend` as `impl=name`.

    `fn(query, key, value, *, scale, ...)` names, as keywords, those of lengths, mask, causal,
    scale, bias, want and packed that it handles; it is never called with another. lengths and
    causal come folded into mask for an `fn` that takes only mask, and packed sentences padded, with
    their lengths, for one without `packed`. It gives (z, lse) or a mapping with at
    least "z" and "lse". `impl="auto"` considers it only when it has a rank.
    Raises AttentionError when the name is taken or no text, when `fn` is no function whose
    keywords can be read, or when a want or an output named in differentiable is unknown.
    """
    _check_function(name, fn)
    if name in _IMPLEMENTATIONS or name == "auto":
        raise AttentionError(f"register({name!r}): the name is taken; choose another.")
    wants, differentiable = frozenset(wants), frozenset(differentiable)
    for given, known in ((wants, WANTS), (differentiable, ("z", "lse", *WANTS))):
        if unknown := given - set(known):
            raise AttentionError(
                f"register({name!r}): {listed(unknown)} is not known; known are {', '.join(known)}."
            )
    if wants and "want" not in accepted_options(fn):
        raise AttentionError(
            f"register({name!r}): wants {listed(wants)} is promised, but the function takes no "
            "keyword `want` to be asked by; add it."
        )
    record = Implementation(
        name=name,
        fn=fn,
        wants=wants,
        devices=tuple(devices),
        dtypes=tuple(dtypes),
        options=accepted_options(fn),
        differentiable=differentiable,
        rank=rank,
        unavailable=unavailable,
    )
    _IMPLEMENTATIONS[name] = record
    _CHOICES.clear()
    return record


def _check_function(name: Any, fn: Any) -> None:
    if not isinstance(name, str) or not name:
        raise AttentionError(f"register({name!r}): expected a name, a text that is not empty.")
    if not callable(fn):
        raise AttentionError(
            f"register({name!r}): {fn!r} cannot be called; expected a function "
            "fn(query, key, value, *, scale, ...)."
        )


def implementations() -> dict[str, Implementation]:
    """Every implementation by name, those that cannot run here included, with the reason why."""
    return dict(_IMPLEMENTATIONS)


def check_name(impl: object) -> None:
    """Raises AttentionError unless `impl` is "auto" or the name of a known implementation."""
    if not isinstance(impl, str) or (impl != "auto" and impl not in _IMPLEMENTATIONS):
        known = f"known are auto, {', '.join(_IMPLEMENTATIONS)}"
        if not isinstance(impl, str):
            raise AttentionError(
                f"impl is {impl!r:.80}; expected the name of an implementation, {known}. Leave it "
                'out, or write impl="auto", for the fastest.'
            )
        raise AttentionError(f'impl="{impl:.80}" is not known; {known}.')


def choose(impl: str, request: Request) -> Implementation:
    """The implementation named `impl`; for "auto" the fastest that gives what is asked.

    Raises AttentionError for an unknown name, and when what is asked cannot be given; the message
    names an implementation that can.
    """
    check_name(impl)
    if impl != "auto":
        refusal = _IMPLEMENTATIONS[impl].refusal(request)
        if refusal is None:
            return _IMPLEMENTATIONS[impl]
    able = [one for one in _IMPLEMENTATIONS.values() if one.refusal(request) is None]
    ranked = [one for one in able if one.rank is not None]
    ranked.sort(key=lambda one: one.cost(request))
    if impl != "auto":
        others = [one.name for one in (*ranked, *able)]
        advice = f'impl="{others[0]}" can' if others else "no other can either"
        raise AttentionError(f'impl="{impl}" cannot do this: {refusal}; {advice}.')
    if ranked:
        return ranked[0]
    reasons = "; ".join(f"{o.name}: {o.refusal(request)}" for o in _IMPLEMENTATIONS.values())
    raise AttentionError(
        f"No implementation gives what is asked. {reasons}. "
        "See docs/kernels.md#what-the-implementations-take"
    )


def chosen_for(impl: str, *request: Any) -> Implementation:
    """`choose` by the fields of a `Request`, remembered until an implementation is registered."""
    if torch.compiler.is_compiling():
        return _choose(impl, Request(*request))
    asked = (impl, *request)
    choice = _CHOICES.get(asked)
    if choice is None:
        choice = _CHOICES[asked] = _choose(impl, Request(*request))
    return choice


def _choose(impl: str, request: Request) -> Implementation:
    if "packed" in request.options:
        _check_packed(request.wants, request.options)
    return choose(impl, request)


def _check_packed(wants: frozenset[str], options: frozenset[str]) -> None:
    if refused := wants & _NOT_PACKED:
        raise AttentionError(
            f"packed sentences: {listed(refused)} wanted, but each sentence would have its own, "
            "of another size. Ask for it sentence by sentence."
        )
    if refused := options & {"lengths", "mask", "bias"}:
        raise AttentionError(
            f"packed sentences: given with {listed(refused)}; expected neither. Each sentence "
            "sees itself alone; pad them into a batch for more than that."
        )
