"""The points of a model by TransformerLens' names: one table.

From it follow what a cache reads from a trace (`readers`), what a hook edits and at which module
it listens (hook_edits.py), and the tree of parts (modules.py). A model has the names of the parts
that it has: as its config says, since a trace may be without its weights. The names are those of
HookedTransformer, which is for decoders whose norms do not follow the sum with the stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor

from minibert.kernels.eager import soft_capped
from minibert.layers.config import Config
from minibert.layers.heads import VocabularyHead
from minibert.layers.norms import Norm, centred, deviation
from minibert.quantities import Float, Hidden
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


@dataclass(frozen=True)
class Point(Generic[At]):
    """What stands behind a name.

    read      its tensor in a trace, or in a layer of one
    edits     the quantity that a hook edits; "" where it listens at a module instead
    by_head   its positions stand in front of a head axis
    norm      the norm that it listens at, by its attribute; "" for none
    """

    read: Callable[[At], Tensor]
    edits: str = ""
    by_head: bool = False
    norm: str = ""


OfLayer = dict[str, Point[LayerTrace]]
OfTrace = dict[str, Point[CachedTrace]]


def readers(trace: CachedTrace) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Each name with what reads it, in the order of the data."""
    config = trace.config
    for name, point in before_layers(config).items():
        yield name, partial(point.read, trace)
    for layer in trace:
        for name, of_layer in layer_points(config).items():
            yield f"blocks.{layer.layer}.{name}", partial(of_layer.read, layer)
    if trace.until is None:
        for name, point in behind_layers(config).items():
            yield name, partial(point.read, trace)


def layer_points(config: Config) -> OfLayer:
    """The points of a layer, in the order of the data."""
    place, stream = config.norm_place, "resid_pre" if config.parallel else "resid_mid"
    first, last, first_out, last_out = OfLayer(), OfLayer(), OfLayer(), OfLayer()
    if place != "output":
        last = _norm("ln2", "mlp_norm", lambda at: at.quantity(stream))
        first = _norm("ln1", "attention_norm", lambda at: at.resid_pre)
    if place != "before":
        # A norm of the output is ln1_post beside one in front of the block, and ln1 alone.
        post = "" if place == "output" else "_post"
        first_out = _norm(f"ln1{post}", "attention_output_norm", lambda at: at.attn_out)
        last_out = _norm(f"ln2{post}", "mlp_output_norm", lambda at: at.mlp_out)
    mid = {} if config.parallel else {"hook_resid_mid": _plain("resid_mid")}
    return {
        "hook_resid_pre": _plain("resid_pre"),
        **first,
        **_attention(config),
        **first_out,
        "hook_attn_out": _added(config, "attention", "attn_out"),
        **mid,
        **last,
        **_mlp(config),
        **last_out,
        "hook_resid_post": _plain("resid_post"),
    }


def _plain(name: str) -> Point[LayerTrace]:
    """A quantity as it is."""
    return Point(lambda at: at.quantity(name), name)


def _heads(name: str) -> Point[LayerTrace]:
    """A quantity with its heads behind its positions."""
    return Point(lambda at: at.quantity(name).transpose(1, 2), name, by_head=True)


def _added(config: Config, block: str, name: str) -> Point[LayerTrace]:
    """What a block adds to the stream: behind the norm of its output, where it has one."""
    norm = f"{block}_output_norm"
    if config.norm_place not in ("output", "both"):
        return _plain(name)
    return Point(lambda at: normed_in_layer(at, norm, at.quantity(name)), norm=norm)


def _attention(config: Config) -> OfLayer:
    turned = config.rotary is not None
    found = OfLayer()
    for short, name in (("q", "query"), ("k", "key")):
        before = f"{name}_unrotated" if turned else name
        normed = config.query_key_norm != "none"
        found[f"attn.hook_{short}"] = _projected(name) if normed else _heads(before)
    found["attn.hook_v"] = _heads("value")
    if turned:
        found |= {"attn.hook_rot_q": _heads("query"), "attn.hook_rot_k": _heads("key")}
    return {
        **found,
        "attn.hook_attn_scores": Point(_masked_scores),
        "attn.hook_pattern": _plain("probs"),
        "attn.hook_z": _heads("z"),
        "attn.hook_result": _heads("head_out"),
    }


def _projected(name: str) -> Point[LayerTrace]:
    """query or key as W_Q or W_K gives it: before its norm and its rotation."""

    def read(at: LayerTrace) -> Tensor:
        layer = at.trace.model.body.layers[at.layer]
        linear, d_head = getattr(layer.attention, name), layer.attention.d_head
        divisors = divisors_of_layer(at, "attention_norm", at.resid_pre)
        return linear(layer.attention_input(at.resid_pre, divisors)).unflatten(-1, (-1, d_head))

    return Point(read, by_head=True)


def _masked_scores(at: LayerTrace) -> Tensor:
    attention = at.trace.model.body.layers[at.layer].attention
    allowed = replace(at.trace.allowed, window=attention.window).full()
    return soft_capped(at.scores, attention.soft_cap).masked_fill(~allowed, float("-inf"))


def _mlp(config: Config) -> OfLayer:
    pre = {"mlp.hook_pre": _plain("mlp_pre")}
    if config.gated:
        pre = {"mlp.hook_pre": _plain("mlp_gate"), "mlp.hook_pre_linear": _plain("mlp_pre")}
    added = _added(config, "mlp", "mlp_out")
    return {**pre, "mlp.hook_post": _plain("mlp_post"), "hook_mlp_out": added}


def _norm(name: str, norm: str, x: Callable[[LayerTrace], Tensor]) -> OfLayer:
    """The two points of a norm of a layer, given its input."""
    return _norm_points(
        name,
        norm,
        lambda at: getattr(at.trace.model.body.layers[at.layer], norm),
        x,
        lambda at: kept_scale(at, norm),
    )


def _norm_points(
    name: str,
    norm: str,
    find: Callable[[At], Norm | None],
    x: Callable[[At], Stream],
    edited: Callable[[At], Tensor | None] = lambda at: None,
) -> dict[str, Point[At]]:
    """The two points of a norm, given how to find it, its input, and what an edit divides it by.

    They are what it divides by, and what is divided before weight and bias.
    """

    def scale(at: At) -> Tensor:
        other = edited(at)
        return deviation(cast(Norm, find(at)), wide(x(at))) if other is None else wide(other)

    def normalized(at: At) -> Tensor:
        return centred(cast(Norm, find(at)), wide(x(at))) / scale(at)

    points = {"scale": scale, "normalized": normalized}
    return {f"{name}.hook_{each}": Point(read, norm=norm) for each, read in points.items()}


def wide(x: Tensor) -> Tensor:
    """In float32 or wider, as in TransformerLens."""
    return x.float() if x.dtype.itemsize < 4 else x


def before_layers(config: Config) -> OfTrace:
    """The points in front of layer 0."""
    found: OfTrace = {"hook_embed": Point(_words)}
    if config.positions == "learned":
        found["hook_pos_embed"] = Point(_positions)
    return found


def behind_layers(config: Config) -> OfTrace:
    """The points behind the last layer."""
    found: OfTrace = {}
    if config.final_norm:
        found |= _norm_points(
            "ln_final",
            "final_norm",
            lambda at: at.model.body.final_norm,
            lambda trace: trace[-1].resid_post,
            lambda at: at.kept.get("final_norm_scale"),
        )
    if config.generates:
        found["unembed.hook_in"] = Point(lambda trace: _head(trace).decoder_input(_hidden(trace)))
        found["unembed.hook_out"] = Point(_unembedded)
    return found


def _words(trace: CachedTrace) -> Tensor:
    body = trace.model.body
    return body.word(trace.inputs.ids) * body.word_scale


def _positions(trace: CachedTrace) -> Tensor:
    body, ids = trace.model.body, trace.inputs.ids
    assert body.position is not None, "a model without this table has no such name"
    return body.position(body.positions(ids)).expand(*ids.shape, -1)


def _hidden(trace: CachedTrace) -> Hidden:
    last = trace[-1].resid_post
    return trace.model.body.final(last, divisors_of_final(trace, last))


def _head(trace: CachedTrace) -> VocabularyHead:
    return cast(VocabularyHead, trace.model.head)


def _unembedded(trace: CachedTrace) -> Tensor:
    # In TransformerLens the soft cap comes behind this point.
    if trace.config.logit_soft_cap is None:
        return trace.kept["logits"]
    return _head(trace).uncapped(_hidden(trace))
