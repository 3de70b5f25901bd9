"""The one loop over layers: plain forward, trace, rerun, sweep, generation, packed and training."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.bodies import Body, TaskHead
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation, Past
from minibert.layers.finite import check_logits, check_stream
from minibert.layers.layer import Change, LayerPass, layer_quantities
from minibert.layers.parts import divisor
from minibert.layers.readers import reached
from minibert.quantities import Float, Hidden, Pooled, TokenMask
from minibert.text.inputs import Inputs
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens


@runtime_checkable
class TracedModel(Protocol):
    """What a trace asks of the model it belongs to."""

    config: Config
    name: str
    body: Body
    head: TaskHead | None
    tokenizer: Tokenizer | None

    def inputs(self, text: Tokens) -> Inputs:
        """The batch of these tokens, checked against the model's limits."""

    def task_logits(self, hidden: Hidden, inputs: Inputs, pooled: Pooled | None = None) -> Tensor:
        """What the task head makes of the last hidden state, or of another pooled output."""

    def pool(self, hidden: Hidden) -> Tensor | None:
        """tanh(W·hidden[0] + b); None where the body has no pooler."""


def run_layers(
    body: Body,
    hidden: Hidden,
    evaluation: Evaluation,
    *,
    start: int = 0,
    stop: int | None = None,
    edits: Callable[[int], Mapping[str, Change]] = lambda layer: {},
    keep: Callable[[int], frozenset[str]] = lambda layer: frozenset(),
    known: Callable[[int], Mapping[str, Tensor]] = lambda layer: {},
    pasts: Sequence[Past] | None = None,
    rows: list[int] | None = None,
    visit: Callable[[LayerPass], None] | None = None,
) -> Float[Tensor, "batch row d_model"]:
    """What leaves the last of the layers from `start` up to `stop`, given what enters the first.

    `edits`, `keep` and `known` are asked for each layer. `known` are quantities that are not
    computed: no edit reaches them, or they stay as they are, or an edit changes them. `pasts` has
    the keys and values before those of each layer. Of the last layer only the `rows` are computed.
    `visit` gets every layer once it is computed.

    Raises MinibertError where numbers became NaN, infinite or too large, but not in training.
    """
    layers = body.layers[start:stop]
    for index, layer in enumerate(layers, start):
        at = LayerPass(
            layer,
            index,
            evaluation,
            known={**known(index), "resid_pre": hidden},
            edits=edits(index),
            keep=keep(index),
            past=None if pasts is None else pasts[index],
        )
        if rows is not None and index == start + len(layers) - 1:
            at = _of_rows(at, rows)
        hidden = layer(at)
        if visit is not None:
            visit(at)
    if not body.training:
        check_stream(hidden, evaluation.allowed)
    return hidden


def embedded(body: Body, inputs: Inputs, allowed: AllowedKeys) -> Hidden:
    """What enters layer 0; of packed sentences one row of all their tokens."""
    ids, segments = inputs.ids, inputs.segments
    if allowed.packed is None:
        return body.embed(ids, segments)
    real = _real(inputs)
    positions = body.positions(ids).expand(ids.shape)[real][None]
    segments = None if segments is None else segments[real][None]
    return body.embed(ids[real][None], segments, positions)


def behind_layers(
    model: TracedModel,
    hidden: Hidden,
    inputs: Inputs,
    allowed: AllowedKeys,
    changes: Mapping[str, Change],
) -> dict[str, Tensor]:
    """logits, and those of final_norm_scale and pooled that are in `changes`, after the changes."""
    found: dict[str, Tensor] = {}
    body, scale, divisors, pooled = model.body, "final_norm_scale", None, None
    if scale in changes and body.final_norm is not None:
        found[scale] = changes[scale](divisor(body.final_norm, hidden))
        # Computed twice: each of both has a gradient of its own.
        divisors = found[scale], divisor(body.final_norm, hidden)
    final = body.final(hidden, divisors)
    if "pooled" in changes:
        whole = model.pool(final)
        assert whole is not None, "a model without a pooler has no such quantity"
        found["pooled"] = pooled = changes["pooled"](whole)
    found["logits"] = logits_of(model, final, inputs, allowed, pooled)
    if "logits" in changes:
        found["logits"] = changes["logits"](found["logits"])
    return found


def logits_of(
    model: TracedModel,
    final: Hidden,
    inputs: Inputs,
    allowed: AllowedKeys,
    pooled: Pooled | None = None,
) -> Tensor:
    """What the task head makes of the final hidden state, or of another pooled output.

    Raises MinibertError for NaN and infinity, but not in training.
    """
    if allowed.packed is None:
        logits = model.task_logits(final, inputs, pooled)
    elif reads_single_positions(model.head):
        ids = inputs.ids[_real(inputs)][None]
        logits = final if model.head is None else model.head(final, None, ids, None)
    else:
        # These heads read single tokens of each sentence, and find them in the padded form.
        padded = final.new_zeros((*inputs.ids.shape, final.shape[-1]))
        padded[_real(inputs)] = final[0]
        logits = model.task_logits(padded, inputs)
    if not model.body.training:
        check_logits(logits, allowed)
    return logits


def reads_single_positions(head: TaskHead | None) -> bool:
    """True for a head whose logits of a token need that token's hidden state alone."""
    return head is None or head.reads == "each"


def _real(inputs: Inputs) -> TokenMask:
    """True where a real token is."""
    if inputs.mask is None:
        return torch.ones_like(inputs.ids, dtype=torch.bool)
    return inputs.mask


def unaffected(
    record: Mapping[str, Tensor], edited: Collection[str], config: Config, layer: int
) -> dict[str, Tensor]:
    """The part of a layer's record that does not depend on an edited quantity."""
    behind = reached(config, layer, edited)
    return {name: value for name, value in record.items() if name not in behind}


def kept_of(at: LayerPass, order: Collection[str], kept: Collection[str]) -> dict[str, Tensor]:
    """What a trace keeps of a layer: of the names in `order` the `kept` ones, and what was edited.

    `kept` ones that the pass had no need of are left out, for they are computed when read.
    """
    found = {}
    for name in order:
        value = at.__dict__.get(name)
        if name in at.edits or name in at.keep:
            found[name] = getattr(at, name) if value is None else value
        elif name in kept:
            value = at.known.get(name) if value is None else value
            if value is not None:
                found[name] = value
    return found


def _of_rows(at: LayerPass, rows: list[int]) -> LayerPass:
    """Compute some rows of the layer, from after its last edit."""
    for name in layer_quantities():
        if name in at.edits:
            getattr(at, name)
    if not at.given("z", "attn_out"):
        # Every position is looked at, whatever rows look.
        _ = at.key, at.value
    return at.of_rows(rows)
