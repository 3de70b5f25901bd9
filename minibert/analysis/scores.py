"""What every head scores on the five patterns: a table to ask, print and write down.

`head_scores` gives it, and training logs hold it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minibert.analysis.pattern_kinds import KINDS
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float

__all__ = ["PATTERNS", "HeadScores"]

PATTERNS = tuple(KINDS)

# Heads that a printed table names for each pattern.
_SHOWN = 3
# Far below the noise of a hundred sequences, and short enough to read in a log.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The share of its attention, 0 to 1, that each head spends on each pattern.

    A score is nan where it could not be measured: `next` in a causal model, which cannot look
    ahead, and `delimiter` on texts without one.
    """

    previous: Float[Tensor, "layer head"]
    next: Float[Tensor, "layer head"]
    duplicate: Float[Tensor, "layer head"]
    induction: Float[Tensor, "layer head"]
    delimiter: Float[Tensor, "layer head"]

    def best(self, name: str) -> tuple[int, int, float]:
        """The layer and head that score highest on a pattern, counted from 0, and the score.

        Raises TraceError for a name that is none of `PATTERNS`, and where nothing was measured.
        """
        if name not in PATTERNS:
            raise TraceError(f"{name!r} is no pattern of heads; there are {', '.join(PATTERNS)}.")
        ranking = self._ranking(name)
        if not ranking:
            raise TraceError(
                f"No head has a score for {name!r}: a causal model cannot look at the next token, "
                "and without delimiters in the texts there is no delimiter score."
            )
        return ranking[0]

    def to_dict(self) -> dict[str, list[list[float | None]]]:
        """A list of layers of one number a head for each pattern, for JSON; None where nan.

        Rounded to six decimals.
        """
        return {
            name: [[_plain(score) for score in layer] for layer in getattr(self, name).tolist()]
            for name in PATTERNS
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of every pattern that was measured: a layer x head map each.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError where no
        pattern was measured, and MinibertError without matplotlib.
        """
        measured = {name: getattr(self, name) for name in PATTERNS if self._ranking(name)}
        if not measured:
            raise TraceError("No pattern was measured, so there is nothing to draw.")
        unit = "share of attention"
        tables = [
            plots.by_head(values, title=name, unit=unit, limits=(0.0, 1.0))
            for name, values in measured.items()
        ]
        return plots.heat_maps(tables, path)

    def _ranking(self, name: str) -> list[tuple[int, int, float]]:
        table = getattr(self, name).tolist()
        heads = [
            (layer, head, score)
            for layer, row in enumerate(table)
            for head, score in enumerate(row)
            if not math.isnan(score)
        ]
        return sorted(heads, key=lambda entry: -entry[2])

    def __str__(self) -> str:
        lines = ["pattern    layer-head score, the highest first"]
        for name in PATTERNS:
            best = self._ranking(name)[:_SHOWN]
            cells = (f"{f'{layer}-{head}':>5} {score:.2f}" for layer, head, score in best)
            lines.append(f"{name:<10}" + ("  ".join(cells) if best else "    - not measured"))
        return "\n".join(lines)

    def __repr__(self) -> str:
        n_layers, n_heads = self.previous.shape
        return f"HeadScores({n_layers} layers x {n_heads} heads: {', '.join(PATTERNS)})"


def _plain(score: Any) -> float | None:
    return None if math.isnan(score) else round(score, _DECIMALS)
