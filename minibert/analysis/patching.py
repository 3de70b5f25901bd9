"""Activation patching and ablation: an edit at every place of a model, and what it does.

Sources: Vig et al. 2020, "Investigating gender bias in language models using causal mediation
analysis"; Meng et al. 2022, "Locating and editing factual associations in GPT"; Zhang and Nanda
2024, "Towards best practices of activation patching". The work is done by `Trace.rerun_each`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_trace, check_unedited, whole_number
from minibert.analysis.metrics import Metric
from minibert.analysis.positions import check_same_lengths
from minibert.errors import EditError, TokenizationError
from minibert.quantities import QUANTITIES, Float
from minibert.trace.edit import Edit, replace, zero
from minibert.trace.places import Places
from minibert.trace.read import Trace

if TYPE_CHECKING:
    from minibert.viz.plots.base import Figure

__all__ = ["Sweep", "ablate_heads", "logit_difference", "patch_heads", "patch_positions"]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A number for every place that was edited.

    values      the metric after each edit
    clean       the metric of the pass that was edited
    patched     the metric of the pass that values came from; None for an ablation
    rows        what the first axis counts: the layers
    columns     what the second axis counts: heads, or tokens with their positions
    """

    values: Float[Tensor, "row column"]
    clean: float
    patched: float | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def change(self) -> Float[Tensor, "row column"]:
        """How much each edit moved the metric."""
        return self.values - self.clean

    @property
    def recovered(self) -> Float[Tensor, "row column"]:
        """The share of the way from the clean metric to the patched one: 0 none, 1 all of it.

        Raises EditError for an ablation, and where the two metrics are equal.
        """
        if self.patched is None or self.patched == self.clean:
            raise EditError(
                "There is no way to recover: an ablation has no second pass, or both passes have "
                "the same metric. Read `change`."
            )
        return self.change / (self.patched - self.clean)

    def plot(self, path: str | Path | None = None, *, show: str = "change") -> "Figure":
        """The matplotlib Figure of the `change` of each edit, or its `recovered` or `values`.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises EditError for another
        name and for `recovered` where there is nothing to recover, and MinibertError without
        matplotlib.
        """
        units = {
            "change": "change of the metric",
            "recovered": "recovered share",
            "values": "metric",
        }
        if show not in units:
            raise EditError(f"show={show!r}: expected one of {', '.join(map(repr, units))}.")
        from minibert.viz.plots.heat import Heat, heat_map

        heads = all(column.startswith("head ") for column in self.columns)
        heat = Heat(
            getattr(self, show),
            rows=[row.removeprefix("layer ") for row in self.rows],
            columns=[c.removeprefix("head ") if heads else c for c in self.columns],
            row_title="layer",
            column_title="head" if heads else "token",
            unit=units[show],
            signed=True,
        )
        return heat_map(heat, path)

    def largest(self, count: int = 5) -> list[tuple[str, str, float]]:
        """The edits that change most: (row, column, change); at least one, or EditError."""
        count = whole_number("count", count, EditError, least=1)
        order = self.change.abs().flatten().argsort(descending=True)[:count].tolist()
        places = [divmod(index, len(self.columns)) for index in order]
        return [(self.rows[r], self.columns[c], float(self.change[r, c])) for r, c in places]


def logit_difference(right: int, wrong: int) -> Callable[[Tensor | Trace], Tensor]:
    """The metric logit[right] − logit[wrong] at each sentence's last token.

    The metric takes a trace, logits of a trace or a model, or the logits that `rerun_each` gives
    it, and returns one number for each sentence. Of a slice of logits, and of the logits of a
    compiled model, it reads the last position, which may be padding.

    Raises TokenizationError for what is no token id, and where the logits have no such token. The
    metric raises EditError for logits without positions.
    """
    right, wrong = (
        whole_number(name, token, TokenizationError, least=0)
        for name, token in (("right", right), ("wrong", wrong))
    )

    def difference(given: Tensor | Trace) -> Tensor:
        last = _last_logits(given)
        for name, token in (("right", right), ("wrong", wrong)):
            whole_number(name, token, TokenizationError, least=0, most=last.shape[-1] - 1)
        return last[:, right] - last[:, wrong]

    return difference


def _last_logits(given: Tensor | Trace) -> Float[Tensor, "batch vocab"]:
    """The logits at the last token of each sentence."""
    logits = given.logits if isinstance(given, Trace) else given
    if logits.dim() != 3:
        raise EditError(
            f"The logits have shape {tuple(logits.shape)}; expected (batch, position, vocab). A "
            "metric of tokens needs a model with a vocabulary head."
        )
    # What a model and a trace say of sentences of different lengths; a slice says nothing.
    packed, lengths = (getattr(logits, name, None) for name in ("packed", "lengths"))
    if packed is not None:
        return logits[0, [end - 1 for end in accumulate(packed)]]
    if lengths is not None:
        return logits[range(len(lengths)), [length - 1 for length in lengths]]
    return logits[:, -1]


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
    logits that it reads, all when not given. Raises EditError for a batch of several sentences.
    """
    check_trace(trace)
    return _over_heads(trace, metric, edit, None, positions, batch)


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

    The two inputs have the same length; `name` is a quantity with a head axis. key and value have
    a column for each key-value head, of which there are fewer where several heads share one.
    """
    check_same_lengths(trace, source)
    if not isinstance(name, str) or name not in QUANTITIES or not QUANTITIES[name].per_head:
        raise EditError(f"{name!r:.80} has no heads; query, key, value, scores, probs, z have.")
    return _over_heads(trace, metric, replace(source), source, positions, batch, name)


def patch_positions(
    trace: Trace,
    source: Trace,
    metric: Metric,
    *,
    name: str = "resid_post",
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Sweep:
    """The metric with `name` of each layer taken from another trace at one token, (layer, token).

    `positions` are those of the logits that the metric reads; every token is patched.
    """
    check_same_lengths(trace, source)
    axes = QUANTITIES[name].axes if isinstance(name, str) and name in QUANTITIES else ()
    if "position" not in axes or not QUANTITIES[name].per_layer:
        raise EditError(
            f"{name!r:.80} has no positions; resid_pre, attn_out, mlp_out and others have."
        )
    columns = tuple(f"{n} {token}" for n, token in enumerate(trace.tokens.strings[0]))
    edits = [
        {(name, layer): replace(source, positions=position)}
        for layer in range(trace.config.n_layers)
        for position in range(len(columns))
    ]
    return _sweep(trace, edits, metric, source, columns, positions, batch)


def _over_heads(
    trace: Trace,
    metric: Metric,
    edit: Edit,
    source: Trace | None,
    positions: Sequence[int] | None,
    batch: int,
    name: str = "z",
) -> Sweep:
    config = trace.config
    of_keys = "kv_head" in QUANTITIES[name].axes
    heads = range(config.n_kv_heads if of_keys else config.n_heads)
    edits = [{(name, layer, head): edit} for layer in range(config.n_layers) for head in heads]
    columns = tuple(f"head {head}" for head in heads)
    return _sweep(trace, edits, metric, source, columns, positions, batch)


def _sweep(
    trace: Trace,
    edits: Sequence[dict[Any, Any]],
    metric: Metric,
    source: Trace | None,
    columns: tuple[str, ...],
    positions: Sequence[int] | None,
    batch: int,
) -> Sweep:
    check_callable(metric, "metric", EditError)
    check_unedited(trace)
    if trace.allowed.batch != 1:
        raise EditError(
            f"A sweep is about one text; this trace has {trace.allowed.batch}. Trace one at a time."
        )
    with torch.no_grad():
        values = trace.rerun_each(edits, metric, positions=positions, batch=batch)[:, 0]

    def measured(one: Trace) -> float:
        # Without padding, as in the passes with edits.
        text = one.text(0)
        chosen = Places.of(text.allowed).positions(0, positions, error=EditError)
        return float(metric(text.logits[:, chosen])[0].detach())

    return Sweep(
        values=values.unflatten(0, (trace.config.n_layers, -1)),
        clean=measured(trace),
        patched=None if source is None else measured(source),
        rows=tuple(f"layer {layer}" for layer in range(trace.config.n_layers)),
        columns=columns,
    )
