"""The known implementations of attention, their abilities, and the choice for a call."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import Tensor

from minibert.errors import AttentionError, did_you_mean, how_to_install
from minibert.kernels import chunked, eager, reference, torch_kernels
from minibert.kernels.call import COMMON, MATRICES, OPTIONS, SHAPES, WANTS, Call, Outputs

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Asked for, or given, by numbers of the tokens of all packed sentences.
_OF_PACKED_TOKENS = frozenset({"key_sums", "pair_mass", "profile"})
#: Options that are rewritten for implementations without them, and what these must take instead.
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
#: Keys: no gradient flows through them.
_WHOLE_NUMBERS = frozenset({"argmax", "top_keys"})
#: What packed sentences do not have: each would have a matrix or a map of its own size.
_NOT_PACKED = frozenset({*MATRICES, "map"})


@dataclass(frozen=True)
class Request:
    """The needs of one call from an implementation."""

    wants: frozenset[str]
    options: frozenset[str]
    device: str
    dtype: torch.dtype
    gradient: bool
    d_head: int = 0


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention, and what it can give.

    fn              fn(call) -> {"z": ..., "lse": ...} and what the call wants
    wants           the names of `want=` it can give
    devices         device types it runs on ("cpu", "cuda"); () means any
    dtypes          dtypes of query, key and value it takes
    options         which of OPTIONS and SHAPES a call may have
    differentiable  the outputs through which gradients flow back; without "z" it refuses to train
    rank            auto tries the smallest first; None: only when named
    unavailable     why it cannot run on this machine; None when it can
    largest_head    the largest d_head it takes; None: any
    second_pass     its statistics take a second pass: auto prefers one without
    checked         what it gives is checked at each call
    opaque          torch.compile cannot look into it: its graph breaks there
    lse_error       how far lse may be off in half precision, beyond the rounding of float32 sums
    """

    name: str
    fn: Callable[[Call], Outputs]
    wants: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS
    options: frozenset[str] = frozenset((*COMMON, "packed"))
    differentiable: frozenset[str] = frozenset()
    rank: int | None = None
    unavailable: str | None = None
    largest_head: int | None = None
    second_pass: bool = False
    checked: bool = True
    opaque: bool = False
    lse_error: float = 0.0

    def refusal(self, request: Request) -> str | None:
        """The reason why it cannot answer the request; None when it can."""
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
        """The sort key of auto: gradients through what is given, passes, then the rank."""
        without_gradient = request.wants - _WHOLE_NUMBERS - self.differentiable
        twice = self.second_pass and bool(request.wants - {"lse"})
        return request.gradient and bool(without_gradient), twice, self.rank or 0


def foldable(taken: frozenset[str], wants: frozenset[str]) -> frozenset[str]:
    """The options that can be rewritten for an implementation that takes these options."""
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


def by_keywords(fn: Callable[..., object], name: str) -> Callable[[Call], Outputs]:
    """A function that takes query, key, value and the options it names, as one of a `Call`."""
    taken = accepted_options(fn)

    @functools.wraps(fn)
    def called(call: Call) -> Outputs:
        want = {one: given for one, given in call.want.items() if one != "lse"}
        options = replace(call, want=want).keywords(taken)
        return _named(fn(call.query, call.key, call.value, **options), name)

    return called


def _named(result: object, name: str) -> Outputs:
    """The outputs of a user's function by name: from a mapping, from (z, lse), or only z."""
    if isinstance(result, Tensor):
        return {"z": result}
    if isinstance(result, tuple) and len(result) == 2:
        return {"z": result[0], "lse": result[1]}
    if isinstance(result, Mapping):
        return dict(result)
    raise AttentionError(
        f'impl="{name}" gave a {type(result).__name__}; '
        'expected z, (z, lse) or a mapping with at least "z" and "lse".'
    )


def accepted_options(fn: Callable[..., object]) -> frozenset[str]:
    """The OPTIONS that `fn` takes as keywords; a `**rest` takes only the oldest ones.

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
        return frozenset(COMMON) | (set(OPTIONS) & parameters.keys())
    return frozenset(option for option in OPTIONS if option in parameters)


def _triton(call: Call) -> Outputs:
    # Triton is an extra, and importing it takes as long as torch: only a call needs it.
    from minibert.kernels.fused import attention

    return attention.attend(call)


#: Triton's interpreter runs kernels on a CPU, slowly: to see that they are right.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_STATISTICS = frozenset(WANTS) - frozenset(MATRICES)
_EVERYTHING = frozenset((*OPTIONS, *SHAPES)) - {"pages"}
_BUILT_IN = (
    Implementation("reference", reference.attend, wants=frozenset(WANTS), options=_EVERYTHING),
    Implementation(
        "eager",
        eager.attend,
        wants=frozenset(WANTS),
        options=_EVERYTHING - {"groups"},
        differentiable=frozenset({"z", "lse", *WANTS} - _WHOLE_NUMBERS),
        rank=20,
    ),
    Implementation(
        "sdpa",
        torch_kernels.sdpa,
        wants=_STATISTICS,
        options=_EVERYTHING - {"soft_cap", "sinks"},
        # On a CPU torch takes a short series for the exponential function of half types.
        lse_error=2e-4,
        opaque=True,
        differentiable=frozenset({"z"}),
        rank=10,
        second_pass=True,
    ),
    Implementation(
        "chunked",
        chunked.attend,
        wants=_STATISTICS,
        options=_EVERYTHING,
        devices=("cpu",),
        rank=15,
        opaque=True,
    ),
    Implementation(
        "triton",
        _triton,
        wants=_STATISTICS - _OF_PACKED_TOKENS,
        options=_EVERYTHING,
        devices=("cuda", "cpu") if _INTERPRETED else ("cuda",),
        # The interpreter multiplies bfloat16 wrongly, and says nothing.
        dtypes=(torch.float16, torch.float32) if _INTERPRETED else FLOATS[:3],
        differentiable=frozenset({"z", "lse"}),
        rank=None if _INTERPRETED else 5,
        unavailable=None
        if find_spec("triton")
        else f"Triton is not installed ({how_to_install('triton')})",
        # The widest head whose vectors fit the registers of a program beside its scores.
        largest_head=256,
        opaque=True,
    ),
)
# They are right by the tests, so that a call does not look at what they give.
_IMPLEMENTATIONS = {one.name: replace(one, checked=False) for one in _BUILT_IN}
#: What `chosen_for` found, by what it was asked.
_CHOICES: dict[tuple[object, ...], Implementation] = {}


def register(
    name: str,
    fn: Callable[..., object],
    *,
    wants: Collection[str] = (),
    devices: Iterable[str] = (),
    dtypes: Iterable[torch.dtype] = FLOATS,
    differentiable: Iterable[str] = (),
    rank: int | None = None,
    unavailable: str | None = None,
) -> Implementation:
    """Register an implementation, which `attend` then knows as `impl=name`; its record.

    `fn(query, key, value, *, scale, ...)` names, as keywords, those of lengths, mask, causal,
    scale, bias, want and packed that it handles; it is never called with another. lengths and
    causal come folded into mask for an `fn` that takes only mask, and packed sentences padded, with
    their lengths, for one without `packed`. It gives (z, lse) or a mapping with at
    least "z" and "lse". `impl="auto"` considers it only when it has a rank.
    Raises AttentionError when the name is taken or is not a text, when `fn` is not a function whose
    keywords can be read, or when a want or an output named in differentiable is unknown.
    """
    if not isinstance(name, str) or not name:
        raise AttentionError(f"register({name!r}): expected a name, a text that is not empty.")
    if not callable(fn):
        raise AttentionError(
            f"register({name!r}): {fn!r} cannot be called; expected a function "
            "fn(query, key, value, *, scale, ...)."
        )
    if name in _IMPLEMENTATIONS or name == "auto":
        raise AttentionError(f"register({name!r}): the name is taken; choose another.")
    wants, differentiable = frozenset(wants), frozenset(differentiable)
    for given, known in ((wants, WANTS), (differentiable, ("z", "lse", *WANTS))):
        if unknown := given - set(known):
            raise AttentionError(
                f"register({name!r}): {listed(unknown)} is not known"
                f"{did_you_mean(next(iter(unknown)), known)}; known are {', '.join(known)}."
            )
    if wants and "want" not in accepted_options(fn):
        raise AttentionError(
            f"register({name!r}): wants {listed(wants)} is promised, but the function takes no "
            "keyword `want` to be asked by; add it."
        )
    record = Implementation(
        name=name,
        fn=by_keywords(fn, name),
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


def implementations() -> dict[str, Implementation]:
    """Every implementation by name; those that cannot run here have the reason."""
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
        guess = did_you_mean(impl, _IMPLEMENTATIONS)
        raise AttentionError(f'impl="{impl:.80}" is not known{guess}; {known}.')


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


def chosen_for(impl: str, call: Call, asks: frozenset[str], *, gradient: bool) -> Implementation:
    """The implementation of a call that asks for these, remembered until another is registered."""
    query, wants = call.query, frozenset(call.want)
    largest = max(query.shape[3], call.value.shape[3])
    request = (wants, asks, query.device.type, query.dtype, gradient, largest)
    if torch.compiler.is_compiling():
        return _choose(impl, Request(*request))
    choice = _CHOICES.get((impl, *request))
    if choice is None:
        choice = _CHOICES[(impl, *request)] = _choose(impl, Request(*request))
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
