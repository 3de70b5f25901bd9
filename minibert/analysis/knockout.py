"""Attention knockout: what the answer loses where some tokens may not look at others.

Scores of the blocked pairs of query and key become −inf in a window of layers around each layer,
so the other keys of that row share its attention. Where the answer changes, it needed what flows
there.

Source: Geva et al. 2023, "Dissecting recall of factual associations in auto-regressive language
models", section 5: a window of nine layers in GPT-2 XL, and the relative change of the answer's
probability.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_unedited, whole_number
from minibert.analysis.causal_tracing import around
from minibert.analysis.metrics import Metric, of_sentence
from minibert.analysis.positions import Each, positions_each
from minibert.doors import Figure, plots
from minibert.errors import EditError
from minibert.quantities import Float
from minibert.trace.edit import Edit, hide
from minibert.trace.read import Trace

__all__ = ["Knockouts", "attention_knockout"]

Pair = tuple[Each, Each]
"""Queries, and the keys that they may not look at."""
Blocked = Mapping[str, Pair | Sequence[Pair]]


@dataclass(frozen=True, eq=False)
class Knockouts:
    """The metric with pairs of query and key blocked in `window` layers around each layer."""

    values: Float[Tensor, "blocked layer batch"]
    clean: Float[Tensor, " batch"]
    names: tuple[str, ...]
    window: int

    @property
    def change(self) -> Float[Tensor, "blocked layer batch"]:
        """How much the metric of each sentence moved."""
        return self.values - self.clean

    @property
    def relative(self) -> Float[Tensor, "blocked layer batch"]:
        """The change as a share of the clean metric: −1 where all of it is lost."""
        return self.change / self.clean

    @property
    def mean(self) -> Float[Tensor, "blocked layer"]:
        """The change, the mean over the sentences."""
        return self.change.mean(-1)

    @property
    def table(self) -> dict[str, list[float]]:
        """The mean change of each layer, by what was blocked."""
        return dict(zip(self.names, self.mean.tolist(), strict=True))

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of the mean change: what was blocked x layer.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises MinibertError without
        matplotlib.
        """
        heat = plots.Heat(
            self.mean,
            rows=self.names,
            columns=[str(layer) for layer in range(self.values.shape[1])],
            title=f"Attention blocked, {self.window} layer{'s' * (self.window > 1)}",
            unit="change of the metric",
            row_title="blocked",
            column_title="layer",
            signed=True,
        )
        return plots.heat_map(heat, path)


def attention_knockout(
    trace: Trace,
    blocked: Blocked,
    metric: Metric,
    *,
    window: int = 1,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Knockouts:
    """The metric after attention was blocked in the layers around each layer.

    blocked    what to block, by name: (queries, keys), or a list of such pairs for several at
               once. Queries and keys are a position for all sentences, or a list with the
               position or positions of each: {"subject": (-1, [[2, 3], [2]])}
    metric     of logits, one number a sentence, as `answer_probability(token)`
    window     layers that are blocked together, centred on each

    `positions` are those of the logits that the metric reads; `batch` passes run at once.

    Raises EditError for pairs that are no positions, and where a query would be left without a key;
    TraceError for a trace that was made with edits.
    """
    check_unedited(trace)
    check_callable(metric, "metric", EditError)
    window = whole_number("window", window, EditError, least=1)
    pairs = _pairs(trace, blocked)
    layers = range(trace.config.n_layers)
    found = []
    for sentence in range(trace.allowed.batch):
        edits: list[dict[Any, Any]] = [{}]
        for each in pairs.values():
            hidden = [_hide(pair, sentence) for pair in each]
            edits += [
                {("scores", near): hidden for near in around(layer, window, len(layers))}
                for layer in layers
            ]
        with torch.no_grad():
            own = trace.text(sentence)
            own_metric = of_sentence(metric, sentence)
            found.append(own.rerun_each(edits, own_metric, positions=positions, batch=batch)[:, 0])
    numbers = torch.stack(found, -1)  # edit batch
    values = numbers[1:].unflatten(0, (len(pairs), len(layers)))
    return Knockouts(values, numbers[0], tuple(pairs), window)


Places = tuple[tuple[int, ...], ...]


def _hide(pair: tuple[Places, Places], sentence: int) -> Edit:
    queries, keys = pair
    return hide(list(keys[sentence]), positions=list(queries[sentence]))


def _pairs(trace: Trace, blocked: Blocked) -> dict[str, list[tuple[Places, Places]]]:
    expected = 'expected pairs by name, as {"subject": (-1, [2, 3])}'
    if not isinstance(blocked, Mapping) or not blocked:
        raise EditError(f"blocked: {expected}, with the queries first and the keys behind them.")
    found = {}
    for name, given in blocked.items():
        several: list[Any] = given if isinstance(given, list) else [given]
        if not several or not all(isinstance(one, tuple) and len(one) == 2 for one in several):
            raise EditError(f"blocked[{name!r:.80}] is {given!r:.80}; {expected}.")
        found[str(name)] = [
            (
                positions_each(trace, queries, f"queries of {name!r:.80}"),
                positions_each(trace, keys, f"keys of {name!r:.80}"),
            )
            for queries, keys in several
        ]
    return found
