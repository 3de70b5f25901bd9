"""A trace under TransformerLens' names: what its `run_with_cache` gives, computed when it is read.

Place: `trace.to_transformer_lens()` is the door; docs/transformer_lens.md has the table of names.
Names, axes and numbers are those of HookedTransformer (GPT-2) and HookedEncoder (BERT) with the
processing of weights off.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import Float, HeadVectors, Matrix

__all__ = ["TransformerLensCache"]

# What `whole_name` replaces, and the part of a layer that a name is always of.
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
_PLACES = dict.fromkeys(("q", "k", "v", "z", "attn_scores", "pattern", "result"), "attn")
_PLACES |= dict.fromkeys(("pre", "post"), "mlp")

Stream = Float[Tensor, "batch position width"]
PositionFirst = Float[Tensor, "batch position head width"]
Reader = Callable[[], Tensor]

if TYPE_CHECKING:
    Base = Mapping[str, Tensor]
    Whole = int
else:
    # With its types in, a run-time type checker would read an item, and so compute it.
    Base = Mapping
    # Checked below, with an error that says what was expected.
    Whole = object


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, as a mapping's `get` expects."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class TransformerLensCache(Base):
    """The quantities of a trace by TransformerLens' names, in the order of the data.

    Nothing is computed before it is read, and nothing that is computed is kept.
    """

    def __init__(self, trace: Any, *, attn_result: bool = False) -> None:
        self.trace = trace
        self._readers: dict[str, Reader] = dict(_readers(trace, attn_result))

    def __getitem__(self, name: Any) -> Tensor:
        """The quantity of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) where there is none.
        """
        whole = self._whole(name)
        if whole not in self._readers:
            results = " With attn_result=True there is attn.hook_result as well."
            shown = f"{name!r:.80}" + ("" if whole in (name, None) else f" ({whole:.80})")
            raise UnknownNameError(
                f"{shown} is no name of {self!r}; there are {', '.join(self._shown())}."
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
        """One quantity of the layers before `layer`, the layer axis in front; -1 or None: of all.

        Raises TraceError (a KeyError too) for a name that no layer has and a layer beyond the end.
        """
        n_layers = len(self.trace)
        count = -1 if layer is None else _index(layer)
        count = n_layers if count == -1 else count
        if count is None or not 1 <= count <= n_layers:
            raise UnknownNameError(
                f"layer={layer!r:.80}: stack_activation takes the layers before it; expected 1 to "
                f"{n_layers}, or -1 for all."
            )
        return torch.stack([self[name, number, sublayer_type] for number in range(count)])

    def _whole(self, name: Any) -> str | None:
        return whole_name(name, self.trace.config.n_layers)

    def _shown(self) -> Iterable[str]:
        return [name for name in self if not name.startswith("blocks.") or ".0." in name]


def whole_name(key: Any, n_layers: int) -> str | None:
    """The name that (name, layer, layer_type), or a string like "k3" or "scale0ln1", is short for.

    None where it is neither name nor shorthand. As TransformerLens' `utils.get_act_name`, and as
    its ActivationCache for layers below 0, which count from the end.
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
        number = _index(layer)
        if number is None:
            return None
        layer = number + n_layers if number < 0 else number
    name = _SHORT.get(name, name)
    layer_type = _PLACES.get(name) or _LAYER_TYPES.get(layer_type, layer_type)
    before = "" if layer is None else f"blocks.{layer}."
    if layer is None and name in ("scale", "normalized"):
        before = "ln_final."
    return before + (f"{layer_type}." if layer_type else "") + f"hook_{name}"


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _readers(trace: Any, attn_result: bool) -> Iterator[tuple[str, Reader]]:
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


def _has_unembedding(trace: Any) -> bool:
    task, family = trace.config.task, trace.config.family
    # ELECTRA's pre-training says of each token whether it was replaced.
    return task in ("masked-lm", "causal-lm") or (task == "pre-training" and family != "electra")


def _words(trace: Any) -> Stream:
    return trace.model.body.word(trace.inputs.ids)


def _positions(trace: Any) -> Stream:
    body, ids = trace.model.body, trace.inputs.ids
    count = torch.arange(ids.shape[1], device=ids.device)
    rows = count if trace.config.pre_norm else body.positions(ids)
    return body.position(rows).expand(*ids.shape, -1)


def _segments(trace: Any) -> Stream:
    ids, segments = trace.inputs.ids, trace.inputs.segments
    return trace.model.body.segment(torch.zeros_like(ids) if segments is None else segments)


def _summed(trace: Any) -> Stream:
    summed = _words(trace) + _positions(trace)
    return summed + _segments(trace) if trace.config.n_segments else summed


def _transformed(trace: Any) -> Stream:
    head = trace.model.head
    return head.transform(trace.hidden, activation=head.activation)


def _scale(norm: Any, x: Stream) -> Float[Tensor, "batch position 1"]:
    """sqrt(variance + eps), in float32 at least, as it is there."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    return (wide.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()


def _normalized(norm: Any, x: Stream) -> Stream:
    """(x − mean) / scale: before the weight and bias of the LayerNorm."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    return (wide - wide.mean(-1, keepdim=True)) / _scale(norm, x)


def _norm_points(
    name: str, norm: Callable[[Any], Any], x: Callable[[Any], Stream]
) -> dict[str, Callable[[Any], Tensor]]:
    """The two hooks of a LayerNorm, given where it and its input are."""
    return {
        f"{name}.hook_scale": lambda at: _scale(norm(at), x(at)),
        f"{name}.hook_normalized": lambda at: _normalized(norm(at), x(at)),
    }


def _layer_norm_points(
    name: str, norm: str, x: Callable[[Any], Stream]
) -> dict[str, Callable[[Any], Tensor]]:
    return _norm_points(name, lambda at: getattr(at.trace.model.body.layers[at.layer], norm), x)


def _position_first(vectors: HeadVectors) -> PositionFirst:
    return vectors.transpose(1, 2)


def _masked_scores(at: Any) -> Matrix:
    return at.scores.masked_fill(~at.trace.mask, float("-inf"))


_ATTENTION: dict[str, Callable[[Any], Tensor]] = {
    "attn.hook_q": lambda at: _position_first(at.query),
    "attn.hook_k": lambda at: _position_first(at.key),
    "attn.hook_v": lambda at: _position_first(at.value),
    "attn.hook_attn_scores": _masked_scores,
    "attn.hook_pattern": lambda at: at.probs,
    "attn.hook_z": lambda at: _position_first(at.z),
    "attn.hook_result": lambda at: _position_first(at.head_out),
    "hook_attn_out": lambda at: at.attn_out,
}
_MLP: dict[str, Callable[[Any], Tensor]] = {
    "mlp.hook_pre": lambda at: at.mlp_pre,
    "mlp.hook_post": lambda at: at.mlp_post,
    "hook_mlp_out": lambda at: at.mlp_out,
}
_GPT2_BEFORE = {"hook_embed": _words, "hook_pos_embed": _positions}
_GPT2_LAYER = {
    "hook_resid_pre": lambda at: at.resid_pre,
    **_layer_norm_points("ln1", "attention_norm", lambda at: at.resid_pre),
    **_ATTENTION,
    "hook_resid_mid": lambda at: at.resid_mid,
    **_layer_norm_points("ln2", "mlp_norm", lambda at: at.resid_mid),
    **_MLP,
    "hook_resid_post": lambda at: at.resid_post,
}
_GPT2_AFTER = {
    **_norm_points(
        "ln_final", lambda trace: trace.model.body.final_norm, lambda trace: trace[-1].resid_post
    ),
    "unembed.hook_in": lambda trace: trace.hidden,
    "unembed.hook_out": lambda trace: trace.logits,
}
_BERT_BEFORE = {
    "embed.hook_embed": _words,
    "embed.hook_pos_embed": _positions,
    "embed.hook_token_type_embed": _segments,
    **_norm_points("embed.ln", lambda trace: trace.model.body.embed_norm, _summed),
    "hook_full_embed": lambda trace: trace.embed,
}
# There the stream between the blocks is what leaves a LayerNorm, and the sums before the two
# LayerNorms have the names that minibert gives to what leaves them.
_BERT_LAYER = {
    "hook_resid_pre": lambda at: at.resid_pre,
    **_ATTENTION,
    "hook_resid_mid": lambda at: at.resid_pre + at.attn_out,
    **_layer_norm_points("ln1", "attention_norm", lambda at: at.resid_pre + at.attn_out),
    **_MLP,
    "hook_resid_post": lambda at: at.resid_mid + at.mlp_out,
    **_layer_norm_points("ln2", "mlp_norm", lambda at: at.resid_mid + at.mlp_out),
    "hook_normalized_resid_post": lambda at: at.resid_post,
}
_BERT_AFTER = {
    **_norm_points("mlm_head.ln", lambda trace: trace.model.head.norm, _transformed),
    "unembed.hook_in": lambda trace: trace.model.head.norm(_transformed(trace)),
    "unembed.hook_out": lambda trace: trace.logits,
}
