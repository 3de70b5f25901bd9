"""What one output position of each sentence has to do with the positions that enter each layer."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from minibert.doors import Figure, plots
from minibert.quantities import Float

__all__ = ["OfOnePosition"]


@dataclass(frozen=True, eq=False, repr=False)
class OfOnePosition:
    """A number for each layer and position; a subclass says what it is.

    values[0] is over the embeddings, values[l] over what enters layer l.
    """

    NAME: ClassVar[str]
    UNIT: ClassVar[str]

    positions: tuple[int, ...]
    """The output position of each sentence."""
    values: Float[Tensor, "layer batch key"]
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""

    def plot(
        self, path: str | Path | None = None, *, layer: int | None = 0, sentence: int = 0
    ) -> Figure:
        """The matplotlib Figure of what enters one layer, as bars, or for None of all layers.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a layer
        or sentence that is not there, and MinibertError without matplotlib.
        """
        return plots.bars_or_layers(
            self.values,
            self.labels,
            layer=layer,
            sentence=sentence,
            positions=self.positions,
            name=self.NAME,
            unit=self.UNIT,
            path=path,
        )

    def __repr__(self) -> str:
        layer, batch, key = self.values.shape
        several = len(set(self.positions)) > 1
        of = f"positions {self.positions}" if several else f"position {self.positions[0]}"
        return f"{type(self).__name__}(of {of}: {layer} layers, batch {batch}, {key} positions)"
