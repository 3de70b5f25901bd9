"""Path patching: what a head does by way of some other heads alone.

For a clean and a corrupt text of the same length, each sender takes three steps:

1. its value of the corrupt text goes into the clean pass, in which all other heads are frozen to
   their clean z: it travels along the stream, through norms and MLPs, but through no head;
2. what the receivers' queries, keys and values become there is taken,
3. and put into an otherwise clean pass, where all that is behind them follows. The metric is read.

With the MLPs frozen too, what is left are the direct paths, along the stream and through norms.

Sources: Wang et al. 2022, "Interpretability in the wild", appendix B (with MLPs recomputed);
Goldowsky-Dill et al. 2023, "Localizing model behavior with path patching".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_unedited, whole_number
from minibert.analysis.metrics import Metric, numbers_of
from minibert.analysis.positions import check_same_lengths
from minibert.doors import Figure, plots
from minibert.errors import EditError, check_flag
from minibert.quantities import Float
from minibert.trace.edit import Edit, Point, as_point, replace
from minibert.trace.places import check_index
from minibert.trace.read import Trace

__all__ = ["PathPatches", "path_patching"]

Key = str | tuple[Any, ...]
_SENDERS = ("z", "mlp_out")
_RECEIVERS = ("query", "key", "value", "mlp_pre", "mlp_gate", "logits")


@dataclass(frozen=True, eq=False)
class PathPatches:
    """The metric after each sender was patched on its paths to the receivers.

    clean, corrupt     the metric of the two texts
    layers, heads      the model's, for the picture
    """

    values: Float[Tensor, "sender batch"]
    clean: Float[Tensor, " batch"]
    corrupt: Float[Tensor, " batch"]
    senders: tuple[Point, ...]
    receivers: tuple[Point, ...]
    layers: int
    heads: int

    @property
    def change(self) -> Float[Tensor, "sender batch"]:
        """How much each sender moved the metric."""
        return self.values - self.clean

    @property
    def table(self) -> Float[Tensor, "batch layer column"]:
        """The change by layer and head, with a last column for MLPs where some were senders.

        nan where nothing was sent.
        """
        columns = self.heads + any(point.name == "mlp_out" for point in self.senders)
        table = self.values.new_full((len(self.clean), self.layers, columns), torch.nan)
        for point, change in zip(self.senders, self.change, strict=True):
            table[:, point.layer, -1 if point.heads is None else point.heads] = change
        return table

    @property
    def mean(self) -> Float[Tensor, "layer column"]:
        """The table, the mean over the pairs of texts."""
        return self.table.mean(0)

    @property
    def recovered(self) -> Float[Tensor, "layer column"]:
        """The mean change as a share of the mean way from clean to corrupt: 1 is all of it."""
        return self.mean / (self.corrupt - self.clean).mean()

    def plot(self, path: str | Path | None = None, *, sentence: int | None = 0) -> Figure:
        """The matplotlib Figure of one sentence's changes: layer x head, with MLPs if any.

        `sentence=None` draws the mean over the pairs. Saved where `path` is given, as SVG, PDF or
        PNG by its name. Raises TraceError for a sentence that is not there, and MinibertError
        without matplotlib.
        """
        if sentence is None:
            table = self.mean
        else:
            table = self.table[check_index("sentence", sentence, len(self.clean))]
        heat = plots.Heat(
            table,
            rows=[str(layer) for layer in range(self.layers)],
            columns=[*map(str, range(self.heads)), "MLP"][: table.shape[1]],
            row_title="layer",
            column_title="head",
            title=f"By way of {self.receivers[0]}{' and more' * (len(self.receivers) > 1)}",
            unit="change of the metric",
            signed=True,
        )
        return plots.heat_map(heat, path)


def path_patching(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    receivers: Sequence[Key],
    senders: Sequence[Key] | None = None,
    freeze_mlps: bool = False,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> PathPatches:
    """The metric after what each sender of the corrupt text does to the receivers alone.

    A sender is ("z", layer, head) or ("mlp_out", layer), by default every head. A receiver is
    ("query" | "key" | "value", layer, head), keys and values counted by key-value head, or all of a
    layer as ("value", layer); ("mlp_pre", layer), in a gated MLP beside ("mlp_gate", layer); or
    "logits", for what reaches them through no other head. All receivers are patched together. MLPs
    on the way follow unless `freeze_mlps`. A sender without a path to a receiver changes nothing.

    `metric` is given logits and returns one number a sentence; `positions` are those of the logits
    that it reads, all when not given; `batch` sentences run at once.

    Sentence i of one trace is paired with sentence i of the other, which has the same length.

    Raises EditError for senders, receivers and texts that do not fit, and TraceError for a clean
    trace that was made with edits.
    """
    check_same_lengths(clean, corrupt, "corrupt")
    check_unedited(clean)
    check_callable(metric, "metric", EditError)
    check_flag("freeze_mlps", freeze_mlps, EditError)
    batch = whole_number("batch", batch, EditError, least=1)
    config = clean.config
    if senders is None:
        every = [("z", n, head) for n in range(config.n_layers) for head in range(config.n_heads)]
        sending = tuple(as_point(key, config) for key in every)
    else:
        sending = _points(clean, senders, "senders", _SENDERS)
    receiving = _points(clean, receivers, "receivers", _RECEIVERS)
    size = max(1, batch // clean.allowed.batch)
    values = []
    with torch.no_grad():
        for first in range(0, len(sending), size):
            edits = [
                _received(_sent(clean, corrupt, sender, freeze_mlps), receiving)
                for sender in sending[first : first + size]
            ]
            values.append(clean.rerun_each(edits, metric, positions=positions, batch=batch))
        ends = [numbers_of(metric, trace, positions) for trace in (clean, corrupt)]
    sizes = config.n_layers, config.n_heads
    return PathPatches(torch.cat(values), ends[0], ends[1], sending, receiving, *sizes)


def _sent(clean: Trace, corrupt: Trace, sender: Point, freeze_mlps: bool) -> Trace:
    """The clean pass with the sender's corrupt value and frozen heads."""
    assert sender.layer is not None
    # What is below the sender, and the heads beside it, are clean by themselves.
    above = range(sender.layer + 1, clean.config.n_layers)
    edits: dict[Key, Edit] = {("z", layer): replace(clean) for layer in above}
    if freeze_mlps:
        first = sender.layer if sender.name == "z" else sender.layer + 1
        mlps = range(first, clean.config.n_layers)
        edits |= {("mlp_out", layer): replace(clean) for layer in mlps}
    return clean.rerun({**edits, _key(sender): replace(corrupt)})


def _received(sent: Trace, receivers: Sequence[Point]) -> dict[Key, Edit]:
    """The edits that give the receivers what they have there."""
    edits = {}
    for point in receivers:
        if point.layer is None:
            value = sent.logits
        else:
            value = sent.read(point.name, point.layer)
            value = value if point.heads is None else value[:, _index(point)]
        edits[_key(point)] = replace(value)
    return edits


def _index(point: Point) -> int | list[int]:
    return point.heads if isinstance(point.heads, int) else point.head_list


def _key(point: Point) -> Key:
    parts = (point.name, point.layer, point.heads)
    return point.name if point.layer is None else tuple(p for p in parts if p is not None)


def _points(
    trace: Trace, keys: Sequence[Key], what: str, names: tuple[str, ...]
) -> tuple[Point, ...]:
    expected = f"expected a list of at least one point of {', '.join(names)}"
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise EditError(f'{what}={keys!r:.80}: {expected}, such as [("{names[0]}", 1, 0)].')
    points = tuple(as_point(key, trace.config) for key in keys)
    for point in points:
        if point.name not in names:
            raise EditError(f"{what}: {point} is none of them; {expected}.")
        if what == "senders" and point.name == "z" and not isinstance(point.heads, int):
            raise EditError(f'senders: {point} is no single head; write ("z", layer, head).')
    return points
