"""What each head spends on each pattern, added up over documents.

One document is open at a time: `begin` counts its rows, `add` is given what some of its queries do
in one layer, `close` takes the means over the rows that count. Nothing N x N is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minibert.quantities import Bool, Float
from minibert.survey.marks import Marks
from minibert.survey.pattern_examples import BestExamples
from minibert.survey.pattern_table import BAG_OF_WORDS, Pattern

__all__ = ["PatternSums", "Targets"]


@dataclass(frozen=True, eq=False)
class Targets:
    """What some patterns mean in the queries of one text from `first` on.

    cells       True for the keys that a pattern means
    counted     True for rows that count
    controlled  True for rows that count for a baseline that is measured on the same head
    expected    the sum over rows of the baselines that follow from the cells alone
    columns     the cells of all patterns and of their baselines as numbers, to multiply probs by
    """

    marks: Marks
    first: int
    cells: Bool[Tensor, "pattern query key"]
    counted: Bool[Tensor, "pattern query"]
    controlled: Bool[Tensor, "pattern query"]
    expected: Float[Tensor, " pattern"]
    columns: Float[Tensor, "query key column"]

    @classmethod
    def of(
        cls,
        patterns: tuple[Pattern, ...],
        marks: Marks,
        queries: slice,
        *,
        shift: int,
        dtype: torch.dtype,
    ) -> "Targets":
        """The targets in these queries of a text; cells of baselines are `shift` places further."""
        allowed = marks.allowed(queries)
        cells = torch.stack([p.cells(marks, queries) & allowed for p in patterns])
        control = torch.stack(
            [
                _moved(pattern, marks, queries, its_cells, shift)
                if pattern.baseline == "moved"
                else torch.zeros_like(its_cells)
                for pattern, its_cells in zip(patterns, cells, strict=True)
            ]
        )
        rows = cells.any(2)
        sees = allowed.sum(1).double()
        expected = [
            _expected(pattern, size, sees)[row].sum()
            for pattern, size, row in zip(patterns, cells.sum(2).double(), rows, strict=True)
        ]
        return cls(
            marks=marks,
            first=queries.start,
            cells=cells,
            counted=rows,
            controlled=control.any(2),
            expected=torch.stack(expected),
            columns=torch.cat([cells, control]).permute(1, 2, 0).to(dtype),
        )


def _moved(
    pattern: Pattern, marks: Marks, queries: slice, cells: Bool[Tensor, "query key"], shift: int
) -> Bool[Tensor, "query key"]:
    """The cells of the queries `shift` places before, at the same offsets from these queries.

    Rows are left empty where a query or key would leave its sentence, and where the pattern means
    one of these keys itself.
    """
    position = torch.arange(len(marks))
    source = position - shift
    inside = (source >= 0) & (source < len(marks))
    source = source.clamp(0, len(marks) - 1)
    stays = inside & marks.plain & marks.plain[source]
    stays &= marks.sentence == marks.sentence[source]
    if marks.causal:
        stays &= position > 0
    rows = pattern.cells(marks, source[queries]) & marks.allowed(source[queries])
    found = rows.roll(shift, 1)
    fits = stays[queries] & ~(found & (cells | ~stays)).any(1)
    return found & fits[:, None]


def _expected(
    pattern: Pattern, size: Float[Tensor, " query"], sees: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """The score of each row that is no evidence, from how many keys it means and sees."""
    if pattern.baseline == "drawn":
        # E Σ min(p, 1/m) over m weights from a flat Dirichlet distribution: one of them is above
        # x with probability (1 - x)^(m - 1).
        m = size.clamp_min(1)
        return 1 - (1 - 1 / m) ** m
    return size / sees


class PatternSums:
    """Sums over documents of the scores of every head: (pattern, layer, head)."""

    def __init__(self, patterns: Iterable[Pattern], n_layers: int, n_heads: int) -> None:
        self.patterns = tuple(patterns)
        size = (len(self.patterns), n_layers, n_heads)
        # Windows differ by layer, and so do the rows that see a key and count.
        self.count = np.zeros(size[:2], dtype=np.int64)
        self.total, self.squares = np.zeros(size), np.zeros(size)
        self.baseline_count = np.zeros(size[:2], dtype=np.int64)
        self.baseline = np.zeros(size)
        self.examples = BestExamples(size)
        self._moved = np.array([pattern.baseline == "moved" for pattern in self.patterns])
        self._open()

    def _open(self) -> None:
        self._rows, self._controls = np.zeros_like(self.total), np.zeros_like(self.total)
        self._row_count = np.zeros_like(self.count)
        self._control_count = np.zeros_like(self.count)

    def begin(self, targets: Targets, layers: Sequence[int]) -> None:
        """Count the rows of some queries of the open document in layers, before they are added."""
        rows = targets.counted.sum(1).numpy()
        controls = np.where(self._moved, targets.controlled.sum(1).numpy(), rows)
        self._row_count[:, layers] += rows[:, None]
        self._control_count[:, layers] += controls[:, None]
        known = np.where(self._moved, 0.0, targets.expected.numpy())
        self._controls[:, layers] += known[:, None, None]

    def add(
        self,
        layer: int,
        probs: Float[Tensor, "head query key"],
        targets: Targets,
        *,
        document: str,
    ) -> None:
        """Add what these queries do in one layer of the open document."""
        # (query, head, key) · (query, key, column): all patterns and baselines in one product.
        masses = (probs.transpose(0, 1) @ targets.columns).permute(2, 1, 0)
        scores, controls = masses.split(len(self.patterns))
        for number, pattern in enumerate(self.patterns):
            counted = targets.counted[number]
            if counted.any():
                score = scores[number]
                if pattern.name == BAG_OF_WORDS:
                    score = _overlap(probs, targets.cells[number])
                score = torch.where(counted, score, 0)
                self._rows[number, layer] += score.sum(1, dtype=torch.float64).numpy()
                self.examples.find(
                    (number, layer),
                    probs,
                    torch.where(counted, score, -1),
                    targets.cells[number],
                    targets.marks,
                    first=targets.first,
                    document=document,
                )
            if self._moved[number]:
                control = torch.where(targets.controlled[number], controls[number], 0)
                self._controls[number, layer] += control.sum(1, dtype=torch.float64).numpy()

    def close(self) -> None:
        """Add the means of the open document, for each pattern that it has rows of."""
        applies, controlled = self._row_count > 0, self._control_count > 0
        means = self._rows[applies] / self._row_count[applies, None]
        self.count += applies
        self.total[applies] += means
        self.squares[applies] += means**2
        self.baseline_count += controlled
        counts = self._control_count[controlled, None]
        self.baseline[controlled] += self._controls[controlled] / counts
        self._open()

    def merge(self, other: "PatternSums") -> None:
        """Add the documents of another part of the corpus, measured on the same patterns."""
        for name in ("count", "total", "squares", "baseline_count", "baseline"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for place, examples in other.examples.kept.items():
            for example in examples:
                self.examples.offer(place, example)


def _overlap(
    probs: Float[Tensor, "head query key"], cells: Bool[Tensor, "query key"]
) -> Float[Tensor, "head query"]:
    """Σ min(p, u): what a row has in common with looking at all these keys alike."""
    even = cells.to(probs.dtype) / cells.sum(1, keepdim=True).clamp_min(1)
    return torch.minimum(probs, even).sum(-1)
