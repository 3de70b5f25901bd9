"""Figures of a trace: one head, every head, and a statistic of heads by layer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from minibert.errors import TraceError, check_index
from minibert.quantities import Float
from minibert.result import Result
from minibert.trace.statistics import follows_from_vectors, masses_of, statistics_of
from minibert.viz.plots.panels import add_title
from minibert.viz.plots.results import drawn
from minibert.viz.plots.sheet import (
    FAINT,
    Figure,
    Output,
    array,
    panel_at,
    sheet,
)

if TYPE_CHECKING:
    from minibert.trace.read import Trace
else:
    Trace = object

# What `head_statistic` knows, and how its numbers are called.
STATISTICS = {
    "entropy": "entropy (nats)",
    "previous": "attention to the token before",
    "next": "attention to the token after",
    "self": "attention to itself",
    "first": "attention to the first token",
    "special": "attention to special tokens",
}

_OFFSETS = {"previous": -1, "self": 0, "next": 1}
_UNIT = "share of the query's attention"


def attention_map(
    trace: Trace, layer: int, head: int, *, sentence: int = 0, path: Output = None
) -> Figure:
    """The figure of one head's probs, queries down and keys across.

    >>> import minibert
    >>> figure = attention_map(minibert.load().trace("leaves fall"), 1, 3)

    Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a layer, head
    or sentence that is not there, and MinibertError without matplotlib.
    """
    at = trace[layer, head]
    title, tokens = f"Attention of head {at.layer}-{at.head}", trace.tokens.strings
    one = Result(at.probs, "batch query key", title, _UNIT, tokens=tokens, limits=(0.0, 1.0))
    return drawn(one, path, sentence=sentence)


def attention_grid(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    sentence: int = 0,
    path: Output = None,
) -> Figure:
    """The figure of the probs of every head, a row a layer, all layers unless some are named.

    `path` and what is raised are as for `attention_map`.
    """
    named = range(len(trace)) if layers is None else layers
    chosen = [check_index("layer", layer, len(trace)) for layer in named]
    if not chosen:
        raise TraceError("layers is empty; expected some layers, or None for all.")
    index = check_index("sentence", sentence, trace.allowed.batch)
    probs = torch.stack([trace[layer].probs[index : index + 1] for layer in chosen])
    names, tokens = "layer batch head query key", trace.tokens.strings[index : index + 1]
    labels = {"layer": chosen}
    return drawn(Result(probs, names, "Attention", _UNIT, labels, tokens), path)


def head_statistic(trace: Trace, name: str, *, sentence: int = 0) -> Float[Tensor, "layer head"]:
    """A statistic of every head: the mean over the rows of one sentence it is defined for.

    `name` is one of STATISTICS: the entropy −Σ p·log p of a row in nats, or the share of a row that
    goes to some place. Raises TraceError for another name, a sentence that is not there, and where
    no row has such a place.

    Source: Clark et al. 2019, sections 3.1 to 3.3.
    """
    if name not in STATISTICS:
        raise TraceError(f"{name!r} is no statistic of heads; there are {', '.join(STATISTICS)}.")
    index = check_index("sentence", sentence, trace.allowed.batch)
    N = len(trace.tokens.strings[index])
    special = torch.tensor(trace.tokens.special[index])
    if (name in ("previous", "next") and N < 2) or (name == "special" and not special.any()):
        raise TraceError(f"Sentence {index} has no token for {STATISTICS[name]}.")
    means = [_rows(trace, layer, name, index, special).mean(-1) for layer in range(len(trace))]
    return torch.stack(means).float()


def by_layer(
    values: Float[Tensor, "layer head"],
    *,
    title: str = "",
    unit: str = "",
    path: Output = None,
) -> Figure:
    """The figure of a number for every head: a dot a head over its layer, a line for their mean.

    `values` are those of `head_statistic`, or one score of HeadScores. nan is left out.

    Source: Clark et al. 2019, figures 2 and 4.
    """
    numbers = array(values)
    if numbers.ndim != 2 or not np.isfinite(numbers).any():
        raise TraceError(
            f"There is nothing to draw in values of shape {numbers.shape}: expected (layer, head), "
            "with some finite numbers."
        )
    L, H = numbers.shape
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, min(6.6, max(2.6, 0.36 * L)), 2.2)
        places = np.repeat(np.arange(L), H)
        panel.scatter(places, numbers.ravel(), s=13, color="#0072B2", alpha=0.65, linewidths=0)
        measured = np.isfinite(numbers).any(1)
        means = [np.nanmean(row) for row in numbers[measured]]
        panel.plot(np.arange(L)[measured], means, color="#D55E00", linewidth=1.2, label="mean")
        panel.legend(frameon=False, handlelength=1.4, loc="best")
        panel.set_xlim(-0.6, L - 0.4)
        panel.set_xticks(range(0, L, 1 if L <= 24 else 4))
        panel.set_xlabel("layer")
        panel.set_ylabel(unit)
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        panel.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.5)
        add_title(panel, title)
    return figure


def _rows(
    trace: Trace, layer: int, name: str, index: int, special: Tensor
) -> Float[Tensor, "head row"]:
    """The statistic of every row of a sentence that has it, in float64."""
    N = len(special)
    if not follows_from_vectors(trace, layer):
        probs = trace[layer].probs[index, :, :N, :N].detach().double()
        return _rows_of_probs(probs, name, special.to(probs.device))
    found: Tensor | None
    if name in _OFFSETS:
        found = masses_of(trace, layer, (_OFFSETS[name],))[0][..., 0]
    elif name == "entropy":
        found = statistics_of(trace, layer, ("entropy",)).entropy
    else:
        keys = [0] if name == "first" else special.nonzero().flatten().tolist()
        masses = statistics_of(trace, layer, (("key_mass", keys),)).key_mass
        found = None if masses is None else masses.double().sum(-1)
    assert found is not None, "statistics hold what was asked for"
    # The first row has no token before, the last none behind.
    rows = slice(1 if name == "previous" else 0, N - 1 if name == "next" else N)
    return found[index, :, rows].double()


def _rows_of_probs(
    probs: Float[Tensor, "head query key"], name: str, special: Tensor
) -> Float[Tensor, "head row"]:
    """The same from a matrix."""
    if name in _OFFSETS:
        return probs.diagonal(_OFFSETS[name], -2, -1)
    if name == "entropy":
        return torch.special.entr(probs).sum(-1)
    return probs[..., 0] if name == "first" else probs[..., special].sum(-1)
