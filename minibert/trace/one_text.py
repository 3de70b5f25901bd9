"""One sentence of a trace, cut out of the batch: no padding, and no neighbours."""

from dataclasses import fields, replace
from typing import TypeVar

from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics, attend
from minibert.layers.evaluation import Evaluation
from minibert.quantities import QUANTITIES
from minibert.text.inputs import Inputs
from minibert.trace.asked_statistics import of_one_sentence
from minibert.trace.pass_record import PassRecord
from minibert.trace.places import Places, check_index

__all__ = ["text_of"]

Record = TypeVar("Record", bound=PassRecord)


def text_of(trace: Record, index: int) -> Record:
    """The trace of one sentence of a batch, padded or packed; views of what is there.

    The statistic map of a sentence shorter than the batch is computed again.
    """
    places = Places.of(trace.allowed)
    index = check_index("text", index, len(places.lengths))
    length = places.lengths[index]
    row, where = places.index(index, range(length))
    span = slice(where[0], where[0] + length)
    tokens = trace.tokens[index]
    allowed = AllowedKeys(1, length, trace.allowed.device, trace.allowed.causal)
    again = type(trace)(
        trace.model,
        Inputs(tokens.ids, None, tokens.segments, tokens, _embeds(trace, index, length)),
        Evaluation(allowed, trace.evaluation.impl, of_one_sentence(trace.evaluation, index)),
        until=trace.until,
    )
    again.edited_from, again.autocast = trace.edited_from, trace.autocast
    again.records = [
        {name: _cut(value, QUANTITIES[name].axes, row, span) for name, value in kept.items()}
        for kept in trace.records
    ]
    again.statistics = [
        None if found is None else _cut_statistics(found, row, span) for found in trace.statistics
    ]
    for name, value in trace.kept.items():
        of_text = name == "logits" and value.shape[:2] != trace.kept["embed"].shape[:2]
        of_text = of_text or name == "pooled"
        axes = ("batch",) if of_text else ("batch", "position")
        again.kept[name] = _cut(value, axes, index if of_text else row, span)
    if "map" in trace.evaluation.want and length != trace.allowed.position:
        _map_alone(again)
    return again


def _embeds(trace: PassRecord, index: int, length: int) -> Tensor | None:
    embeds = trace.inputs.embeds
    return None if embeds is None else embeds[index : index + 1, :length]


def _map_alone(text: PassRecord) -> None:
    """Compute the map again, whose blocks are cut by the length of the longest sentence."""
    want = (("map", *text.evaluation.want["map"]),)
    for layer, found in enumerate(text.statistics):
        if found is not None:
            query, key = (text.read(name, layer).detach() for name in ("query", "key"))
            options = text.config.attend_options(layer)
            alone = attend(query, key, key, impl=text.evaluation.impl, want=want, **options)
            assert alone.statistics is not None
            text.statistics[layer] = replace(found, map=alone.statistics.map)


def _cut(value: Tensor, axes: tuple[str, ...], row: int, span: slice) -> Tensor:
    index = {"batch": slice(row, row + 1), "position": span, "query": span, "key": span}
    return value[tuple(index.get(axis, slice(None)) for axis in axes)]


def _cut_statistics(found: Statistics, row: int, span: slice) -> Statistics:
    axes = {"received": ("batch", "head", "key"), "map": ("batch",)}
    numbers = {each.name: getattr(found, each.name) for each in fields(found)}
    return Statistics(
        **{
            name: None
            if value is None
            else _cut(value, axes.get(name, ("batch", "head", "query")), row, span)
            for name, value in numbers.items()
        }
    )
