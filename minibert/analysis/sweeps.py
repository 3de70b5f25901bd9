"""The result of a sweep: a metric after an edit at every place, of one pair of texts or of many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from minibert.analysis.arguments import whole_number
from minibert.doors import Figure, plots
from minibert.errors import EditError
from minibert.quantities import Float

__all__ = ["Sweep"]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A number for every place that was edited; of several texts their mean.

    values      the metric after each edit
    clean       the metric of the pass that was edited
    patched     the metric of the pass that values came from; None for an ablation
    rows        what the first axis counts: layers, or heads as "layer-head"
    columns     what the second axis counts: heads, tokens with their positions, or named places
    each        of several texts the sweep of each
    """

    values: Float[torch.Tensor, "row column"]
    clean: float
    patched: float | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    each: tuple["Sweep", ...] = ()

    @classmethod
    def mean_of(cls, sweeps: Sequence["Sweep"]) -> "Sweep":
        """The mean of sweeps with the same rows and as many columns; one alone is itself.

        Columns that differ are tokens at one position, and are named by that position.
        """
        first = sweeps[0]
        if len(sweeps) == 1:
            return first
        named = {sweep.columns for sweep in sweeps}
        columns = first.columns if len(named) == 1 else tuple(map(str, range(len(first.columns))))
        patched = [sweep.patched for sweep in sweeps if sweep.patched is not None]
        return cls(
            torch.stack([sweep.values for sweep in sweeps]).mean(0),
            sum(sweep.clean for sweep in sweeps) / len(sweeps),
            sum(patched) / len(patched) if patched else None,
            first.rows,
            columns,
            tuple(sweeps),
        )

    @property
    def change(self) -> Float[torch.Tensor, "row column"]:
        """How much each edit moved the metric."""
        return self.values - self.clean

    @property
    def standard_error(self) -> Float[torch.Tensor, "row column"]:
        """Of the mean change over texts. Raises EditError for one text, which has none."""
        if not self.each:
            raise EditError("One text has no standard error; sweep several texts.")
        changes = torch.stack([sweep.change for sweep in self.each])
        return changes.std(0) / len(self.each) ** 0.5

    @property
    def recovered(self) -> Float[torch.Tensor, "row column"]:
        """The share of the way from the clean metric to the patched one: 0 none, 1 all of it.

        Of several texts it is the mean change over the mean way, as in Wang et al. 2022. Raises
        EditError for an ablation, and where the two metrics are equal.
        """
        if self.patched is None or self.patched == self.clean:
            raise EditError(
                "There is no way to recover: an ablation has no second pass, or both passes have "
                "the same metric. Read `change`."
            )
        return self.change / (self.patched - self.clean)

    def plot(self, path: str | Path | None = None, *, show: str = "change") -> Figure:
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
        heads = all(column.startswith("head ") for column in self.columns)
        heat = plots.Heat(
            getattr(self, show),
            rows=[row.removeprefix("layer ") for row in self.rows],
            columns=[c.removeprefix("head ") if heads else c for c in self.columns],
            row_title="layer" if self.rows[0].startswith("layer ") else "head",
            column_title="head" if heads else "token",
            unit=units[show],
            signed=True,
        )
        return plots.heat_map(heat, path)

    def largest(self, count: int = 5) -> list[tuple[str, str, float]]:
        """The edits that change most: (row, column, change); at least one, or EditError."""
        count = whole_number("count", count, EditError, least=1)
        order = self.change.abs().flatten().argsort(descending=True)[:count].tolist()
        places = [divmod(index, len(self.columns)) for index in order]
        return [(self.rows[r], self.columns[c], float(self.change[r, c])) for r, c in places]
