"""TransformerLens' names, and what they stand for in a model.

whole_name   the full name of a shorthand, as ("pattern", 1) or "k3"
Slice        what is taken of one axis, in all the forms that its cache takes
readers      each name with what reads it from a trace; point_names, the names alone

A model has the names of the parts that it has: as its config says, since a trace may be without
its weights. Where the norms follow the sum with the stream (BERT) the names are HookedEncoder's,
elsewhere HookedTransformer's.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.errors import TraceError
from minibert.kernels.eager import soft_capped
from minibert.layers.config import Config
from minibert.layers.heads import VocabularyHead
from minibert.layers.norms import Norm, centred, deviation
from minibert.layers.parts import Layer
from minibert.quantities import Float, Hidden, Matrix
from minibert.text.inputs import Inputs
from minibert.trace.layer_view import (
    LayerTrace,
    ReadableTrace,
    divisors_of_final,
    divisors_of_layer,
    kept_scale,
    normed_in_layer,
)

Stream = Float[Tensor, "batch position width"]
At = TypeVar("At")
Vectors = Float[Tensor, "batch some_head position width"]
PositionFirst = Float[Tensor, "batch position some_head width"]
Reader = Callable[[], Tensor]
OfLayer = Callable[[LayerTrace], Tensor]

# Shorthands and the names they stand for, and the part of a layer that each name belongs to.
_SHORT = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_post": "post",
}
_LAYER_TYPES = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_ATTENTION = ("q", "k", "v", "rot_q", "rot_k", "z", "attn_scores", "pattern", "result")
_PLACES = dict.fromkeys(_ATTENTION, "attn") | dict.fromkeys(("pre", "pre_linear", "post"), "mlp")


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, because a mapping's `get` expects that."""

    # KeyError would print the message in quotes.
    __str__ = Exception.__str__


def whole_name(key: Any, n_layers: int) -> str | None:
    """The full name of (name, layer, layer_type), or of a string like "k3" or "scale0ln1".

    None for anything else. It follows TransformerLens' `utils.get_act_name`. Negative layers count
    from the end, as in its ActivationCache.
    """
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3:
        return None
    name, layer, layer_type = (*parts, None, None)[:3]
    if not isinstance(name, str) or not isinstance(layer_type, str | None):
        return None
    if layer is None and layer_type is None and ("." in name or name.startswith("hook_")):
        return name
    if written := re.match(r"([a-z]+)([0-9]+)(.*)", name):
        name, layer, layer_type = written[1], int(written[2]), written[3]
    if layer is not None:
        number = layer_number(layer)
        if number is None:
            return None
        layer = number + n_layers if number < 0 else number
    name = _SHORT.get(name, name)
    layer_type = _PLACES.get(name) or _LAYER_TYPES.get(layer_type, layer_type)
    before = "" if layer is None else f"blocks.{layer}."
    if layer is None and name in ("scale", "normalized"):
        before = "ln_final."
    return before + (f"{layer_type}." if layer_type else "") + f"hook_{name}"


def layer_number(value: Any) -> int | None:
    """The value as an int; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


class Slice:
    """What is taken of one axis.

    None takes all. An int takes one place and its axis goes. A tuple is (start, stop) or
    (start, stop, step). A list, an array or a tensor names the places.
    Raises TraceError for anything else.
    """

    def __init__(self, input_slice: Any = None) -> None:
        self.slice, self.mode = _read(input_slice)

    def apply(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensor at these places of the axis `dim`."""
        if self.mode == "identity":
            return tensor
        places: list[Any] = [slice(None)] * tensor.dim()
        places[dim] = self.slice
        return tensor[tuple(places)]

    def indices(self, max_ctx: int | None = None) -> NDArray[np.int64]:
        """The places taken of an axis of that size. An int needs no size."""
        if self.mode == "int":
            return np.array([self.slice], dtype=np.int64)
        if max_ctx is None:
            raise TraceError(f"{self!r}.indices() was called without the size of the axis.")
        return np.arange(max_ctx, dtype=np.int64)[self.slice]

    @property
    def keeping_axis(self) -> "Slice":
        """The same, but an int takes one place and its axis stays."""
        return Slice([self.slice]) if self.mode == "int" else self

    @classmethod
    def unwrap(cls, slice_input: Any) -> "Slice":
        """A Slice that keeps the axis, of whatever a slice can be given as."""
        return slice_input if isinstance(slice_input, Slice) else cls(slice_input).keeping_axis

    def __repr__(self) -> str:
        return f"Slice({self.slice!r})"


def as_slice(given: Any) -> Slice:
    """The Slice, made of what stands for one where it is none."""
    return given if isinstance(given, Slice) else Slice(given)


def _read(given: Any) -> tuple[Any, str]:
    if given is None:
        return slice(None), "identity"
    if isinstance(given, bool):
        raise TraceError(f"{given} is no slice; expected an int, list, tuple, slice or None.")
    if isinstance(given, int | np.integer):
        return int(given), "int"
    if isinstance(given, slice):
        return given, "slice"
    if isinstance(given, tuple) and len(given) <= 3:
        return slice(*given), "slice"
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy(), "array"
    if isinstance(given, np.ndarray):
        return given, "array"
    if isinstance(given, Sequence) and not isinstance(given, str | tuple):
        return np.array(given, dtype=np.int64 if not len(given) else None), "array"
    raise TraceError(
        f"{given!r:.80} is no slice; expected an int, a list of ints, (start, stop), a slice or "
        "None."
    )


# A trace, or one layer of it.


def _wide(x: Stream) -> Stream:
    """In float32 or wider, as in TransformerLens."""
    return x.float() if x.dtype.itemsize < 4 else x


def norm_points(
    name: str,
    find: Callable[[At], Norm | None],
    x: Callable[[At], Stream],
    edited: Callable[[At], Tensor | None] = lambda at: None,
) -> dict[str, Callable[[At], Tensor]]:
    """The two hooks of a norm, given how to find it, its input, and what an edit has it divide by.

    They are what it divides by, and what is divided before weight and bias.
    """

    def scale(at: At) -> Tensor:
        other = edited(at)
        return deviation(there(find(at)), _wide(x(at))) if other is None else _wide(other)

    def normalized(at: At) -> Tensor:
        return centred(there(find(at)), _wide(x(at))) / scale(at)

    return {f"{name}.hook_scale": scale, f"{name}.hook_normalized": normalized}


def there(norm: Norm | None) -> Norm:
    """The norm of a place that has one."""
    assert norm is not None, "a name is in the cache only where the config has such a norm"
    return norm


def weights_of(at: LayerTrace) -> Layer:
    """The parts of a layer."""
    return at.trace.model.body.layers[at.layer]


def in_layer(
    name: str, norm: str, x: Callable[[LayerTrace], Tensor]
) -> dict[str, Callable[[LayerTrace], Tensor]]:
    """The two hooks of a norm of a layer, given its input."""

    return norm_points(
        name, lambda at: getattr(weights_of(at), norm), x, lambda at: kept_scale(at, norm)
    )


@runtime_checkable
class CachedTrace(ReadableTrace, Protocol):
    """What the cache reads from a trace."""

    inputs: Inputs
    until: int | None
    kept: dict[str, Tensor]

    def __len__(self) -> int:
        """Layers that can be read."""

    def __iter__(self) -> Iterator[LayerTrace]:
        """The layers in order."""

    def __getitem__(self, layer: int, /) -> LayerTrace:
        """The quantities of a layer; negative numbers count back."""


OfTrace = Callable[[CachedTrace], Tensor]


def readers(trace: CachedTrace, attn_result: bool) -> Iterator[tuple[str, Reader]]:
    """Each name with what reads it, in the order of the data."""
    config = trace.config
    for name, of_trace in _before(config).items():
        yield name, partial(of_trace, trace)
    for layer in trace:
        for name, of_layer in _layer(config, layer.layer).items():
            if attn_result or name != "attn.hook_result":
                yield f"blocks.{layer.layer}.{name}", partial(of_layer, layer)
    if trace.until is None:
        for name, of_trace in _after(config).items():
            yield name, partial(of_trace, trace)


def point_names(config: Config) -> list[str]:
    """Every name that a model of this config has, in the order of the data."""
    layers = range(config.n_layers)
    of_layers = [f"blocks.{layer}.{name}" for layer in layers for name in _layer(config, layer)]
    return [*_before(config), *of_layers, *_after(config)]


def _words(trace: CachedTrace) -> Stream:
    body = trace.model.body
    return body.word(trace.inputs.ids) * body.word_scale


def _positions(trace: CachedTrace) -> Stream:
    body, ids = trace.model.body, trace.inputs.ids
    assert body.position is not None, "_before leaves this name out without such a table"
    return body.position(body.positions(ids)).expand(*ids.shape, -1)


def _segments(trace: CachedTrace) -> Stream:
    ids, segments = trace.inputs.ids, trace.inputs.segments
    table = trace.model.body.segment
    assert table is not None, "_before leaves this name out for a model without segments"
    return table(torch.zeros_like(ids) if segments is None else segments)


def _summed(trace: CachedTrace) -> Stream:
    summed = _words(trace)
    if trace.model.body.position is not None:
        summed = summed + _positions(trace)
    return summed if trace.model.body.segment is None else summed + _segments(trace)


def _last(trace: CachedTrace) -> Hidden:
    return trace[-1].resid_post


def _hidden(trace: CachedTrace) -> Hidden:
    return trace.model.body.final(_last(trace), divisors_of_final(trace, _last(trace)))


def _head(trace: CachedTrace) -> VocabularyHead:
    return cast(VocabularyHead, trace.model.head)


def _transformed(trace: CachedTrace) -> Stream:
    head = _head(trace)
    assert head.transform is not None
    return head.transform(_hidden(trace), activation=head.activation)


def _unembedded(trace: CachedTrace) -> Tensor:
    # In TransformerLens the soft cap comes behind this point.
    if trace.config.logit_soft_cap is None:
        return trace.kept["logits"]
    return _head(trace).uncapped(_hidden(trace))


def _position_first(vectors: Vectors) -> PositionFirst:
    return vectors.transpose(1, 2)


def _masked_scores(at: LayerTrace) -> Matrix:
    attention = at.trace.model.body.layers[at.layer].attention
    allowed = replace(at.trace.allowed, window=attention.window).full()
    return soft_capped(at.scores, attention.soft_cap).masked_fill(~allowed, float("-inf"))


def _projected(name: str) -> OfLayer:
    """query or key as W_Q or W_K gives it: before its norm and its rotation."""

    def read(at: LayerTrace) -> PositionFirst:
        layer = at.trace.model.body.layers[at.layer]
        linear, d_head = getattr(layer.attention, name), layer.attention.d_head
        divisors = divisors_of_layer(at, "attention_norm", at.resid_pre)
        return linear(layer.attention_input(at.resid_pre, divisors)).unflatten(-1, (-1, d_head))

    return read


def _query_key(config: Config) -> dict[str, OfLayer]:
    turned: dict[str, OfLayer] = {
        "q": lambda at: _position_first(at.query),
        "k": lambda at: _position_first(at.key),
    }
    unturned: dict[str, OfLayer] = {
        "q": lambda at: _position_first(at.query_unrotated),
        "k": lambda at: _position_first(at.key_unrotated),
    }
    if config.query_key_norm != "none":
        unturned = {"q": _projected("query"), "k": _projected("key")}
    elif config.rotary is None:
        unturned = turned
    found = {f"attn.hook_{name}": read for name, read in unturned.items()}
    found["attn.hook_v"] = lambda at: _position_first(at.value)
    if config.rotary is not None:
        found |= {f"attn.hook_rot_{name}": read for name, read in turned.items()}
    return found


def _attention(config: Config) -> dict[str, OfLayer]:
    normed = config.norm_place in ("output", "both")
    return {
        **_query_key(config),
        "attn.hook_attn_scores": _masked_scores,
        "attn.hook_pattern": lambda at: at.probs,
        "attn.hook_z": lambda at: _position_first(at.z),
        "attn.hook_result": lambda at: _position_first(at.head_out),
        # What is added to the stream.
        "hook_attn_out": lambda at: (
            normed_in_layer(at, "attention_output_norm", at.attn_out) if normed else at.attn_out
        ),
    }


def _mlp(config: Config) -> dict[str, OfLayer]:
    normed = config.norm_place in ("output", "both")
    pre: dict[str, OfLayer] = {"mlp.hook_pre": lambda at: at.mlp_pre}
    if config.gated:
        pre = {"mlp.hook_pre": lambda at: at.mlp_gate, "mlp.hook_pre_linear": lambda at: at.mlp_pre}
    return {
        **pre,
        "mlp.hook_post": lambda at: at.mlp_post,
        "hook_mlp_out": lambda at: (
            normed_in_layer(at, "mlp_output_norm", at.mlp_out) if normed else at.mlp_out
        ),
    }


def _layer(config: Config, layer: int) -> dict[str, OfLayer]:
    if not config.pre_norm:
        return _layer_of_encoder(config)

    def mlp_reads(at: LayerTrace) -> Hidden:
        return at.resid_pre if config.parallel else at.resid_mid

    place = config.norm_place
    first = last = first_out = last_out = dict[str, OfLayer]()
    if place != "output":
        last = in_layer("ln2", "mlp_norm", mlp_reads)
        if layer or config.first_norm:
            first = in_layer("ln1", "attention_norm", lambda at: at.resid_pre)
    if place != "before":
        # A norm of the output is ln1_post beside one in front of the block, and ln1 alone.
        post = "" if place == "output" else "_post"
        first_out = in_layer(f"ln1{post}", "attention_output_norm", lambda at: at.attn_out)
        last_out = in_layer(f"ln2{post}", "mlp_output_norm", lambda at: at.mlp_out)
    mid: dict[str, OfLayer] = {} if config.parallel else {"hook_resid_mid": lambda at: at.resid_mid}
    attention = _attention(config)
    out, mlp = attention.pop("hook_attn_out"), _mlp(config)
    return {
        "hook_resid_pre": lambda at: at.resid_pre,
        **first,
        **attention,
        **first_out,
        "hook_attn_out": out,
        **mid,
        **last,
        **mlp,
        **last_out,
        "hook_resid_post": lambda at: at.resid_post,
    }


def _layer_of_encoder(config: Config) -> dict[str, OfLayer]:
    """HookedEncoder's names.

    Here the stream between the blocks is the output of a LayerNorm. HookedEncoder's resid_mid and
    resid_post are the sums before the two LayerNorms; minibert's are the outputs of these.
    """

    def middle(at: LayerTrace) -> Hidden:
        return at.resid_pre + at.attn_out

    def end(at: LayerTrace) -> Hidden:
        return at.resid_mid + at.mlp_out

    return {
        "hook_resid_pre": lambda at: at.resid_pre,
        **_attention(config),
        "hook_resid_mid": middle,
        **in_layer("ln1", "attention_norm", middle),
        **_mlp(config),
        "hook_resid_post": end,
        **in_layer("ln2", "mlp_norm", end),
        "hook_normalized_resid_post": lambda at: at.resid_post,
    }


def _before(config: Config) -> dict[str, OfTrace]:
    prefix = "" if config.pre_norm else "embed."
    found: dict[str, OfTrace] = {f"{prefix}hook_embed": _words}
    if config.positions == "learned":
        found[f"{prefix}hook_pos_embed"] = _positions
    if config.n_segments:
        found[f"{prefix}hook_token_type_embed"] = _segments
    if config.embed_norm:
        found |= norm_points("embed.ln", lambda at: at.model.body.embed_norm, _summed)
        found["hook_full_embed"] = lambda trace: trace.kept["embed"]
    return found


def _after(config: Config) -> dict[str, OfTrace]:
    found: dict[str, OfTrace] = {}
    if config.final_norm:
        found |= norm_points(
            "ln_final",
            lambda at: at.model.body.final_norm,
            _last,
            lambda at: at.kept.get("final_norm_scale"),
        )
    # ELECTRA's pre-training head has no vocabulary: it says of each token whether it was replaced.
    vocabulary = config.task in ("masked-lm", "causal-lm") or (
        config.task == "pre-training" and config.family != "electra"
    )
    if vocabulary:
        if not config.generates:
            found |= norm_points("mlm_head.ln", lambda at: _head(at).norm, _transformed)
        found["unembed.hook_in"] = lambda trace: _head(trace).decoder_input(_hidden(trace))
        found["unembed.hook_out"] = _unembedded
    return found
