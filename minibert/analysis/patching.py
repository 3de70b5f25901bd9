"""Activation patching and ablation: an edit at every place of a model, and what it does.

All of it takes a batch of pairs of texts: sentence i of one trace goes with sentence i of the
other, and the result is their mean, with the sweep of each pair in `each`.

Sources: Vig et al. 2020, "Investigating gender bias in language models using causal mediation
analysis"; Meng et al. 2022, "Locating and editing factual associations in GPT"; Zhang and Nanda
2024, "Towards best practices of activation patching". The work is done by `Trace.rerun_each`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minibert.analysis.arguments import check_callable, check_trace, check_unedited, listed
from minibert.analysis.metrics import Metric, logit_difference, of_sentence
from minibert.analysis.positions import (
    Aligned,
    aligned_positions,
    check_same_lengths,
    real_tokens,
)
from minibert.analysis.sweeps import Sweep
from minibert.errors import EditError
from minibert.quantities import QUANTITIES
from minibert.trace.edit import Edit, replace, zero
from minibert.trace.places import Places, indices_of
from minibert.trace.read import Trace
from minibert.trace.sweep import called

__all__ = [
    "Sweep",
    "ablate_heads",
    "logit_difference",
    "patch_head_positions",
    "patch_heads",
    "patch_positions",
]

Edits = Sequence[dict[Any, Any]]


def ablate_heads(
    trace: Trace,
    metric: Metric,
    *,
    edit: Edit = zero,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Sweep:
    """The metric with z of each head edited alone, (layer, head): by default zero ablation.

    `metric` is given logits and returns a number for the sentence; `positions` are those of the
    logits that it reads, all when not given; `batch` edits run at once.
    """
    check_trace(trace)
    heads = range(trace.config.n_heads)

    def edits(own: Trace, _: Trace | None, sentence: int) -> Edits:
        return [
            {("z", layer, head): edit} for layer in range(own.config.n_layers) for head in heads
        ]

    columns = tuple(f"head {head}" for head in heads)
    return _sweep(trace, None, edits, metric, _layers(trace), lambda _: columns, positions, batch)


def patch_heads(
    trace: Trace,
    source: Trace,
    metric: Metric,
    *,
    name: str = "z",
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Sweep:
    """The metric with `name` of each head taken from another trace, (layer, head).

    The two inputs have the same length; `name` is a quantity with a head axis: z, query, key,
    value, scores, probs. key and value have a column for each key-value head, of which there are
    fewer where several heads share one. A head is patched at every token; `positions` are those of
    the logits that the metric reads.
    """
    check_same_lengths(trace, source)
    heads = _heads_of(trace, name)

    def edits(own: Trace, theirs: Trace | None, sentence: int) -> Edits:
        layers = range(own.config.n_layers)
        return [{(name, layer, head): replace(theirs)} for layer in layers for head in heads]

    columns = tuple(f"head {head}" for head in heads)
    return _sweep(trace, source, edits, metric, _layers(trace), lambda _: columns, positions, batch)


def patch_positions(
    trace: Trace,
    source: Trace,
    metric: Metric,
    *,
    name: str = "resid_post",
    aligned: Aligned | None = None,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Sweep:
    """The metric with `name` of each layer taken from another trace at one token, (layer, token).

    `positions` are those of the logits that the metric reads; every token is patched. Pairs of
    several lengths have no tokens in common: `aligned={"subject": [[2, 3], [2]], "end": -1}` names
    places instead, each with its positions in every sentence, or one position for all sentences.
    """
    check_same_lengths(trace, source)
    _check_positions_of(name, trace)
    columns, places = _columns(trace, aligned)

    def edits(own: Trace, theirs: Trace | None, sentence: int) -> Edits:
        return [
            {(name, layer): replace(theirs, positions=where)}
            for layer in range(own.config.n_layers)
            for where in places(sentence)
        ]

    return _sweep(trace, source, edits, metric, _layers(trace), columns, positions, batch)


def patch_head_positions(
    trace: Trace,
    source: Trace,
    metric: Metric,
    *,
    name: str = "z",
    layers: Sequence[int] | None = None,
    aligned: Aligned | None = None,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Sweep:
    """The metric with `name` of each head taken from another trace at one token, (head, token).

    Rows are the heads of `layers`, all when not given, as "layer-head". It costs a pass for every
    head and token: `attribution_patching` says first which layers are worth it. `name` has heads
    and positions: z, query, key, value. `aligned` as in `patch_positions`.
    """
    check_same_lengths(trace, source)
    heads = _heads_of(trace, name)
    _check_positions_of(name, trace)
    given = slice(None) if layers is None else listed(layers, "layers", EditError, "layers, as [0]")
    chosen = indices_of(given, trace.config.n_layers, "layer", EditError)
    columns, places = _columns(trace, aligned)
    rows = tuple(f"{layer}-{head}" for layer in chosen for head in heads)

    def edits(own: Trace, theirs: Trace | None, sentence: int) -> Edits:
        return [
            {(name, layer, head): replace(theirs, positions=where)}
            for layer in chosen
            for head in heads
            for where in places(sentence)
        ]

    return _sweep(trace, source, edits, metric, rows, columns, positions, batch)


def _heads_of(trace: Trace, name: str) -> range:
    if not isinstance(name, str) or name not in QUANTITIES or not QUANTITIES[name].per_head:
        raise EditError(f"{name!r:.80} has no heads; query, key, value, scores, probs, z have.")
    of_keys = "kv_head" in QUANTITIES[name].axes
    return range(trace.config.n_kv_heads if of_keys else trace.config.n_heads)


def _check_positions_of(name: str, trace: Trace) -> None:
    axes = QUANTITIES[name].axes if isinstance(name, str) and name in QUANTITIES else ()
    if "position" not in axes or not QUANTITIES[name].per_layer:
        raise EditError(
            f"{name!r:.80} has no positions; resid_pre, attn_out, mlp_out and others have."
        )


def _layers(trace: Trace) -> tuple[str, ...]:
    return tuple(f"layer {layer}" for layer in range(trace.config.n_layers))


def _columns(
    trace: Trace, aligned: Aligned | None
) -> tuple[Callable[[int], tuple[str, ...]], Callable[[int], Sequence[Any]]]:
    """The names of a sentence's columns, and the positions of each of them."""
    lengths = real_tokens(trace)
    if aligned is not None:
        found = aligned_positions(trace, aligned)
        return lambda _: tuple(found), lambda sentence: [each[sentence] for each in found.values()]
    if len(set(lengths)) > 1:
        raise EditError(
            f"The sentences have {', '.join(map(str, lengths))} tokens, so a column would be "
            'another token in each. Name places, as aligned={"subject": [2, 3], "end": -1}, or '
            "sweep sentences of one length."
        )
    strings = trace.tokens.strings

    def columns(sentence: int) -> tuple[str, ...]:
        return tuple(f"{n} {token}" for n, token in enumerate(strings[sentence]))

    return columns, lambda sentence: range(lengths[sentence])


def _sweep(
    trace: Trace,
    source: Trace | None,
    edits: Callable[[Trace, Trace | None, int], Edits],
    metric: Metric,
    rows: tuple[str, ...],
    columns: Callable[[int], tuple[str, ...]],
    positions: Sequence[int] | None,
    batch: int,
) -> Sweep:
    """The mean of the sweeps of every sentence, whose edits are made of its own two traces."""
    check_callable(metric, "metric", EditError)
    check_unedited(trace)
    found = []
    for sentence in range(trace.allowed.batch):
        # Without padding, and without the other sentences: the batch is made of edits.
        own = trace.text(sentence)
        theirs = None if source is None else source.text(sentence)
        own_metric = of_sentence(metric, sentence)
        with torch.no_grad():
            values = own.rerun_each(
                edits(own, theirs, sentence), own_metric, positions=positions, batch=batch
            )
        found.append(
            Sweep(
                values=values[:, 0].unflatten(0, (len(rows), -1)),
                clean=_number(own, own_metric, positions),
                patched=None if theirs is None else _number(theirs, own_metric, positions),
                rows=rows,
                columns=columns(sentence),
            )
        )
    return Sweep.mean_of(found)


def _number(text: Trace, metric: Metric, positions: Sequence[int] | None) -> float:
    chosen = Places.of(text.allowed).positions(0, positions, error=EditError)
    return float(called(metric, text.logits[:, chosen], (0,))[0].detach())
