"""How a user's function is called: the calling conventions that people write attention in.

A convention says which options of a call it can tell a function, and turns a call into arguments
and what comes back into outputs. All that can be made before the clock starts is made in `bind`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.call import OPTIONS
from minibert.kernels.check.problem import Problem, unfolded
from minibert.kernels.check.workload import Workload

Function = Callable[..., object]
Names = frozenset[str] | None
#: The positional arguments of each call, and the keywords of all.
Arguments = tuple[list[tuple[object, ...]], dict[str, object]]

#: What people call the options of a call in functions that take (q, k, v) and give z.
SYNONYMS = {
    "is_causal": "causal",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "scaling": "scale",
    "attn_mask": "mask",
    "softcap": "soft_cap",
}


def by_name(problem: Problem, names: Names) -> Arguments:
    """Every option that it names, under the name that `attend` has for it."""
    return _told(problem, ("lengths", "causal") if names is None else names, {})


def by_synonym(problem: Problem, names: Names) -> Arguments:
    """Every option that it names, under any of the usual names."""
    return _told(problem, names or (), SYNONYMS)


def _told(problem: Problem, names: Iterable[str], usual: Mapping[str, str]) -> Arguments:
    options = {name: usual.get(name, name) for name in names}
    given = {
        name: getattr(problem, option)
        for name, option in options.items()
        if option in OPTIONS and option != "want" and hasattr(problem, option)
    }
    return [_vectors(problem)], given


def _vectors(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return problem.query, problem.key, problem.value


def flash(problem: Problem, names: Names) -> Arguments:
    """flash-attn 2.8: (batch, position, head, d_head)."""
    return [tuple(one.transpose(1, 2) for one in _vectors(problem))], _flash_options(problem)


def flash_varlen(problem: Problem, names: Names) -> Arguments:
    """flash-attn 2.8: (token, head, d_head), and where each sentence starts."""
    counts, device = _packed(problem), problem.query.device
    starts = (
        torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device) for sizes in counts
    )
    vectors = (_tokens(one) for one in _vectors(problem))
    return [(*vectors, *starts, *map(max, counts))], _flash_options(problem)


def _flash_options(problem: Problem) -> dict[str, object]:
    options: dict[str, object] = {"softmax_scale": problem.scale, "causal": problem.causal}
    if problem.window is not None:
        before, after = problem.window
        after = 0 if problem.causal else after
        options["window_size"] = tuple(-1 if one is None else one for one in (before, after))
    given = {"softcap": problem.soft_cap, "alibi_slopes": problem.alibi_slopes}
    return options | {name: one for name, one in given.items() if one is not None}


def flashinfer_prefill(problem: Problem, names: Names) -> Arguments:
    """FlashInfer 0.2: one sentence a call, (position, head, d_head)."""
    parts = zip(_vectors(problem), _packed(problem, of_each=True), strict=True)
    split = [_tokens(one).split(sizes) for one, sizes in parts]
    options: dict[str, object] = {"sm_scale": problem.scale, "causal": problem.causal}
    if problem.window is not None and problem.window[0] is not None:
        options["window_left"] = problem.window[0]
    if problem.soft_cap is not None:
        options["logits_soft_cap"] = problem.soft_cap
    return list(zip(*split, strict=True)), options


def flashinfer_decode(problem: Problem, names: Names) -> Arguments:
    """FlashInfer 0.2: one query a call, (head, d_head), and its keys (position, head, d_head)."""
    calls, options = flashinfer_prefill(problem, names)
    # The last query sees all keys: causal order is not told.
    del options["causal"]
    return [(query[0], *keys) for query, *keys in calls], options  # type: ignore[index]


def flex(problem: Problem, names: Names) -> Arguments:
    """torch's FlexAttention: scores changed by score_mod, keys chosen by block_mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, H, Q, _ = problem.query.shape
    K, allowed = problem.n_keys, unfolded(problem).mask
    given: dict[str, object] = {}
    if allowed is not None:
        seen = allowed.expand(B, H, Q, K).contiguous()
        given["block_mask"] = create_block_mask(
            lambda b, h, q, k: seen[b, h, q, k], B, H, Q, K, device=problem.query.device.type
        )
    if score_mod := _score_mod(problem):
        given["score_mod"] = score_mod
    return [_vectors(problem)], given | _of_torch(problem)


def _score_mod(problem: Problem) -> Function | None:
    cap, bias = problem.soft_cap, _bias(problem)
    if cap is None and bias is None:
        return None

    # A lambda: FlexAttention traces it, and would trace what checks annotations as well.
    capped = (lambda s: s) if cap is None else (lambda s: cap * torch.tanh(s / cap))
    if bias is None:
        return lambda score, b, h, q, k: capped(score)
    return lambda score, b, h, q, k: capped(score) + bias[b, h, q, k]


def sdpa(problem: Problem, names: Names) -> Arguments:
    """torch's scaled_dot_product_attention; is_causal, which is aligned to the start, for squares.

    Everything else is a mask, made before the clock starts.
    """
    plain, bias, given = unfolded(problem), _bias(problem), _of_torch(problem)
    others = (problem.window, problem.prefix, problem.lengths, problem.mask, bias)
    square = problem.causal and problem.query.shape[2] == problem.n_keys
    if square and all(one is None for one in others):
        given["is_causal"] = True
    elif bias is not None:
        mask = torch.ones_like(bias, dtype=torch.bool) if plain.mask is None else plain.mask
        given["attn_mask"] = bias.masked_fill(~mask, -torch.inf)
    elif plain.mask is not None:
        given["attn_mask"] = plain.mask
    return [_vectors(problem)], given


def _of_torch(problem: Problem) -> dict[str, object]:
    options: dict[str, object] = {"scale": problem.scale}
    if problem.query.shape[1] != problem.key.shape[1]:
        options["enable_gqa"] = True
    return options


def _bias(problem: Problem) -> Tensor | None:
    """What is added to the scores, for every head, in the dtype of the inputs."""
    bias = unfolded(problem).bias
    if bias is None:
        return None
    (B, H, Q, _), dtype = problem.query.shape, problem.query.dtype
    return bias.to(dtype).expand(B, H, Q, problem.n_keys).contiguous()


def transformers(problem: Problem, names: Names) -> Arguments:
    """The eager attention of transformers' models; masked keys get the lowest number."""
    plain, dtype = unfolded(problem), problem.query.dtype
    module = SimpleNamespace(
        num_key_value_groups=problem.query.shape[1] // problem.key.shape[1],
        training=False,
        sinks=problem.sinks,
    )
    mask = None
    if plain.mask is not None:
        mask = torch.where(plain.mask, 0.0, torch.finfo(dtype).min).to(dtype)
    told: dict[str, object] = {"dropout": 0.0, "softcap": problem.soft_cap}
    told["s_aux"] = problem.sinks
    given = {name: one for name, one in told.items() if one is not None}
    return [(module, *_vectors(problem), mask, problem.scale)], given


def z_of_dictionary(result: object, problem: Problem) -> Tensor:
    """Not asked: a dictionary is looked at name by name."""
    raise MinibertError(
        f'gave a {type(result).__name__}; expected a plain dictionary: return {{"z": z}}; or '
        "--signature plain, for a function that returns z"
    )


def first(result: Any, problem: Problem) -> Tensor:
    """z, alone or the first of a tuple."""
    found = result[0] if isinstance(result, tuple | list) and result else result
    if type(found) not in (Tensor, torch.nn.Parameter):
        raise MinibertError(f"gave a {type(found).__name__}; expected z, a plain tensor")
    return found


def by_position(result: object, problem: Problem) -> Tensor:
    """z, which came as (batch, position, head, d_value)."""
    return _axes(first(result, problem), 4).transpose(1, 2)


def by_token(result: object, problem: Problem) -> Tensor:
    """z, which came as (token, head, d_value)."""
    return _axes(first(result, problem), 3).transpose(0, 1)[None]


def sentences_of_tokens(result: Any, problem: Problem) -> Tensor:
    """z, which came sentence by sentence as (position, head, d_value)."""
    return by_token(torch.cat([_axes(first(one, problem), 3) for one in result]), problem)


def sentences_of_one_token(result: Any, problem: Problem) -> Tensor:
    """z, which came sentence by sentence as (head, d_value)."""
    return by_token(torch.stack([_axes(first(one, problem), 2) for one in result]), problem)


def _axes(z: Tensor, count: int) -> Tensor:
    if z.ndim != count:
        raise MinibertError(f"gave z of shape {tuple(z.shape)}; expected {count} axes")
    return z


def _tokens(vectors: Tensor) -> Tensor:
    """(1, head, token, size) as (token, head, size)."""
    return vectors[0].transpose(0, 1)


def _packed(problem: Problem, *, of_each: bool = False) -> tuple[tuple[int, ...], ...]:
    """The queries and keys of each sentence; `of_each` of query, key and value."""
    if problem.packed is None:
        raise MinibertError("packed sentences are expected by this signature")
    keys = problem.packed_keys or problem.packed
    return (problem.packed, keys, keys) if of_each else (problem.packed, keys)


_SHAPES = frozenset({"groups", "value_size"})
_FIELDS = ("window", "prefix", "soft_cap", "alibi_slopes", "sinks", "mask", "bias", "pages")


@dataclass(frozen=True)
class Signature:
    """A calling convention.

    says      what a function of it looks like, for people
    known_by  the parameters that no other convention has
    options   the parameter that tells an option of a call, by option; "" where it needs none
    arguments arguments(problem, names) -> those of each call, and the keywords that it may take
    z         z (batch, head, query, d_value) from what the function gave
    layout    "padded", or "packed": sentences one after the other in one call, or call by call
    shapes    of groups and value_size, what functions of it usually take
    never     a parameter that no function of it has
    unread    the options of a function whose parameters cannot be read; None: all
    """

    name: str
    says: str
    known_by: frozenset[str]
    options: dict[str, str]
    arguments: Callable[[Problem, Names], Arguments]
    z: Callable[[Any, Problem], Tensor]
    layout: str = "padded"
    one_query: bool = False
    shapes: frozenset[str] = frozenset()
    never: str = ""
    unread: tuple[str, ...] | None = None

    def bind(self, function: Function, problem: Problem, names: Names) -> Callable[[], object]:
        """A call without arguments, or of several sentences the list of what they give."""
        calls, options = self.arguments(problem, names)
        given = {name: one for name, one in options.items() if names is None or name in names}
        if self.name.startswith("flashinfer"):
            return lambda: [function(*one, **given) for one in calls]
        (only,) = calls
        return lambda: function(*only, **given)

    def taken(self, names: Names) -> tuple[str, ...]:
        """The options of a call that a function with these parameters can be told."""
        if names is None:
            return tuple(self.options) if self.unread is None else self.unread
        known = names
        if not self.known_by:
            known = names | {SYNONYMS.get(one, one) for one in names}
        return tuple(
            option
            for option, parameter in self.options.items()
            if not parameter or parameter in known
        )

    def fitted(self, work: Workload) -> Workload | None:
        """The workload in the layout of this convention; None where it cannot be told."""
        if self.layout == "packed":
            if work.mask or work.bias or work.prefix:
                return None
            if work.window is not None and not work.causal and self.name.startswith("flashinfer"):
                return None
            work = replace(work, layout="packed", lengths="varied")
        if self.one_query:
            work = replace(work, queries=1)
        return work


def parameter_names(function: Callable[..., object]) -> Names:
    """The names of its parameters; None for a function written in C, or with `**rest`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return frozenset(parameters)


def guessed(function: Callable[..., object]) -> str | None:
    """The convention that its parameters name; None where they cannot be read.

    Raises MinibertError where more than one fits.
    """
    try:
        return guessed_by(tuple(inspect.signature(function).parameters))
    except (TypeError, ValueError):
        return None


def guessed_by(names: Sequence[str]) -> str:
    """The convention of these parameters, "minibert" for none of the others.

    Raises MinibertError where more than one fits.
    """
    fitting = [
        one.name
        for one in SIGNATURES.values()
        if one.known_by and one.known_by <= set(names) and one.never not in names
    ]
    if len(fitting) > 1:
        raise MinibertError(
            f"its parameters are those of {' and of '.join(fitting)}; say which: --signature NAME"
        )
    plain = tuple(names[:3]) == ("q", "k", "v") or (set(names) & set(SYNONYMS)) - {*_OURS}
    return fitting[0] if fitting else "plain" if plain else "minibert"


_OURS = ("lengths", "causal", "scale", *_FIELDS, "packed", "packed_keys")
_MASKABLE = ("causal", "lengths", "mask", "window", "prefix")
_FLASH = {
    "causal": "causal",
    "scale": "softmax_scale",
    "window": "window_size",
    "soft_cap": "softcap",
    "alibi_slopes": "alibi_slopes",
}
_INFER = {"scale": "sm_scale", "window": "window_left", "soft_cap": "logits_soft_cap"}
_PACKED = {"packed": "", "packed_keys": ""}

SIGNATURES = {
    one.name: one
    for one in (
        Signature(
            "minibert",
            'f(query, key, value, lengths, causal, ...) -> {"z": z, "lse": lse, ...}',
            frozenset(),
            {name: name for name in _OURS},
            by_name,
            z_of_dictionary,
            unread=("lengths", "causal"),
        ),
        Signature(
            "plain",
            "f(q, k, v) -> z, if it likes with causal or is_causal, scale or sm_scale",
            frozenset(),
            {name: name for name in _OURS},
            by_synonym,
            first,
            unread=(),
        ),
        Signature(
            "flash-attn",
            "flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, "
            "alibi_slopes, ...) -> z, all (batch, position, head, d_head)",
            frozenset({"softmax_scale", "window_size"}),
            _FLASH,
            flash,
            by_position,
            never="cu_seqlens_q",
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flash-attn-varlen",
            "flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, "
            "max_seqlen_k, ...) -> z, all (token, head, d_head)",
            frozenset({"cu_seqlens_q", "cu_seqlens_k"}),
            _FLASH | _PACKED,
            flash_varlen,
            by_token,
            layout="packed",
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flashinfer-prefill",
            "single_prefill_with_kv_cache(q, k, v, causal, sm_scale, window_left, "
            "logits_soft_cap, ...) -> z, of one sentence, all (position, head, d_head)",
            frozenset({"custom_mask", "kv_layout"}),
            _INFER | _PACKED | {"causal": "causal"},
            flashinfer_prefill,
            sentences_of_tokens,
            layout="packed",
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flashinfer-decode",
            "single_decode_with_kv_cache(q, k, v, sm_scale, window_left, logits_soft_cap, ...) "
            "-> z, of one query (head, d_head) and keys (position, head, d_head)",
            frozenset({"kv_layout", "use_tensor_cores"}),
            # The last query sees all keys in causal order too.
            _INFER | _PACKED | {"causal": ""},
            flashinfer_decode,
            sentences_of_one_token,
            layout="packed",
            one_query=True,
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flex",
            "flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa) -> z",
            frozenset({"score_mod", "block_mask"}),
            dict.fromkeys(_MASKABLE, "block_mask")
            | dict.fromkeys(("bias", "alibi_slopes", "soft_cap"), "score_mod")
            | {"scale": "scale"},
            flex,
            first,
            shapes=_SHAPES,
        ),
        Signature(
            "sdpa",
            "scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, "
            "scale, enable_gqa) -> z",
            frozenset({"attn_mask", "is_causal"}),
            dict.fromkeys((*_MASKABLE, "bias", "alibi_slopes"), "attn_mask") | {"scale": "scale"},
            sdpa,
            first,
            shapes=_SHAPES,
        ),
        Signature(
            "transformers",
            "eager_attention_forward(module, query, key, value, attention_mask, scaling, ...) "
            "-> (z as (batch, position, head, d_head), weights)",
            frozenset({"module", "attention_mask"}),
            dict.fromkeys(("causal", "window", "prefix"), "attention_mask")
            | {"scale": "scaling", "soft_cap": "softcap", "sinks": "s_aux"},
            transformers,
            by_position,
            shapes=frozenset({"groups"}),
        ),
    )
}
