"""What TransformerLens' names stand for in a model: the points of the cache in lens_names.py.

A model has the names of the parts that it has: as its config says, since a trace may be without
its weights. Where the norms follow the sum with the stream (BERT) the names are HookedEncoder's,
elsewhere HookedTransformer's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from minibert.kernels.eager import soft_capped
from minibert.layers.config import Config
from minibert.layers.heads import VocabularyHead
from minibert.quantities import Float, Hidden, Matrix
from minibert.text.inputs import Inputs
from minibert.trace.layer_view import (
    LayerTrace,
    ReadableTrace,
    divisors_of_final,
    divisors_of_layer,
    normed_in_layer,
)
from minibert.trace.lens_norms import in_layer, norm_points

__all__ = ["CachedTrace", "Reader", "point_names", "readers"]

Stream = Float[Tensor, "batch position width"]
Vectors = Float[Tensor, "batch some_head position width"]
PositionFirst = Float[Tensor, "batch position some_head width"]
Reader = Callable[[], Tensor]


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
OfLayer = Callable[[LayerTrace], Tensor]


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
