"""The implementations of attention there are, what each can give, and which one a call gets.

Place: between `api.attend` and the implementations.
"""

import inspect
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError, how_to_install
from minibert.kernels import chunked, eager, flex, reference, sdpa, torch_backends
from minibert.kernels.call import Call
from minibert.kernels.requests import MATRICES, WANTS

__all__ = ["FLOATS", "Implementation", "Request", "choose", "implementations", "register"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OPTIONS = ("lengths", "mask", "causal", "scale", "bias", "want")


@dataclass(frozen=True)
class Request:
    """What one call of `attend` needs from an implementation."""

    wants: frozenset[str]
    options: frozenset[str]
    device: str
    dtype: torch.dtype
    gradient: bool
    d_head: int = 0


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention, and what it can give.

    fn              fn(query, key, value, *, <options>) -> z, or (z, lse), or {"z": ..., "lse": ...}
    wants           the names of `want=` it can give
    devices         device types it runs on ("cpu", "cuda"); () means any
    dtypes          dtypes of query, key and value it takes
    options         which of lengths, mask, causal, scale, bias and want `fn` accepts
    differentiable  the outputs through which gradients flow back; without "z" it refuses to train
    rank            auto tries the smallest first; None: only when named
    unavailable     why it cannot run on this machine; None when it can
    largest_head    the largest d_head it takes; None: any
    second_pass     its statistics take a pass of their own: auto prefers whoever needs one
    plain           plain(call) -> z, where nothing else is wanted; None: fn gives it
    """

    name: str
    fn: Callable[..., Any]
    wants: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS
    options: frozenset[str] = frozenset(_OPTIONS)
    differentiable: frozenset[str] = frozenset()
    rank: int | None = None
    unavailable: str | None = None
    largest_head: int | None = None
    second_pass: bool = False
    plain: Callable[[Call], Tensor] | None = None

    @property
    def bias(self) -> bool:
        """True when a bias can be added to the scores."""
        return "bias" in self.options

    def refusal(self, request: Request) -> str | None:
        """Why it cannot answer the request; None when it can."""
        if self.unavailable:
            return self.unavailable
        if self.devices and request.device not in self.devices:
            return f"it runs on {', '.join(self.devices)} and the tensors are on {request.device}"
        if request.dtype not in self.dtypes:
            return f"it takes {_listed(self.dtypes)} and the tensors are {request.dtype}"
        if self.largest_head is not None and request.d_head > self.largest_head:
            return f"it takes a d_head of at most {self.largest_head}, and this is {request.d_head}"
        if missing := request.wants - self.wants:
            return f"it cannot give {_listed(missing)} (it gives {_listed(self.wants)})"
        foldable = {"lengths", "causal"} if "mask" in self.options else set()
        if missing := request.options - self.options - foldable:
            return f"it takes no {_listed(missing)}"
        if request.gradient and "z" not in self.differentiable:
            return "gradients do not flow through it (call it under torch.no_grad())"
        return None

    def cost(self, request: Request) -> tuple[bool, bool, int]:
        """What auto sorts by: gradients through what is given, passes, then the rank."""
        # lse is always given: a loss on it must not lose its gradient in silence.
        without_gradient = (request.wants | {"lse"}) - {"argmax"} - self.differentiable
        twice = self.second_pass and bool(request.wants)
        return request.gradient and bool(without_gradient), twice, self.rank or 0


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
    scale, bias and want that it handles; `attend` never calls it with another. lengths and causal
    come folded into mask for an `fn` that takes only mask. It gives (z, lse) or a mapping with at
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
                f"register({name!r}): {_listed(unknown)} is not known; "
                f"known are {', '.join(known)}."
            )
    if wants and "want" not in accepted_options(fn):
        raise AttentionError(
            f"register({name!r}): wants {_listed(wants)} is promised, but the function takes no "
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


def choose(impl: str, request: Request) -> Implementation:
    """The implementation named `impl`; for "auto" the fastest that gives what is asked.

    Raises AttentionError for an unknown name, and when what is asked cannot be given; the message
    names an implementation that can.
    """
    if not isinstance(impl, str) or (impl != "auto" and impl not in _IMPLEMENTATIONS):
        known = f"known are auto, {', '.join(_IMPLEMENTATIONS)}"
        if not isinstance(impl, str):
            raise AttentionError(
                f"impl is {impl!r:.80}; expected the name of an implementation, {known}. Leave it "
                'out, or write impl="auto", for the fastest.'
            )
        raise AttentionError(f'impl="{impl:.80}" is not known; {known}.')
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
    raise AttentionError(f"No implementation gives what is asked. {reasons}.")


def accepted_options(fn: Callable[..., Any]) -> frozenset[str]:
    """Which of lengths, mask, causal, scale, bias and want `fn` takes as keywords.

    Raises AttentionError when they cannot be read, as with functions that are written in C.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError) as error:
        raise AttentionError(
            f"The keywords of {fn!r} cannot be read; expected a Python function. "
            "Wrap it: def attention(query, key, value, *, scale): ..."
        ) from error
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return frozenset(_OPTIONS)
    return frozenset(option for option in _OPTIONS if option in parameters)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(str(name) for name in names)) or "no statistics"


def _triton(*tensors: Any, **options: Any) -> Any:
    # Triton is an extra, and importing it takes as long as torch: only a call needs it.
    from minibert.kernels.fused import attention

    return attention.attend(*tensors, **options)


def _without_triton() -> str | None:
    if find_spec("triton") is None:
        return f"Triton is not installed ({how_to_install('triton')})"
    return None


#: Triton's interpreter runs kernels on a CPU, slowly: to see that they are right.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_STATISTICS = frozenset(WANTS) - frozenset(MATRICES)
_NO_STATISTICS = frozenset(_OPTIONS) - {"want"}
_SQUARE = frozenset({"causal", "scale"})
_IMPLEMENTATIONS: dict[str, Implementation] = {
    one.name: one
    for one in (
        Implementation("reference", reference.attend, wants=frozenset(WANTS)),
        Implementation(
            "eager",
            eager.attend,
            wants=frozenset(WANTS),
            differentiable=frozenset({"z", "lse", *WANTS} - {"argmax"}),
            rank=20,
        ),
        Implementation(
            "sdpa",
            sdpa.attend,
            wants=_STATISTICS,
            differentiable=frozenset({"z"}),
            rank=10,
            second_pass=True,
            plain=sdpa.plain,
        ),
        Implementation("chunked", chunked.attend, wants=_STATISTICS, devices=("cpu",), rank=15),
        Implementation(
            "flash",
            torch_backends.flash,
            devices=("cpu", "cuda"),
            options=_SQUARE,
        ),
        Implementation(
            "cudnn",
            torch_backends.cudnn,
            devices=("cuda",),
            dtypes=(torch.float16, torch.bfloat16),
            options=_SQUARE,
        ),
        Implementation(
            "efficient",
            torch_backends.efficient,
            devices=("cuda",),
            dtypes=FLOATS[:3],
            options=_NO_STATISTICS,
        ),
        Implementation(
            "triton",
            _triton,
            wants=_STATISTICS,
            devices=("cuda", "cpu") if _INTERPRETED else ("cuda",),
            # The interpreter multiplies bfloat16 wrongly, and says nothing.
            dtypes=(torch.float16, torch.float32) if _INTERPRETED else FLOATS[:3],
            differentiable=frozenset({"z", "lse"}),
            rank=None if _INTERPRETED else 5,
            unavailable=_without_triton(),
            largest_head=128,
        ),
        Implementation("math", torch_backends.math_backend, options=_NO_STATISTICS),
        Implementation("flex", flex.attend, dtypes=FLOATS[:3], options=_NO_STATISTICS),
    )
}
