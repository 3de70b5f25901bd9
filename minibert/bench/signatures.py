"""The arguments of a user's function: its parameters are read by name, in common conventions.

The name of a parameter decides what it gets. A convention adds what its library's documentation
says: the axes of the vectors, and whether sentences are packed.

A layout is a word with one letter per axis: b sentence, h head, n position, d a number of a vector.
Axes in brackets are merged, "(bh)nd"; for a missing letter there is one call each, "nd". A
different layout of z follows after a comma: "bhnd,bn(hd)".
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import prod
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.call import wide
from minibert.kernels.check.problem import Problem, unfolded
from minibert.kernels.check.workload import Workload
from minibert.untrusted import Json

_ORDER = "bhnd"
_NAMES = {"b": "batch", "h": "head", "n": "position", "d": "d_head", "k": "key", "1": "1"}
#: What is given beside z, as sent to the judge before anybody knows what it is.
OTHER = "output "


@dataclass(frozen=True)
class Other:
    """An output besides z: its name, its axes, and its factor; "" for none."""

    name: str = ""
    axes: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Way:
    """The details of a call that a convention leaves open.

    layout  of query, key and value
    z       layout of z; "" for that of the vectors
    mask    "allowed" (True is allowed) or "added" (0, or the lowest number, is added to the
            scores), or "either", and the axes of a mask, such as "allowed bhqk" or "added bk"
    arrays  the function gets NumPy arrays
    own     a window that is one number counts the query itself
    others  the outputs besides z; None: not known yet
    """

    layout: str = _ORDER
    z: str = ""
    mask: str = "allowed bhqk"
    arrays: bool = False
    own: bool = True
    others: tuple[Other, ...] | None = None

    @classmethod
    def of(cls, fields: Json) -> "Way":
        """The way that `fields` describes."""
        others = fields.get("others")
        made = None if others is None else tuple(Other(**one) for one in others)
        return cls(**{**fields, "others": made})

    def told(self, layout: str) -> "Way":
        """This way in a layout that a user names. Raises MinibertError for anything else."""
        vectors, _, z = layout.partition(",")
        for one in filter(None, (vectors, z)):
            letters = "".join(axes_of(one))
            whole = re.fullmatch(r"(?:[bhnd]|\([bhnd]{2,}\))+", one)
            if not whole or len({*letters}) < len(letters) or not {"n", "d"} <= {*letters}:
                raise MinibertError(
                    f"layout {layout!r:.40}: expected the letters b (sentence), h (head), n "
                    "(position) and d once each, such as bhnd, bnhd, (bh)nd or nd, and "
                    "those of z after a comma where they differ, such as bhnd,bn(hd)"
                )
        return replace(self, layout=vectors, z=z)

    def fields(self) -> dict[str, object]:
        """The way as plain values."""
        return asdict(self)

    def said(self) -> list[str]:
        """How it differs from (batch, head, position, d_head), True for allowed, and tensors."""
        z, (form, axes) = self.z or self.layout, self.mask.split()
        found = [] if self.layout == _ORDER else [f"with {axes_named(self.layout)}"]
        found += [] if z == self.layout else [f"z as {axes_named(z)}"]
        if self.mask != "allowed bhqk":
            found.append(f"mask {form} ({', '.join(axes_of(axes))})")
        return found + ["with NumPy arrays"] * self.arrays

    def read(self, results: Sequence[object], problem: Problem) -> dict[str, Tensor]:
        """z and the other outputs that are known, from what each call gave."""
        if len(results) == 1 and type(results[0]) is dict:
            if self.z or self.arrays:
                raise MinibertError("gave a dictionary, whose z has the axes of the query")
            return results[0]
        parts = [_parts(one) for one in results]
        sizes = dict(zip(_ORDER, problem.z_shape, strict=True))
        columns = list(zip(*parts, strict=True))
        z = torch.stack([one for one in columns[0] if one is not None])
        z = back(z, self.z or self.layout, sizes)
        # NumPy widens float32 where a number of float64 takes part.
        numpy = isinstance(_first(results[0]), np.ndarray)
        found = {"z": z.to(problem.query.dtype) if numpy else z}
        for number, column in enumerate(columns[1:]):
            given = [one for one in column if one is not None]
            if not given or (self.others is not None and number >= len(self.others)):
                continue
            if self.others is None:
                found[f"{OTHER}{number + 2}"] = torch.stack(given)
            elif (one := self.others[number]).name:
                found[one.name] = other_output(torch.stack(given), one, problem)
        return found


#: (batch, head, position, d_head), True is allowed.
USUAL = Way()


def axes_named(layout: str) -> str:
    """(batch, head, position, d_head) of the letters of a layout."""
    named = (" x ".join(_NAMES[letter] for letter in group) for group in axes_of(layout))
    return f"({', '.join(named)})"


def axes_of(layout: str) -> list[str]:
    """The letters of each axis."""
    return [one or two for one, two in re.findall(r"\((\w+)\)|(\w)", layout)]


def laid(numbers: Tensor, layout: str, order: str = _ORDER) -> Iterator[Tensor]:
    """A tensor of axes `order` in a layout, once for each call."""
    groups = axes_of(layout)
    letters = "".join(groups)
    alone = [one for one in order if one not in letters]
    turned = numbers.permute([order.index(one) for one in (*alone, *letters)])
    sizes = dict(zip(order, numbers.shape, strict=True))
    shape = [prod(sizes[one] for one in group) for group in groups]
    calls = prod(sizes[one] for one in alone)
    if len(groups) == len(letters) and len(alone) < 2:
        # A view, so that new numbers in the same memory arrive.
        yield from turned.unbind(0) if alone else (turned,)
    else:
        yield from turned.reshape(calls, *shape).unbind(0)


def back(numbers: Tensor, layout: str, sizes: Mapping[str, int], order: str = _ORDER) -> Tensor:
    """The tensor (call, axes of the layout) in the order (batch, head, position, d_head).

    Raises MinibertError for another shape.
    """
    groups = axes_of(layout)
    letters = "".join(groups)
    shape = tuple(prod(sizes[one] for one in group) for group in groups)
    whole = prod(sizes[one] for one in {*order, *letters})
    if tuple(numbers.shape[1:]) != shape or numbers.numel() != whole:
        raise MinibertError(
            f"gave z of shape {tuple(numbers.shape[1:])}; expected {shape}, {axes_named(layout)}"
        )
    there = [*(one for one in order if one not in letters), *letters]
    return numbers.reshape([sizes[one] for one in there]).permute(
        [there.index(one) for one in order]
    )


def other_output(numbers: Tensor, one: Other, problem: Problem) -> Tensor:
    """An output beside z (call, its axes) as (batch, head, query) or (batch, head, query, key).

    Raises MinibertError for another shape.
    """
    B, H, Q, _ = problem.query.shape
    sizes = {"b": B, "h": H, "n": Q, "k": problem.n_keys, "1": 1}
    order = "bhnk" if "k" in one.axes else "bhn"
    numbers = back(numbers, one.axes, sizes, order + "1" * ("1" in one.axes))
    numbers = numbers.squeeze(-1) if "1" in one.axes else numbers
    dtype = problem.query.dtype
    # A number a row stays as it was rounded.
    kept = "k" in one.axes or numbers.dtype == dtype
    return (numbers * one.factor).to(dtype if kept else wide(dtype))


def _first(result: object) -> object:
    return result[0] if isinstance(result, tuple | list) and result else result


def _parts(result: object) -> tuple[Tensor | None, ...]:
    """z, and what came beside it where that is a tensor."""
    found = tuple(result) if isinstance(result, tuple | list) and result else (result,)
    z = _tensor(found[0])
    if z is None:
        raise MinibertError(
            f"gave a {type(found[0]).__name__}; expected a plain dictionary with z, or z, a plain "
            "tensor or NumPy array"
        )
    return (z, *map(_tensor, found[1:]))


def _tensor(one: object) -> Tensor | None:
    if isinstance(one, np.ndarray) and type(one) is np.ndarray and one.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(one))
    # A subclass can put off its work until it is read.
    plain = type(one) in (Tensor, torch.nn.Parameter)
    return one if plain and isinstance(one, Tensor) else None


Function = Callable[..., object]
#: The parameters of a function in their order; None where they cannot be read.
Parameters = tuple[inspect.Parameter, ...] | None
_MASKABLE = ("causal", "lengths", "mask", "window", "prefix")
#: What a mask of these axes can say; an added one says the last two as well.
_BY_AXES = {
    "bqk": ("causal", "lengths", "window", "prefix"),
    "bk": ("lengths",),
    "qk": ("causal", "window"),
}
_ADDED = ("bias", "alibi_slopes")
_VECTORS = ("query", "key", "value")
_AXES = "bhqk"


@dataclass(frozen=True)
class _Told:
    """The problem in the form that one function takes: by its parameters, and in its way."""

    problem: Problem
    way: Way
    names: frozenset[str]
    #: Whether a window is told as one number of keys.
    counted: bool = False

    def mask(self) -> Tensor | None:
        """The mask of what no other parameter expresses; None where all keys are seen."""
        form, axes = self.way.mask.split()
        apart = {one for name in self.names - MASK_NAMES for one in _options_of(name, self.way)}
        if self.only_causal() and "is_causal" in self.names:
            return None
        apart -= {"causal"} if "is_causal" in self.names else set()
        if "module" in self.names:
            # To transformers' functions the mask says it all; a window beside it is a hint.
            apart -= {"window"}
        changed: dict[str, object] = dict.fromkeys(apart & {*_MASKABLE, *_ADDED} - {"causal"})
        changed |= {"causal": False} if "causal" in apart else {}
        if self.counted and "window" in changed and self.problem.window is not None:
            # One number says the keys before the query.
            changed["window"] = None, self.problem.window[1]
        plain, dtype = unfolded(self.problem.changed(**changed)), self.problem.query.dtype
        allowed, bias = plain.mask, plain.bias
        if bias is not None:
            # Written for every head, as torch's kernels want it.
            bias = bias.to(dtype).expand(*self._sizes()).contiguous()
            seen = torch.ones_like(bias, dtype=torch.bool) if allowed is None else allowed
            return bias.masked_fill(~seen, torch.finfo(dtype).min)
        if allowed is None:
            return None
        if form == "added":
            allowed = torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)
        return allowed if axes == _AXES else self._laid(allowed.expand(*self._sizes()))

    def _sizes(self) -> tuple[int, int, int, int]:
        B, H, Q, _ = self.problem.query.shape
        return B, H, Q, self.problem.n_keys

    def everything(self) -> Tensor:
        """The mask that allows all keys, for a function that requires one."""
        query = self.problem.query
        if self.way.mask.startswith("added"):
            return self._laid(query.new_zeros(self._sizes()))
        return self._laid(query.new_ones(self._sizes(), dtype=torch.bool))

    def _laid(self, mask: Tensor) -> Tensor:
        return next(laid(mask, self.way.mask.split()[1], _AXES))

    def only_causal(self) -> bool:
        """True where a mask would say only causal order, with as many queries as keys."""
        problem = self.problem
        others = (problem.window, problem.prefix, problem.lengths, problem.mask, problem.packed)
        square = problem.query.shape[2] == problem.n_keys
        plain = problem.bias is None and problem.alibi_slopes is None
        return problem.causal and square and plain and all(one is None for one in others)

    def is_causal(self) -> bool:
        """Causal order; beside a mask only where it is all: torch's starts at the first key."""
        return self.only_causal() if self.names & MASK_NAMES else self.problem.causal

    def lengths(self) -> Tensor | None:
        """One for each entry of the first axis."""
        lengths, heads = self.problem.lengths, self.problem.query.shape[1]
        if lengths is None or not self.way.layout.startswith("(bh)"):
            return lengths
        return lengths.repeat_interleave(heads)

    def hidden_keys(self) -> Tensor | None:
        """(batch, key), True at padding."""
        lengths, K = self.lengths(), self.problem.n_keys
        if lengths is None:
            return None
        return torch.arange(K, device=lengths.device) >= lengths[:, None]

    def flash_window(self) -> tuple[int, int] | None:
        """(before, after), -1 for all."""
        if self.problem.window is None:
            return None
        before, after = self.problem.window
        both = before, 0 if self.problem.causal else after
        return tuple(-1 if one is None else one for one in both)  # type: ignore[return-value]

    def window_number(self) -> int | None:
        """The keys before a query, with itself where the way says so."""
        before = (self.problem.window or (None,))[0]
        return None if before is None else before + self.way.own

    def starts(self, of_keys: bool) -> Tensor:
        """Where each packed sentence starts, and the end of the last."""
        counts = _packed(self.problem)[of_keys]
        at = [0, *accumulate(counts)]
        return torch.tensor(at, dtype=torch.int32, device=self.problem.query.device)

    def block_mask(self) -> object:
        """FlexAttention's; None where all keys are seen."""
        from torch.nn.attention.flex_attention import create_block_mask

        (B, H, Q, K), allowed = self._sizes(), unfolded(self.problem).mask
        if allowed is None:
            return None
        seen, device = allowed.expand(B, H, Q, K).contiguous(), self.problem.query.device
        return create_block_mask(
            lambda b, h, q, k: seen[b, h, q, k], B, H, Q, K, device=device.type
        )

    def score_mod(self) -> Function | None:
        """FlexAttention's change of the scores; None where there is none."""
        problem = self.problem
        cap, bias = problem.soft_cap, unfolded(problem).bias
        if cap is None and bias is None:
            return None
        # A lambda: FlexAttention traces it, and would trace what checks annotations as well.
        capped = (lambda s: s) if cap is None else (lambda s: cap * torch.tanh(s / cap))
        if bias is None:
            return lambda score, b, h, q, k: capped(score)
        whole = bias.to(problem.query.dtype).expand(*self._sizes()).contiguous()
        return lambda score, b, h, q, k: capped(score) + whole[b, h, q, k]

    def module(self) -> SimpleNamespace:
        """The attributes of the calling layer that transformers' functions read."""
        problem, sinks = self.problem, self.problem.sinks
        if sinks is None:
            # Some functions look at them without asking.
            sinks = _nothing(problem, ("sinks",))["sinks"]
        return SimpleNamespace(
            num_key_value_groups=problem.query.shape[1] // problem.key.shape[1],
            training=False,
            is_causal=False,
            sinks=sinks,
            sliding_window=None,
            scaling=problem.scale,
            head_dim=problem.query.shape[3],
            config=SimpleNamespace(_attn_implementation="eager"),
        )


HEAD_COUNTS = frozenset({"num_heads", "n_heads", "n_head", "nheads", "heads"})
#: The usual names of a parameter, the options of a call that it says, and its value.
_TABLE: tuple[tuple[str, str, Callable[[_Told], object]], ...] = (
    ("causal use_causal causal_order", "causal", lambda t: t.problem.causal),
    ("is_causal", "causal", _Told.is_causal),
    (
        "scale sm_scale softmax_scale scaling scale_factor attn_scale qk_scale scaling_factor",
        "scale",
        lambda t: t.problem.scale,
    ),
    ("temperature", "scale", lambda t: 1 / t.problem.scale),
    (
        "lengths seq_lens seqlens kv_lens key_lengths valid_lens valid_len seq_lengths lens "
        "cache_seqlens",
        "lengths",
        _Told.lengths,
    ),
    ("key_padding_mask padding_mask pad_mask", "lengths", _Told.hidden_keys),
    ("window", "window", lambda t: t.problem.window),
    ("window_size", "window", _Told.flash_window),
    ("sliding_window", "window", _Told.window_number),
    (
        "soft_cap softcap logit_cap logits_soft_cap logit_softcapping",
        "soft_cap",
        lambda t: t.problem.soft_cap,
    ),
    ("alibi_slopes slopes", "alibi_slopes", lambda t: t.problem.alibi_slopes),
    ("sinks s_aux sink attn_sinks", "sinks", lambda t: t.problem.sinks),
    ("bias attn_bias position_bias", "bias", lambda t: t.problem.bias),
    ("prefix", "prefix", lambda t: t.problem.prefix),
    ("pages", "pages", lambda t: t.problem.pages),
    ("packed", "packed", lambda t: t.problem.packed),
    ("packed_keys", "packed_keys", lambda t: t.problem.packed_keys),
    ("mask attn_mask attention_mask", "", _Told.mask),
    ("score_mod", "bias alibi_slopes soft_cap", _Told.score_mod),
    ("block_mask", " ".join(_MASKABLE), _Told.block_mask),
    ("enable_gqa", "", lambda t: t.problem.query.shape[1] != t.problem.key.shape[1] or None),
    ("cu_seqlens cu_seqlens_q", "packed", lambda t: t.starts(of_keys=False)),
    ("cu_seqlens_k cu_seqlens_kv", "packed_keys", lambda t: t.starts(of_keys=True)),
    ("max_seqlen max_seqlen_q", "", lambda t: max(_packed(t.problem)[0])),
    ("max_seqlen_k max_seqlen_kv", "", lambda t: max(_packed(t.problem)[1])),
    (" ".join(HEAD_COUNTS), "", lambda t: t.problem.query.shape[1]),
    ("num_kv_heads n_kv_heads kv_heads", "", lambda t: t.problem.key.shape[1]),
    ("module", "", _Told.module),
    ("dropout dropout_p p_drop attn_dropout dropout_prob dropout_rate", "", lambda t: None),
    ("training", "", lambda t: None),
)
KNOWN = {
    name: (tuple(said.split()), value) for names, said, value in _TABLE for name in names.split()
}
MASK_NAMES = frozenset({"mask", "attn_mask", "attention_mask"})
_ROLES = {
    one: role
    for role, names in {
        "query": "query q queries xq query_states query_layer",
        "key": "key k keys xk key_states key_layer k_cache key_cache",
        "value": "value v values xv value_states value_layer v_cache value_cache",
    }.items()
    for one in names.split()
}
#: Values of a default that say the same as nothing.
_NEUTRAL = (None, False, 0, -1, (-1, -1), (None, None))


def _options_of(name: str, way: Way) -> tuple[str, ...]:
    """The options of a call that a parameter of this name carries."""
    if name not in MASK_NAMES:
        return KNOWN[name][0] if name in KNOWN else ()
    form, axes = way.mask.split()
    said = _BY_AXES.get(axes, _MASKABLE)
    return (*said, *_ADDED) if form in ("added", "either") and said is _MASKABLE else said


def _packed(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The queries and keys of each sentence."""
    if problem.packed is None:
        raise MinibertError("packed sentences are expected by this signature")
    return problem.packed, problem.packed_keys or problem.packed


@dataclass(frozen=True)
class Signature:
    """A calling convention.

    known_by   parameters that only this convention has
    parameters those that are given where a function's own cannot be read
    way        the axes of the vectors and of a mask, by its documentation
    layout     "padded", or "packed": sentences one after the other
    shapes     of groups and value_size, what functions of it usually take
    never      a parameter that no function of it has
    open       its documentation says nothing about axes, masks and results: they are tried out
    dead_rows  it is checked on rows without an allowed key, where z is 0
    """

    name: str
    known_by: frozenset[str] = frozenset()
    parameters: str = "query key value"
    way: Way = USUAL
    layout: str = "padded"
    shapes: frozenset[str] = frozenset()
    never: str = ""
    open: bool = False
    dead_rows: bool = False

    def bind(
        self, function: Function, problem: Problem, parameters: Parameters, way: Way | None = None
    ) -> Callable[[], list[object]]:
        """A call without arguments that returns the results of each call of the function."""
        way = way or self.way
        calls = list(self._calls(problem, self.read(parameters), way))
        if not way.arrays:
            return lambda: [function(*given, **named) for given, named in calls]
        return lambda: [
            function(*map(_array, given), **{name: _array(one) for name, one in named.items()})
            for given, named in calls
        ]

    def read(self, parameters: Parameters) -> tuple[inspect.Parameter, ...]:
        """The parameters; those of the convention where the function's own say nothing."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if parameters is not None and any(one.kind not in kinds for one in parameters):
            return tuple(one for one in parameters if one.kind not in kinds)
        # By keyword: between those that are known may stand others.
        return tuple(
            inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            if one in _ROLES
            else inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=None)
            for one in self.parameters.split()
        )

    def _calls(
        self, problem: Problem, parameters: Sequence[inspect.Parameter], way: Way
    ) -> Iterator[tuple[list[object], dict[str, object]]]:
        """The arguments of each call, by position and by name."""
        names = frozenset(one.name for one in parameters)
        told = _Told(problem, way, names, any(map(is_counted, parameters)))
        roles = roles_of(parameters)
        options: dict[str, object] = {}
        for one in parameters:
            if one.name in roles:
                continue
            given = _given(one, told)
            if given is not _LEFT_OUT:
                options[one.name] = given
        for vectors in self._vectors(problem, way):
            given_here = {name: vectors[role] for name, role in roles.items()} | options
            # By position up to the first that is left out: not everything takes keywords.
            positional = []
            for one in parameters:
                if one.name not in given_here or one.kind is one.KEYWORD_ONLY:
                    break
                positional.append(given_here.pop(one.name))
            yield positional, given_here

    def _vectors(self, problem: Problem, way: Way) -> Iterator[dict[str, Tensor]]:
        """query, key and value of each call."""
        whole: tuple[Tensor, ...] = (problem.query, problem.key, problem.value)
        groups = problem.query.shape[1] // problem.key.shape[1]
        if "h" not in way.layout or "(" in way.layout:
            # Each head of its own has its own keys.
            whole = (whole[0], *(one.repeat_interleave(groups, 1) for one in whole[1:]))
        for three in zip(*(laid(one, way.layout) for one in whole), strict=True):
            yield dict(zip(_VECTORS, three, strict=True))

    def taken(self, parameters: Parameters, way: Way | None = None) -> tuple[str, ...]:
        """The options of a call that a function with these parameters can be told."""
        way = way or self.way
        read = self.read(parameters)
        names = [one.name for one in read]
        found = {one for name in names for one in _options_of(name, way)}
        if not {"b", "h"} <= {*way.layout} or "(" in way.layout:
            # Told sentence by sentence or head by head: what is the same for all.
            packed = {"packed", "packed_keys"} if self.layout == "packed" else set()
            kept = {"causal", "scale", "window", "soft_cap", *packed}
            kept |= {"lengths"} if way.layout.startswith("(bh)") else set()
            found &= kept | ({"alibi_slopes", "sinks"} if packed else set())
        sides = {one.name for one in read if not is_counted(one)}
        if not sides & {"window", "window_size", *MASK_NAMES, "block_mask"} and "window" in found:
            found = found - {"window"} | {"window before"}
        return tuple(one for one in TOLD if one in found)

    def fitted(self, work: Workload) -> Workload | None:
        """The workload in the layout of this convention; None where it cannot be told."""
        work = replace(work, dead_rows=self.dead_rows)
        if self.layout == "packed":
            if work.mask or work.bias or work.prefix:
                return None
            work = replace(work, layout="packed", lengths="varied")
        return work


#: The options of a call that a function can be told; of a window perhaps the keys before alone.
TOLD = (
    "lengths", "causal", "scale", "window", "window before", "prefix", "soft_cap", "alibi_slopes",
    "sinks", "mask", "bias", "pages", "packed", "packed_keys",
)  # fmt: skip
_LEFT_OUT = object()


def _given(one: inspect.Parameter, told: _Told) -> object:
    """The value of a parameter other than the vectors; `_LEFT_OUT` where its default will do.

    Raises MinibertError for a required parameter that is unknown.
    """
    required = one.default is one.empty
    if one.name not in KNOWN:
        if required:
            raise MinibertError(f"wants {one.name}, which is not known")
        return _LEFT_OUT
    value = told.window_number() if is_counted(one) else KNOWN[one.name][1](told)
    if value is not None:
        return value
    if required and one.name != "lengths":
        # Who has to be given something is given what changes nothing.
        problem = told.problem.changed(**_nothing(told.problem, KNOWN[one.name][0]))
        value = KNOWN[one.name][1](replace(told, problem=problem))
    if value is not None:
        return value
    if is_counted(one) and (required or type(one.default) is int):
        # Every key, whatever its default is.
        return told.problem.query.shape[2] + told.problem.n_keys
    if one.name in MASK_NAMES and required and "is_causal" not in told.names:
        return told.everything()
    # True and 1.0 are equal to nothing here, and 0.0 and False are to 0.
    if not required and any(one.default is n or one.default == n for n in _NEUTRAL):
        return _LEFT_OUT
    of_no_one = 0.0 if "dropout" in one.name or one.name == "p_drop" else None
    by_type: dict[type, object] = {bool: False, float: 0.0}
    return by_type.get(type(one.default), of_no_one)


def _nothing(problem: Problem, options: Collection[str]) -> dict[str, Tensor]:
    """Values of these options that change nothing, for those that are tensors."""
    (B, H, Q, _), K = problem.query.shape, problem.n_keys
    lowest = torch.finfo(problem.query.dtype).min
    found = {
        "lengths": problem.query.new_full((B,), K, dtype=torch.int64),
        "bias": problem.query.new_zeros(1, H, Q, K),
        "alibi_slopes": problem.query.new_zeros(H),
        "sinks": problem.query.new_full((H,), lowest),
    }
    return {name: found[name] for name in options if name in found}


def is_counted(one: inspect.Parameter) -> bool:
    """True where a window is one number there, by its name, default or annotation."""
    number = type(one.default) is int or one.annotation in (int, "int")
    return one.name == "sliding_window" or (one.name in ("window", "window_size") and number)


def _array(one: object) -> object:
    return one.detach().numpy() if isinstance(one, Tensor) else one


def named_vectors(names: Iterable[str]) -> dict[str, str]:
    """The parameters whose names say that they are query, key and value; empty unless all three."""
    named = {name: _ROLES[low] for name in names if (low := name.lower()) in _ROLES}
    return named if sorted(named.values()) == sorted(_VECTORS) else {}


def roles_of(parameters: Sequence[inspect.Parameter]) -> dict[str, str]:
    """The parameters for query, key and value: by name, or the first three with unknown names.

    Raises MinibertError where there are fewer than three.
    """
    if named := named_vectors(one.name for one in parameters):
        return named
    first = [one.name for one in parameters if one.name not in KNOWN][:3]
    if len(first) < 3:
        raise MinibertError("takes no query, key and value")
    return dict(zip(first, _VECTORS, strict=True))


def parameters_of(function: Function) -> Parameters:
    """The parameters of a function; None for one written in C that does not name them.

    A `**rest` counts as the names that its code looks up, as in rest.get("causal").
    """
    try:
        found = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in found):
        code = getattr(inspect.unwrap(function), "__code__", None)
        there = {one.name for one in found}
        kind = inspect.Parameter.KEYWORD_ONLY
        looked_up = (
            inspect.Parameter(one, kind, default=None)
            for one in getattr(code, "co_consts", ())
            if isinstance(one, str) and one in KNOWN and one not in there
        )
        *others, rest = found
        found = (*others, *looked_up, rest)
    return found


def guessed_by(names: Collection[str]) -> str:
    """The convention of these parameters, "plain" or "minibert" for none of the others.

    Raises MinibertError where more than one fits.
    """
    fitting = fitting_to(names)
    if len(fitting) > 1:
        raise MinibertError(f"it fits {' and '.join(fitting)}; say which: --signature NAME")
    return fitting[0]


def fitting_to(names: Collection[str]) -> list[str]:
    """The conventions that these parameters may be of; at least one."""
    fitting = [
        one.name
        for one in SIGNATURES.values()
        if one.known_by and one.known_by <= {*names} and one.never not in names
    ]
    ours = {*_VECTORS, "lengths"} <= {*names}
    return fitting or ["minibert" if ours else "plain"]


_SHAPES = frozenset({"groups", "value_size"})
_GROUPS = frozenset({"groups"})
_FLASH = "softmax_scale causal window_size softcap alibi_slopes"

SIGNATURES = {
    one.name: one
    for one in (
        Signature("minibert", parameters="query key value lengths causal", dead_rows=True),
        Signature("plain", open=True),
        Signature(
            "flash-attn",
            frozenset({"softmax_scale", "window_size"}),
            f"q k v {_FLASH}",
            Way("bnhd"),
            never="cu_seqlens_q",
            shapes=_GROUPS,
        ),
        Signature(
            "flash-attn-varlen",
            frozenset({"cu_seqlens_q", "cu_seqlens_k"}),
            f"q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k {_FLASH}",
            Way("nhd"),
            layout="packed",
            shapes=_GROUPS,
        ),
        Signature(
            "varlen",
            frozenset({"cu_seqlens"}),
            "q k v cu_seqlens max_seqlen causal softmax_scale",
            Way("nhd"),
            layout="packed",
        ),
        Signature(
            "flex",
            frozenset({"score_mod", "block_mask"}),
            "query key value score_mod block_mask scale enable_gqa",
            shapes=_SHAPES,
        ),
        Signature(
            "sdpa",
            frozenset({"attn_mask", "is_causal"}),
            "query key value attn_mask is_causal scale enable_gqa",
            Way(mask="either bhqk"),
            shapes=_SHAPES,
        ),
        Signature(
            "transformers",
            frozenset({"module", "attention_mask"}),
            "module query key value attention_mask scaling",
            Way(z="bnhd", mask="added bhqk"),
            shapes=_GROUPS,
        ),
    )
}
