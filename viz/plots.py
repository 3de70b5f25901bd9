"""Figures of any Result for print, by matplotlib, which the extra `plots` brings.

What is drawn follows from the axes that are left when places on the others are chosen:

one axis        bars: tokens in their order, parts by size; other numbers as a line
two axes        a heat map: layer x head, query x key, layer x token
three and four  a small map for each head, or a heat map for each pattern
rank            the tokens of a lens, written into the cells of their probabilities

Signed numbers go from red by white at 0 to blue, shares from white to dark blue; grey stands for no
number. Over queries and keys, where most numbers are faint, colour grows with the root of a share.
A figure is made without pyplot, so that no window, no back end and no global state has a part in
it. The style stands on top of the user's own matplotlib settings, whose fonts it keeps.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from minibert.analysis.lens import LogitLens
from minibert.errors import MinibertError, TraceError, check_index, how_to_install
from minibert.result import Result
from minibert.terminal import visible
from minibert.viz.document import write_bytes
from minibert.viz.payload import pool

if TYPE_CHECKING:
    from matplotlib import axes, figure

    Axes = axes.Axes
    Figure = figure.Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

Output = str | Path | None

INK, FAINT = "#222222", "#767676"
# Of Okabe and Ito's colours, which every kind of colour vision tells apart.
_BLUE, _RED = "#0072B2", "#D55E00"
_STYLE = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "font.size": 8.0,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 200.0,
    # Text stays text, so that it can be searched and set in another face.
    "svg.fonttype": "none",
    "svg.hashsalt": "minibert",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
# Without the date, so that the same numbers give the same bytes.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}


def _kind_of(output: str | Path) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def _needed_matplotlib() -> ModuleType:
    """matplotlib. Raises MinibertError, which names the extra to install, where it is absent."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MinibertError(
            f"plots need matplotlib, which cannot be imported ({error}); "
            f"install it: {how_to_install('plots')}. See docs/install.md#extras"
        ) from error
    return matplotlib


@contextmanager
def _sheet(output: Output, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches to draw on; it is saved where `output` is given.

    Raises MinibertError without matplotlib and for another kind of file, before
    anything is drawn.
    """
    if output is not None and _kind_of(output) not in _METADATA:
        raise MinibertError(f"cannot save {output}: expected a name ending in .svg, .pdf or .png")
    with _needed_matplotlib().rc_context(_STYLE):
        figure = _figure_class()(figsize=(width, height), layout="constrained")
        yield figure
        # Ticks are made when they are first drawn, with the settings of that moment.
        figure.draw_without_rendering()
        if output is not None:
            kind, content = _kind_of(output), io.BytesIO()
            figure.savefig(content, format=kind, metadata=_METADATA[kind])
            write_bytes(content.getvalue(), output)


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """A matplotlib Figure that a notebook shows; of others it does so once pyplot was imported."""
    from matplotlib.figure import Figure

    class ResultFigure(Figure):
        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=100)
            return content.getvalue()

    return ResultFigure


def plain(token: str, longest: int = 22) -> str:
    """A token as one short line without blanks around it, in which controls are written out."""
    shown = visible(token.strip(" "), space=" ") or "␣" * len(token)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _label_axis(panel: Axes, axis: str, labels: Sequence[str], inches: float) -> None:
    """Name the cells 0, 1, 2 ... along "x" or "y", as many of them as fit without touching.

    Where some are left out, each that is named has its number before it.
    """
    step = max(1, round(0.16 * len(labels) / inches + 0.49))
    ticks = range(0, len(labels), step)
    number = (lambda tick: f"{tick} ") if step > 1 else (lambda tick: "")
    named = [f"{number(tick)}{plain(labels[tick])}" for tick in ticks]
    # A dollar sign is a dollar sign.
    (panel.set_xticks if axis == "x" else panel.set_yticks)(ticks, named, parse_math=False)
    room = 14 * inches / len(labels) * step
    if axis == "x":
        panel.tick_params(axis="x", length=0, rotation=90 if max(map(len, named)) > room else 0)
    else:
        panel.tick_params(axis="y", length=0)


Choice = int | str | None
_OF_TOKENS = ("position", "query", "key")
# Inches of a cell at most, of a picture's side at least and at most, and of a small map's side.
_CELL, _LEAST, _MOST, _TILE = 0.42, 1.2, 6.6, 1.5
# Inches beside a picture for names and a colour bar.
_AROUND = 1.6
# Cells along a side of a small map; beyond them blocks are drawn as what is farthest from 0.
_FINEST = 128


@dataclass(frozen=True)
class _Cut:
    """The numbers that are left, with a label for each place on each axis that is left."""

    result: Result[Tensor]
    values: np.ndarray
    axes: tuple[str, ...]
    labels: Mapping[str, Sequence[str]]
    title: str
    sentence: int

    def named(self, axis: int) -> Sequence[str]:
        """The labels along an axis, by its place."""
        return self.labels[self.axes[axis]]


def drawn(
    result: Result[Tensor], path: Output = None, *, count: int = 15, **choices: Choice
) -> Figure:
    """The figure of a result.

    `choices` are places on axes, by number or label. Of a batch `sentence` is shown, the first
    unless chosen; None: the mean. `count` is how many parts have bars of their own.
    """
    cut = _cut(result, choices)
    form, axes = len(cut.axes), cut.axes
    if form == 1 and axes[0] == "component":
        return _parts(cut, count, path)
    if form == 1:
        return _line(cut, path)
    if form == 2:
        texts = None
        if isinstance(result, LogitLens):
            texts = result.texts(cut.sentence, result.place("rank", choices.get("rank") or 0))
        return _maps([cut], path, texts)
    if axes[-2:] == ("query", "key"):
        return _small_maps(cut, path)
    if form == 3 and axes[:2] == ("layer", "head") and axes[2] in _OF_TOKENS:
        heads = [f"{n}-{h}" for n in cut.named(0) for h in cut.named(1)]
        labels, values = {**cut.labels, "head": heads}, cut.values.reshape(len(heads), -1)
        return _maps([replace(cut, axes=axes[1:], labels=labels, values=values)], path)
    if form == 3:
        each = [
            replace(cut, axes=axes[:2], values=cut.values[..., n], title=name)
            for n, name in enumerate(cut.named(2))
            if np.isfinite(cut.values[..., n]).any()
        ]
        if not each:
            raise TraceError("Nothing was measured, so there is nothing to draw.")
        return _maps(each, path)
    left = " and ".join(axes[:-2] or axes[:1])
    raise TraceError(f"There is no picture of {', '.join(axes)}; choose a place on {left}.")


def _cut(result: Result[Tensor], choices: Mapping[str, Choice]) -> _Cut:
    """The numbers at the chosen places, without padding."""
    values, axes, sentence = _of_sentence(result, choices.get("sentence", 0))
    tokens = result.tokens[sentence] if result.tokens else ()
    wanted = {
        axis: place for axis, place in choices.items() if axis != "sentence" and place is not None
    }
    # Cut to one place unless somebody chooses another.
    usual: dict[str, int | str] = {"rank": 0} if "rank" in axes else {}
    usual |= {"position": -1} if {"component", "position"} <= set(axes) else {}
    found = {}
    for axis, place in (usual | wanted).items():
        if axis in _OF_TOKENS and tokens and axis in axes:
            found[axis] = check_index(axis, place, len(tokens))
        else:
            found[axis] = result.place(axis, place)
    whole = [slice(len(tokens)) if tokens and axis in _OF_TOKENS else slice(None) for axis in axes]
    labels = {axis: _labels(result, axis, tokens) for axis in axes}
    return _Cut(
        result,
        values[tuple(found.get(axis, all_) for axis, all_ in zip(axes, whole, strict=True))],
        tuple(axis for axis in axes if axis not in found),
        labels,
        _title(result, sentence, {axis: labels[axis][found[axis]] for axis in wanted}),
        sentence,
    )


def _of_sentence(
    result: Result[Tensor], sentence: Choice
) -> tuple[np.ndarray, tuple[str, ...], int]:
    """The numbers of one sentence or the mean of all, their axes, and which sentence it is."""
    values, axes = _array(result.values), tuple(axis for axis in result.axes if axis != "batch")
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


def _array(values: Tensor) -> np.ndarray:
    """The numbers on the host in double precision; nan for what is not finite."""
    host = values.detach().cpu()
    numbers = host.double().numpy()
    return np.where(np.isfinite(numbers), numbers, np.nan)


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


def _maps(cuts: Sequence[_Cut], path: Output, texts: list[list[str]] | None = None) -> Figure:
    """A figure of tables of one shape beside each other, on one scale of colours."""
    height, width = (
        min(_MOST, max(_LEAST, (0.6 if texts and axis else _CELL) * size))
        for axis, size in enumerate(cuts[0].values.shape)
    )
    limits = _limits(cuts[0].result, np.stack([cut.values for cut in cuts]))
    across = min(len(cuts), max(1, int(9 // width)))
    down = -(-len(cuts) // across)
    with _sheet(path, across * width + _AROUND, down * (height + 0.9)) as figure:
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel in panels[len(cuts) :]:
            panel.remove()
        panels = panels[: len(cuts)]
        for panel, cut in zip(panels, cuts, strict=True):
            _draw_map(panel, cut, limits, texts, (height, width))
        figure.colorbar(panels[0].images[0], ax=panels, label=cuts[0].result.unit)
    return figure


def _limits(result: Result[Tensor], values: np.ndarray) -> tuple[float, float]:
    """The numbers at both ends of the colours."""
    largest = float(np.nanmax(np.abs(values), initial=0)) or 1.0
    return result.limits or ((-largest, largest) if result.signed else (0.0, largest))


def _draw_map(
    panel: Axes,
    cut: _Cut,
    limits: tuple[float, float],
    texts: list[list[str]] | None = None,
    inches: tuple[float, float] = (_MOST, _MOST),
) -> None:
    image = panel.imshow(
        np.ma.masked_invalid(cut.values), cmap=_colours(limits), norm=_scale(cut, limits),
        aspect="auto",
    )  # fmt: skip
    for axis, place in (("x", 1), ("y", 0)):
        _label_axis(panel, axis, cut.named(place), inches[place])
    panel.set(xlabel=cut.axes[1].replace("_", " "), ylabel=cut.axes[0].replace("_", " "))
    panel.set_title(plain(cut.title, 90), parse_math=False)
    if max(cut.values.shape) * 0.3 > _MOST:
        return
    for (row, column), value in np.ndenumerate(cut.values):
        if np.isfinite(value):
            text = plain(texts[row][column], 9) if texts else _digits(value)
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            panel.text(
                column, row, text, color="white" if dark else INK, fontsize=6, ha="center",
                va="center", parse_math=False,
            )  # fmt: skip


def _digits(value: float) -> str:
    """A number in at most five characters where it has them."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    # Rounded first: there is no −0.00.
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def _colours(limits: tuple[float, float]) -> Any:
    from matplotlib import colormaps

    return colormaps["RdBu" if limits[0] < 0 else "Blues"].with_extremes(bad="#e4e4e4")


def _scale(cut: _Cut, limits: tuple[float, float]) -> Any:
    from matplotlib.colors import Normalize, PowerNorm

    faint = cut.axes[-2:] == ("query", "key") and limits[0] == 0
    return PowerNorm(0.5, *limits) if faint else Normalize(*limits)


def _small_maps(cut: _Cut, path: Output) -> Figure:
    """A small map of query and key for each head, a row a layer, in one image with grey between."""
    values = cut.values if cut.values.ndim == 4 else cut.values[None]
    values = _pooled(values)
    (L, H), (N, M) = values.shape[:2], values.shape[2:]
    gap = max(1, N // 24)
    canvas = np.full((L, H, N + gap, M + gap), np.nan)
    canvas[..., :N, :M] = values
    whole = canvas.transpose(0, 2, 1, 3).reshape(L * (N + gap), H * (M + gap))[:-gap, :-gap]
    limits = _limits(cut.result, values)
    side = min(_TILE, _MOST / max(L, H))
    with _sheet(path, H * side + _AROUND, L * side + 0.9) as figure:
        panel = figure.subplots()
        image = panel.imshow(
            np.ma.masked_invalid(whole), cmap=_colours(limits), norm=_scale(cut, limits)
        )
        named = cut.axes[-3]
        panel.set_xticks((M - 1) / 2 + (M + gap) * np.arange(H), cut.labels[named])
        panel.set_xlabel(named)
        layers = cut.named(0) if cut.values.ndim == 4 else ()
        panel.set_yticks((N - 1) / 2 + (N + gap) * np.arange(len(layers)), layers)
        panel.set_ylabel(cut.axes[0] if len(layers) else "")
        panel.set_title(plain(cut.title, 90), parse_math=False)
        figure.colorbar(image, ax=panel, label=cut.result.unit)
    return figure


def _pooled(values: np.ndarray) -> np.ndarray:
    """What is farthest from 0 in each block, at most so many blocks a side."""
    high, low = pool(values, _FINEST), -pool(-values, _FINEST)
    return np.where(high >= -low, high, low)


def _line(cut: _Cut, path: Output) -> Figure:
    """The panel of one axis."""
    of_tokens = cut.axes[0] in _OF_TOKENS
    width = max(4.2, min(_MOST, 0.3 * len(cut.values) * of_tokens))
    with _sheet(path, width + 0.5, 3.4) as figure:
        panel: Any = figure.subplots()
        if of_tokens:
            _draw_tokens(panel, cut, width)
        else:
            panel.plot(cut.values, marker="o", markersize=2.5, linewidth=0.9, color=_BLUE)
            panel.set(xlabel=cut.axes[0], ylabel=cut.result.unit, ylim=(0, None))
            panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_title(plain(cut.title, 90), parse_math=False)
    return figure


def _signs(numbers: np.ndarray) -> list[str]:
    """Blue for numbers of at least 0, red for others."""
    return [_RED if number < 0 else _BLUE for number in numbers]


def _draw_tokens(panel: Axes, cut: _Cut, inches: float) -> None:
    """A bar a token, blue up and red down; that of a result's own position is outlined."""
    bars = panel.bar(range(len(cut.values)), cut.values, color=_signs(cut.values), width=0.8)
    position = getattr(cut.result, "positions", None)
    if position is not None:
        bars[position[cut.sentence]].set(edgecolor="black", linewidth=1.0)
    panel.axhline(0, color=FAINT, linewidth=0.6)
    panel.set_ylabel(cut.result.unit)
    _label_axis(panel, "x", cut.named(0), inches)


def _parts(cut: _Cut, count: int, path: Output) -> Figure:
    """Bars of the largest parts of a sum, with a map of the heads beside them, if any."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TraceError(f"count={count!r}: expected a whole number of at least 1.")
    order = np.argsort(-np.abs(np.nan_to_num(cut.values)), kind="stable")
    # One part left over is better shown than called the rest.
    count = len(order) if len(order) <= count + 1 else count
    numbers, names = cut.values[order[:count]], [cut.named(0)[index] for index in order[:count]]
    if len(order) > count:
        numbers = np.append(numbers, cut.values[order[count:]].sum())
        names.append(f"{len(order) - count} others")
    by_head = getattr(cut.result, "by_head", None)
    with _sheet(path, 3.2 if by_head is None else 7.0, 0.19 * max(3, len(names)) + 1) as figure:
        panels = figure.subplots(1, 1 if by_head is None else 2, squeeze=False)[0]
        panels[0].bar_label(
            panels[0].barh(range(len(names)), numbers, color=_signs(numbers)), fmt="%+.2f",
            fontsize=6.5, padding=2,
        )  # fmt: skip
        panels[0].margins(x=0.25)
        panels[0].invert_yaxis()
        _label_axis(panels[0], "y", names, 0.19 * len(names))
        panels[0].set_xlabel(f"{cut.result.unit}; all of them {cut.values.sum():+.2f}")
        panels[0].set_title(plain(cut.title, 90), parse_math=False)
        if by_head is not None:
            values = by_head()
            heads = _array(values if values.dim() == 2 else values[cut.sentence])
            labels = {
                axis: [str(n) for n in range(size)]
                for axis, size in zip(("layer", "head"), heads.shape, strict=True)
            }
            table = replace(cut, values=heads, axes=("layer", "head"), labels=labels, title="Heads")
            _draw_map(panels[1], table, _limits(replace(cut.result, signed=True), heads))
            figure.colorbar(panels[1].images[0], ax=panels[1])
    return figure
