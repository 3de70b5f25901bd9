"""How a user's function is called: the calling conventions that people write attention in.

A convention says which options of a call it can tell a function, and turns a call into arguments
and what comes back into outputs. All that can be made before the clock starts is made in `bind`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from minibert.bench import calling
from minibert.errors import MinibertError
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload

#: The parameters of a function; None where it takes any, or where they cannot be read.
Names = frozenset[str] | None
_SHAPES = frozenset({"groups", "value_size"})
_FIELDS = ("window", "prefix", "soft_cap", "alibi_slopes", "sinks", "mask", "bias", "pages")


@dataclass(frozen=True)
class Signature:
    """A calling convention.

    says      what a function of it looks like, for people
    known_by  the parameters that no other convention has
    options   the parameter that tells an option of a call, by option; "" where it needs none
    bind      bind(function, problem, names) -> a call without arguments
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
    bind: Callable[[Callable[..., Any], Problem, Names], Callable[[], Any]]
    z: Callable[[Any, Problem], Tensor]
    layout: str = "padded"
    one_query: bool = False
    shapes: frozenset[str] = frozenset()
    never: str = ""
    unread: tuple[str, ...] | None = None

    def taken(self, names: Names) -> tuple[str, ...]:
        """The options of a call that a function with these parameters can be told."""
        if names is None:
            return tuple(self.options) if self.unread is None else self.unread
        known = names
        if not self.known_by:
            known = names | {calling.SYNONYMS.get(one, one) for one in names}
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


def parameter_names(function: Callable[..., Any]) -> Names:
    """The names of its parameters; None for a function written in C, or with `**rest`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return frozenset(parameters)


def guessed(function: Callable[..., Any]) -> str | None:
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
    plain = tuple(names[:3]) == ("q", "k", "v") or (set(names) & set(calling.SYNONYMS)) - {*_OURS}
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
            calling.by_name,
            calling.z_of_dictionary,
            unread=("lengths", "causal"),
        ),
        Signature(
            "plain",
            "f(q, k, v) -> z, if it likes with causal or is_causal, scale or sm_scale",
            frozenset(),
            {name: name for name in _OURS},
            calling.by_synonym,
            calling.first,
            unread=(),
        ),
        Signature(
            "flash-attn",
            "flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, "
            "alibi_slopes, ...) -> z, all (batch, position, head, d_head)",
            frozenset({"softmax_scale", "window_size"}),
            _FLASH,
            calling.flash,
            calling.by_position,
            never="cu_seqlens_q",
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flash-attn-varlen",
            "flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, "
            "max_seqlen_k, ...) -> z, all (token, head, d_head)",
            frozenset({"cu_seqlens_q", "cu_seqlens_k"}),
            _FLASH | _PACKED,
            calling.flash_varlen,
            calling.by_token,
            layout="packed",
            shapes=frozenset({"groups"}),
        ),
        Signature(
            "flashinfer-prefill",
            "single_prefill_with_kv_cache(q, k, v, causal, sm_scale, window_left, "
            "logits_soft_cap, ...) -> z, of one sentence, all (position, head, d_head)",
            frozenset({"custom_mask", "kv_layout"}),
            _INFER | _PACKED | {"causal": "causal"},
            calling.flashinfer_prefill,
            calling.sentences_of_tokens,
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
            calling.flashinfer_decode,
            calling.sentences_of_one_token,
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
            calling.flex,
            calling.first,
            shapes=_SHAPES,
        ),
        Signature(
            "sdpa",
            "scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, "
            "scale, enable_gqa) -> z",
            frozenset({"attn_mask", "is_causal"}),
            dict.fromkeys((*_MASKABLE, "bias", "alibi_slopes"), "attn_mask") | {"scale": "scale"},
            calling.sdpa,
            calling.first,
            shapes=_SHAPES,
        ),
        Signature(
            "transformers",
            "eager_attention_forward(module, query, key, value, attention_mask, scaling, ...) "
            "-> (z as (batch, position, head, d_head), weights)",
            frozenset({"module", "attention_mask"}),
            dict.fromkeys(("causal", "window", "prefix"), "attention_mask")
            | {"scale": "scaling", "soft_cap": "softcap", "sinks": "s_aux"},
            calling.transformers,
            calling.by_position,
            shapes=frozenset({"groups"}),
        ),
    )
}
