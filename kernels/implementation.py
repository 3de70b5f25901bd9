"""One implementation of attention: the function, what it takes, and what it can give."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.call import Call

__all__ = [
    "FLOATS",
    "OPTIONS",
    "SHAPES",
    "Implementation",
    "Request",
    "accepted_options",
    "foldable",
    "listed",
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Asked for, or given, by numbers of the tokens of all packed sentences.
_OF_PACKED_TOKENS = frozenset({"key_sums", "pair_mass", "profile"})
#: Keywords of every implementation's function.
_COMMON = ("lengths", "mask", "causal", "scale", "bias", "want")
OPTIONS = (
    *_COMMON,
    "packed",
    "packed_keys",
    "window",
    "prefix",
    "soft_cap",
    "alibi_slopes",
    "sinks",
    "pages",
)
#: Shapes that not every implementation takes: fewer key heads than query heads, and values whose
#: size is not that of the keys.
SHAPES = ("groups", "value_size")
#: What is handed on in another form to whoever does not take it, and what they must take instead.
#: Groups come as repeated keys and values, pages as keys and values one after the other.
_IN_ANOTHER_FORM = {
    "lengths": ("mask",),
    "causal": ("mask",),
    "window": ("mask",),
    "prefix": ("mask",),
    "alibi_slopes": ("bias",),
    "groups": (),
    "pages": (),
}
#: Numbers by positions, of which sentences in pages each have their own.
_BY_POSITION = frozenset({"offset_mass", "profile", "map"})


@dataclass(frozen=True)
class Request:
    """What one call needs from an implementation."""

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
    options         which of OPTIONS `fn` accepts as keywords, and which of SHAPES it takes
    differentiable  the outputs through which gradients flow back; without "z" it refuses to train
    rank            auto tries the smallest first; None: only when named
    unavailable     why it cannot run on this machine; None when it can
    largest_head    the largest d_head it takes; None: any
    second_pass     its statistics take a pass of their own: auto prefers whoever needs one
    of_call         of_call(call) -> {"z": ...} and what is wanted, for a whole `Call`: it shares
                    between layers what they have in common; None: fn is called
    checked         what it gives is checked at each call
    opaque          torch.compile cannot look into it: in a graph it is one operator
    backward        backward(z_gradient, query, key, value, z, lse, *, lse_gradient, wanted,
                    <options>) -> {name: gradient} of query, key, value, bias and sinks: what a
                    graph of torch.compile calls; elsewhere fn has its own autograd
    lse_error       how far lse may be off in half precision, beyond the rounding of float32 sums
    """

    name: str
    fn: Callable[..., Any]
    wants: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS
    options: frozenset[str] = frozenset((*_COMMON, "packed"))
    differentiable: frozenset[str] = frozenset()
    rank: int | None = None
    unavailable: str | None = None
    largest_head: int | None = None
    second_pass: bool = False
    of_call: Callable[[Call], dict[str, Tensor]] | None = None
    checked: bool = True
    opaque: bool = False
    backward: Callable[..., dict[str, Tensor]] | None = None
    lse_error: float = 0.0

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
            return f"it takes {listed(self.dtypes)} and the tensors are {request.dtype}"
        if self.largest_head is not None and request.d_head > self.largest_head:
            return f"it takes a d_head of at most {self.largest_head}, and this is {request.d_head}"
        if missing := request.wants - self.wants - {"lse"}:
            return f"it cannot give {listed(missing)} (it gives {listed(self.wants)})"
        if missing := request.options - self.options - foldable(self.options, request.wants):
            return f"it takes no {listed(missing)}"
        apart = request.wants & _OF_PACKED_TOKENS
        if apart and "packed" in request.options and "packed" not in self.options:
            return f"it pads packed sentences, where {listed(apart)} cannot be given"
        apart = request.wants & _BY_POSITION
        ends = {"pages", "packed_keys"} & request.options - self.options
        if apart and ends:
            return f"it cannot give {listed(apart)} with {listed(ends)}"
        if request.gradient and "z" not in self.differentiable:
            return "gradients do not flow through it (call it under torch.no_grad())"
        return None

    def cost(self, request: Request) -> tuple[bool, bool, int]:
        """What auto sorts by: gradients through what is given, passes, then the rank."""
        without_gradient = request.wants - {"argmax"} - self.differentiable
        twice = self.second_pass and bool(request.wants - {"lse"})
        return request.gradient and bool(without_gradient), twice, self.rank or 0


def accepted_options(fn: Callable[..., Any]) -> frozenset[str]:
    """Which of OPTIONS `fn` takes as keywords; a `**rest` takes those that came first alone.

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
        return frozenset(_COMMON) | (set(OPTIONS) & parameters.keys())
    return frozenset(option for option in OPTIONS if option in parameters)


def foldable(taken: frozenset[str], wants: frozenset[str]) -> frozenset[str]:
    """What can be handed on in another form to an implementation that takes these options."""
    found = {name for name, instead in _IN_ANOTHER_FORM.items() if set(instead) <= taken}
    if wants & {"received", "map"}:
        # Sums over queries leave padding out, of which a mask says nothing.
        found -= {"lengths"}
    if "lengths" in taken | found:
        found |= {"packed"}
        if "mask" in taken:
            found |= {"packed_keys"}
    return frozenset(found)


def listed(names: Iterable[object]) -> str:
    """The names in order, for a message."""
    return ", ".join(sorted(str(name) for name in names)) or "no statistics"
