"""A trace by the names of TransformerLens: the cache of its `run_with_cache`, computed when read.

`trace.to_transformer_lens()` makes it; docs/transformer_lens.md has the table of names. Names, axes
and numbers are those of HookedTransformer (GPT-2) and HookedEncoder (BERT) with the processing of
weights off.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.heads import VocabularyHead
from minibert.layers.norms import LayerNorm
from minibert.quantities import Float, HeadVectors, Hidden, Matrix
from minibert.text.inputs import Inputs
from minibert.trace.layer_view import LayerTrace, ReadableTrace
from minibert.trace.lens_shorthands import layer_number, whole_name

__all__ = ["TransformerLensCache"]

Stream = Float[Tensor, "batch position width"]
PositionFirst = Float[Tensor, "batch position head width"]
Reader = Callable[[], Tensor]
# A trace, or one layer of it.
At = TypeVar("At")

if TYPE_CHECKING:
    Base = Mapping[str, Tensor]
    Whole = int
else:
    # Without type arguments: a run-time type checker would read an item to check it, and so
    # compute it.
    Base = Mapping
    # `layer_number` checks it, with an error that says what was expected.
    Whole = object


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


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, because a mapping's `get` expects that."""

    # KeyError would print the message in quotes.
    __str__ = Exception.__str__


class TransformerLensCache(Base):
    """The quantities of a trace by TransformerLens' names, in the order of the data.

    Each quantity is computed when it is read, and is not stored.
    """

    def __init__(self, trace: CachedTrace, *, attn_result: bool = False) -> None:
        self.trace = trace
        self._readers: dict[str, Reader] = dict(_readers(trace, attn_result))

    def __getitem__(self, name: Any) -> Tensor:
        """The quantity of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) for an unknown name.
        """
        whole = self._whole(name)
        if whole not in self._readers:
            results = " attn.hook_result is there with attn_result=True."
            shown = f"{name!r:.80}" + ("" if whole in (name, None) else f" ({whole:.80})")
            raise UnknownNameError(
                f"{shown} is not a name of {self!r}; there are {', '.join(self._shown())}."
                + (results if whole is not None and whole.endswith("hook_result") else "")
            )
        return self._readers[whole]()

    def __contains__(self, name: object) -> bool:
        return self._whole(name) in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __repr__(self) -> str:
        return f"<{len(self)} quantities of {self.trace!r}, by TransformerLens' names>"

    def stack_activation(
        self, name: str, layer: Whole | None = -1, sublayer_type: str | None = None
    ) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers before `layer`, stacked; -1 or None means all layers.

        Raises TraceError (a KeyError too) for a name that no layer has and a layer beyond the end.
        """
        n_layers = len(self.trace)
        count = -1 if layer is None else layer_number(layer)
        count = n_layers if count == -1 else count
        if count is None or not 1 <= count <= n_layers:
            raise UnknownNameError(
                f"layer={layer!r:.80}: stack_activation stacks the layers before it; expected 1 to "
                f"{n_layers}, or -1 for all."
            )
        return torch.stack([self[name, number, sublayer_type] for number in range(count)])

    def _whole(self, name: Any) -> str | None:
        return whole_name(name, self.trace.config.n_layers)

    def _shown(self) -> Iterable[str]:
        return [name for name in self if not name.startswith("blocks.") or ".0." in name]


def _readers(trace: CachedTrace, attn_result: bool) -> Iterator[tuple[str, Reader]]:
    pre_norm = trace.config.pre_norm
    for name, of_trace in (_GPT2_BEFORE if pre_norm else _BERT_BEFORE).items():
        if trace.config.n_segments or name != "embed.hook_token_type_embed":
            yield name, partial(of_trace, trace)
    for layer in trace:
        for name, of_layer in (_GPT2_LAYER if pre_norm else _BERT_LAYER).items():
            if attn_result or name != "attn.hook_result":
                yield f"blocks.{layer.layer}.{name}", partial(of_layer, layer)
    if trace.until is None:
        has_unembedding = _has_unembedding(trace)
        for name, of_trace in (_GPT2_AFTER if pre_norm else _BERT_AFTER).items():
            if has_unembedding or name.startswith("ln_final"):
                yield name, partial(of_trace, trace)


def _has_unembedding(trace: CachedTrace) -> bool:
    task, family = trace.config.task, trace.config.family
    # ELECTRA's pre-training head has no vocabulary: it says of each token whether it was replaced.
    return task in ("masked-lm", "causal-lm") or (task == "pre-training" and family != "electra")


def _words(trace: CachedTrace) -> Stream:
    return trace.model.body.word(trace.inputs.ids)


def _positions(trace: CachedTrace) -> Stream:
    body, ids = trace.model.body, trace.inputs.ids
    count = torch.arange(ids.shape[1], device=ids.device)
    rows = count if trace.config.pre_norm else body.positions(ids)
    return body.position(rows).expand(*ids.shape, -1)


def _segments(trace: CachedTrace) -> Stream:
    ids, segments = trace.inputs.ids, trace.inputs.segments
    table = trace.model.body.segment
    # `_readers` leaves this name out for a model without segments.
    assert table is not None
    return table(torch.zeros_like(ids) if segments is None else segments)


def _summed(trace: CachedTrace) -> Stream:
    summed = _words(trace) + _positions(trace)
    return summed + _segments(trace) if trace.config.n_segments else summed


def _hidden(trace: CachedTrace) -> Hidden:
    return trace.model.body.final(trace[-1].resid_post)


def _transformed(trace: CachedTrace) -> Stream:
    head = cast(VocabularyHead, trace.model.head)
    assert head.transform is not None
    return head.transform(_hidden(trace), activation=head.activation)


def _head_norm(trace: CachedTrace) -> LayerNorm:
    norm = cast(VocabularyHead, trace.model.head).norm
    # Only GPT-2's head has no LayerNorm, and it has other names.
    assert norm is not None
    return norm


def _scale(norm: LayerNorm, x: Stream) -> Float[Tensor, "batch position 1"]:
    """sqrt(variance + eps), in float32 or wider, as in TransformerLens."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    return (wide.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()


def _normalized(norm: LayerNorm, x: Stream) -> Stream:
    """(x − mean) / scale, before the weight and bias of the LayerNorm are applied."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    return (wide - wide.mean(-1, keepdim=True)) / _scale(norm, x)


def _norm_points(
    name: str, norm: Callable[[At], LayerNorm], x: Callable[[At], Stream]
) -> dict[str, Callable[[At], Tensor]]:
    """The two hooks of a LayerNorm, given how to find it and its input."""
    return {
        f"{name}.hook_scale": lambda at: _scale(norm(at), x(at)),
        f"{name}.hook_normalized": lambda at: _normalized(norm(at), x(at)),
    }


def _layer_norm_points(
    name: str, norm: str, x: Callable[[LayerTrace], Stream]
) -> dict[str, OfLayer]:
    return _norm_points(name, lambda at: getattr(at.trace.model.body.layers[at.layer], norm), x)


def _position_first(vectors: HeadVectors) -> PositionFirst:
    return vectors.transpose(1, 2)


def _masked_scores(at: LayerTrace) -> Matrix:
    return at.scores.masked_fill(~at.trace.allowed.full(), float("-inf"))


_ATTENTION: dict[str, OfLayer] = {
    "attn.hook_q": lambda at: _position_first(at.query),
    "attn.hook_k": lambda at: _position_first(at.key),
    "attn.hook_v": lambda at: _position_first(at.value),
    "attn.hook_attn_scores": _masked_scores,
    "attn.hook_pattern": lambda at: at.probs,
    "attn.hook_z": lambda at: _position_first(at.z),
    "attn.hook_result": lambda at: _position_first(at.head_out),
    "hook_attn_out": lambda at: at.attn_out,
}
_MLP: dict[str, OfLayer] = {
    "mlp.hook_pre": lambda at: at.mlp_pre,
    "mlp.hook_post": lambda at: at.mlp_post,
    "hook_mlp_out": lambda at: at.mlp_out,
}
_GPT2_BEFORE: dict[str, OfTrace] = {"hook_embed": _words, "hook_pos_embed": _positions}
_GPT2_LAYER: dict[str, OfLayer] = {
    "hook_resid_pre": lambda at: at.resid_pre,
    **_layer_norm_points("ln1", "attention_norm", lambda at: at.resid_pre),
    **_ATTENTION,
    "hook_resid_mid": lambda at: at.resid_mid,
    **_layer_norm_points("ln2", "mlp_norm", lambda at: at.resid_mid),
    **_MLP,
    "hook_resid_post": lambda at: at.resid_post,
}
_GPT2_AFTER: dict[str, OfTrace] = {
    **_norm_points(
        "ln_final",
        lambda trace: cast(LayerNorm, trace.model.body.final_norm),
        lambda trace: trace[-1].resid_post,
    ),
    "unembed.hook_in": _hidden,
    "unembed.hook_out": lambda trace: trace.kept["logits"],
}
_BERT_BEFORE: dict[str, OfTrace] = {
    "embed.hook_embed": _words,
    "embed.hook_pos_embed": _positions,
    "embed.hook_token_type_embed": _segments,
    **_norm_points("embed.ln", lambda trace: cast(LayerNorm, trace.model.body.embed_norm), _summed),
    "hook_full_embed": lambda trace: trace.kept["embed"],
}
# In BERT the stream between the blocks is the output of a LayerNorm. HookedEncoder's resid_mid and
# resid_post are the sums before the two LayerNorms; minibert's are the outputs of these.
_BERT_LAYER: dict[str, OfLayer] = {
    "hook_resid_pre": lambda at: at.resid_pre,
    **_ATTENTION,
    "hook_resid_mid": lambda at: at.resid_pre + at.attn_out,
    **_layer_norm_points("ln1", "attention_norm", lambda at: at.resid_pre + at.attn_out),
    **_MLP,
    "hook_resid_post": lambda at: at.resid_mid + at.mlp_out,
    **_layer_norm_points("ln2", "mlp_norm", lambda at: at.resid_mid + at.mlp_out),
    "hook_normalized_resid_post": lambda at: at.resid_post,
}
_BERT_AFTER: dict[str, OfTrace] = {
    **_norm_points("mlm_head.ln", _head_norm, _transformed),
    "unembed.hook_in": lambda trace: _head_norm(trace)(_transformed(trace)),
    "unembed.hook_out": lambda trace: trace.kept["logits"],
}
