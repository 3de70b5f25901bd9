"""The figure of any Result, chosen by the axes that are left when places on the others are chosen.

one axis        bars: tokens in their order, parts by size; singular values as a line, complex
                numbers in the plane
two axes        a heat map: layer x head, query x key, layer x token
three and four  a small map for each head, or a heat map for each pattern
rank            the tokens of a lens, written into the cells of their probabilities
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from minibert.analysis.lens import LogitLens
from minibert.errors import TraceError, check_index
from minibert.result import Result
from minibert.viz.plots.panels import (
    Heat,
    eigenvalue_plane,
    head_grid,
    heat_maps,
    lens_table,
    parts,
    spectrum,
    token_bars,
)
from minibert.viz.plots.sheet import (
    Figure,
    Output,
    array,
    sheet,
)

Choice = int | str | None
_OF_TOKENS = ("position", "query", "key")
# Where an axis is cut to one place unless somebody chooses another.
_USUAL = {"rank": 0}


@dataclass(frozen=True)
class _Cut:
    """The numbers that are left, with a label for each place on each axis that is left."""

    result: Result[Tensor]
    values: np.ndarray
    axes: tuple[str, ...]
    labels: Mapping[str, Sequence[str]]
    title: str
    sentence: int
    tokens: str
    """The axes of a heat map along which labels are tokens: "x" or "xy"."""


def drawn(
    result: Result[Tensor] | Sequence[Result[Tensor]],
    path: Output = None,
    *,
    count: int = 15,
    **choices: Choice,
) -> Figure:
    """The figure of a result, or of several with one axis beside each other.

    `choices` are places on axes, by number or label. Of a batch `sentence` is shown, the first
    unless chosen; None: the mean. `count` is how many parts have bars of their own.
    """
    if isinstance(result, Sequence):
        return _beside([_cut(each, {}) for each in result], path)
    cut = _cut(result, choices)
    form = len(cut.axes)
    if "rank" in result.axes and "row" in result.axes:
        rank = choices.get("rank")
        return _lens(cut, result.place("rank", 0 if rank is None else rank), path)
    if form == 1 and cut.axes[0] == "component":
        return _parts(cut, count, path)
    if form == 1:
        return _beside([cut], path)
    if form == 2 and not np.iscomplexobj(cut.values):
        return heat_maps([_heat(cut, cut.values)], path)
    if cut.axes[-2:] == ("query", "key"):
        return _grid(cut, path)
    if form == 3 and cut.axes[:2] == ("layer", "head") and cut.axes[2] in _OF_TOKENS:
        heads = [f"{n}-{h}" for n in cut.labels["layer"] for h in cut.labels["head"]]
        whole = replace(cut, axes=("head", cut.axes[2]), labels={**cut.labels, "head": heads})
        return heat_maps([_heat(whole, cut.values.reshape(len(heads), -1))], path)
    if form == 3 and not np.iscomplexobj(cut.values):
        return _maps(cut, path)
    left = " and ".join(cut.axes[:-2] or cut.axes[:1])
    raise TraceError(f"There is no picture of {', '.join(cut.axes)}; choose a place on {left}.")


def _cut(result: Result[Tensor], choices: Mapping[str, Choice]) -> _Cut:
    """The numbers at the chosen places, without padding."""
    values, axes, sentence = _of_sentence(result, choices.get("sentence", 0))
    tokens = result.tokens[sentence] if result.tokens else ()
    wanted = {
        axis: place for axis, place in choices.items() if axis != "sentence" and place is not None
    }
    usual = _USUAL | ({"position": -1} if "component" in axes else {})
    found = {}
    for axis, place in {**{a: p for a, p in usual.items() if a in axes}, **wanted}.items():
        if axis in _OF_TOKENS and tokens and axis in axes:
            found[axis] = check_index(axis, place, len(tokens))
        else:
            found[axis] = result.place(axis, place)
    whole = [slice(len(tokens)) if tokens and axis in _OF_TOKENS else slice(None) for axis in axes]
    labels = {axis: _labels(result, axis, tokens) for axis in axes}
    left = tuple(axis for axis in axes if axis not in found)
    along = "".join(name for name, axis in zip("yx", left[-2:], strict=False) if axis in _OF_TOKENS)
    return _Cut(
        result=result,
        values=values[tuple(found.get(axis, all_) for axis, all_ in zip(axes, whole, strict=True))],
        axes=left,
        labels=labels,
        title=_title(result, sentence, {axis: labels[axis][found[axis]] for axis in wanted}),
        sentence=sentence,
        tokens=along if tokens and not set(_OF_TOKENS) & set(result.labels) else "",
    )


def _of_sentence(
    result: Result[Tensor], sentence: Choice
) -> tuple[np.ndarray, tuple[str, ...], int]:
    """The numbers of one sentence or the mean of all, their axes, and which sentence it is."""
    values, axes = array(result.values), tuple(axis for axis in result.axes if axis != "batch")
    if axes == result.axes:
        return values, axes, check_index("sentence", 0 if sentence is None else sentence, 1)
    batch = result.axes.index("batch")
    if sentence is not None:
        index = result.place("batch", sentence)
        return values.take(index, batch), axes, index
    if set(_OF_TOKENS) & set(axes):
        raise TraceError(
            "The positions of each sentence are other tokens, so they have no mean to draw; choose "
            "one, as plot(sentence=0)."
        )
    return values.mean(batch), axes, 0


def _title(result: Result[Tensor], sentence: int, chosen: dict[str, str]) -> str:
    """The title, with the sentence's own part and the places that were chosen."""
    own = result.labels.get("batch", ())
    title = f"{result.title} {own[sentence] if own else ''}".strip()
    if {"layer", "head"} <= set(chosen):
        chosen = {"head": f"{chosen['layer']}-{chosen['head']}"}
    return title + "".join(f", {axis} {name}" for axis, name in chosen.items())


def _labels(result: Result[Tensor], axis: str, tokens: Sequence[str]) -> Sequence[str]:
    if axis in result.labels:
        return [str(label) for label in result.labels[axis]]
    if axis in _OF_TOKENS and tokens:
        return tokens
    return [str(number) for number in range(result.sizes[axis])]


def _heat(cut: _Cut, values: np.ndarray, title: str | None = None) -> Heat:
    down, across = cut.axes[:2]
    vocabulary = down in cut.result.labels and across in cut.result.labels
    return Heat(
        values,
        rows=cut.labels[down],
        columns=cut.labels[across],
        title=cut.title if title is None else title,
        unit=cut.result.unit,
        row_title=down.replace("_", " "),
        column_title="" if cut.tokens == "x" else across.replace("_", " "),
        signed=cut.result.signed,
        limits=cut.result.limits,
        tokens=cut.tokens,
        vocabulary=vocabulary,
    )


def _maps(cut: _Cut, path: Output) -> Figure:
    """A heat map for each place on the last axis that was measured at all."""
    names = cut.labels[cut.axes[2]]
    measured = [n for n in range(len(names)) if np.isfinite(cut.values[..., n]).any()]
    if not measured:
        raise TraceError("Nothing was measured, so there is nothing to draw.")
    return heat_maps([_heat(cut, cut.values[..., n], names[n]) for n in measured], path)


def _grid(cut: _Cut, path: Output) -> Figure:
    values = cut.values if cut.values.ndim == 4 else cut.values[None]
    layered = cut.values.ndim == 4
    return head_grid(
        values,
        rows=cut.labels[cut.axes[0]],
        names=[f"{cut.axes[-3]} {label}" for label in cut.labels[cut.axes[-3]]],
        title=cut.title if not layered else f"{cut.title}, every head",
        unit=cut.result.unit,
        signed=cut.result.signed,
        path=path,
    )


def _beside(cuts: Sequence[_Cut], path: Output) -> Figure:
    """Panels of one axis each."""
    with sheet(path) as figure:
        left = 0.0
        for cut in cuts:
            if cut.axes[0] in _OF_TOKENS:
                position = getattr(cut.result, "positions", None)
                outlined = None if position is None else position[cut.sentence]
                token_bars(
                    figure, left, cut.values, cut.labels[cut.axes[0]], cut.title, cut.result.unit,
                    outlined,
                )  # fmt: skip
            elif np.iscomplexobj(cut.values):
                eigenvalue_plane(figure, left, cut.values, cut.title)
            else:
                spectrum(figure, left, cut.values, cut.title, cut.result.unit)
            left += 3.45
    return figure


def _parts(cut: _Cut, count: int, path: Output) -> Figure:
    """Bars of the largest parts of a sum, with a map of the heads beside them, if any."""
    check_count(count)
    total = f"{cut.result.unit}; all of them {cut.values.sum():+.2f}"
    heads = _heads_of(cut)
    return parts(cut.values, cut.labels["component"], count, cut.title, total, heads, path)


def _heads_of(cut: _Cut) -> Heat | None:
    by_head = getattr(cut.result, "by_head", None)
    if by_head is None:
        return None
    values = by_head()
    values = values if values.dim() == 2 else values[cut.sentence]
    layers, heads = ([str(n) for n in range(size)] for size in values.shape)
    return Heat(
        values.numpy(force=True), layers, heads, title="Heads", unit=cut.result.unit,
        row_title="layer", column_title="head", signed=True,
    )  # fmt: skip


def _lens(cut: _Cut, rank: int, path: Output) -> Figure:
    lens: LogitLens = cut.result  # type: ignore[assignment]
    heat = replace(_heat(cut, cut.values), column_title="token", tokens="x")
    texts, positions = lens.texts(cut.sentence, rank), lens.positions[cut.sentence]
    return lens_table(heat, texts, positions, path)


def check_count(count: int) -> None:
    """Raise TraceError for what is no number of bars."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TraceError(f"count={count!r}: expected a whole number of at least 1.")
