"""What every head does: the result of `patterns`, to ask, print and write down."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minibert.errors import AttentionError
from minibert.survey.intervals import layer_intervals
from minibert.survey.pattern_examples import Example
from minibert.survey.pattern_sums import PatternSums
from minibert.survey.pattern_table import PATTERNS, pattern_of

__all__ = ["HeadPatterns", "PatternHead"]

Values = NDArray[np.float64]

# Heads that a printed table names for each pattern.
_SHOWN = 3
_DECIMALS = 6


@dataclass(frozen=True)
class PatternHead:
    """One head and one pattern.

    score       the mean over documents of the mean over rows, 0 to 1
    low, high   its 95 % confidence interval over documents; nan with fewer than two
    baseline    what is no evidence: see `Pattern.baseline`; nan where it could not be measured
    named       whether the head is known by this pattern: see `HeadPatterns.named`
    documents   how many have rows that count
    examples    the best three rows, the best first
    """

    pattern: str
    layer: int
    head: int
    score: float
    low: float
    high: float
    baseline: float
    named: bool
    documents: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, eq=False)
class HeadPatterns:
    """The score of every head on every pattern.

    score, low, high, baseline   for each pattern (layer, head); see `PatternHead`
    documents                    for each pattern, how many documents have rows that count; where
                                 layers have windows, in the layer that counts most
    """

    score: Mapping[str, Values]
    low: Mapping[str, Values]
    high: Mapping[str, Values]
    baseline: Mapping[str, Values]
    documents: Mapping[str, int]
    kept: Mapping[tuple[str, int, int], tuple[Example, ...]]

    @classmethod
    def of(cls, parts: Sequence[PatternSums]) -> "HeadPatterns":
        """The result of sums over documents, each of other patterns."""
        tables: dict[str, dict[str, Values]] = {name: {} for name in ("score", "low", "high")}
        baseline: dict[str, Values] = {}
        documents: dict[str, int] = {}
        kept: dict[tuple[str, int, int], tuple[Example, ...]] = {}
        for sums in parts:
            for number, pattern in enumerate(sums.patterns):
                counts = sums.count[number]
                found = layer_intervals(counts, sums.total[number], sums.squares[number])
                for name, values in zip(tables, found, strict=True):
                    # Shares lie between 0 and 1, and so does their mean.
                    tables[name][pattern.name] = np.clip(values, 0.0, 1.0)
                controls = sums.baseline_count[number]
                total = sums.baseline[number]
                baseline[pattern.name] = total / np.where(controls, controls, np.nan)[:, None]
                documents[pattern.name] = int(counts.max())
            for (number, layer, head), examples in sums.examples.kept.items():
                kept[sums.patterns[number].name, layer, head] = tuple(examples)
        return cls(**tables, baseline=baseline, documents=documents, kept=kept)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads of a layer."""
        n_layers, n_heads = next(iter(self.score.values())).shape
        return n_layers, n_heads

    def head(self, pattern: str, layer: int, head: int) -> PatternHead:
        """What one head does of one pattern. Raises AttentionError for what there is not."""
        pattern_of(pattern)
        n_layers, n_heads = self.shape
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise AttentionError(
                f"There is no head {layer}-{head}: expected a layer from 0 to {n_layers - 1} and a "
                f"head from 0 to {n_heads - 1}."
            )
        place = layer, head
        return PatternHead(
            pattern,
            layer,
            head,
            float(self.score[pattern][place]),
            float(self.low[pattern][place]),
            float(self.high[pattern][place]),
            float(self.baseline[pattern][place]),
            bool(self._named(pattern)[place]),
            self.documents[pattern],
            self.kept.get((pattern, layer, head), ()),
        )

    def best(self, pattern: str, count: int = _SHOWN) -> list[PatternHead]:
        """The heads that score highest on a pattern, the best first.

        Empty where no document has rows that count, as for the next token in a causal model.
        Raises AttentionError for a name that is no pattern.
        """
        pattern_of(pattern)
        scores = self.score[pattern]
        if not self.documents[pattern]:
            return []
        order = np.argsort(-scores, axis=None, kind="stable")[:count]
        return [self.head(pattern, *divmod(int(at), scores.shape[1])) for at in order]

    def named(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """The patterns that each head is known by; heads without one are left out.

        A head is named where more than half of what the baseline leaves goes where the pattern
        says: score > (1 + baseline)/2. Clark et al. 2019, section 3.1, count heads above 50 %; with
        a baseline near 0 it is the same, and at most one of several patterns that mean different
        keys can have it. For bag of words, whose baseline is a row drawn at random, it is enough
        to be above the baseline. With two documents or more the lower end of the confidence
        interval must be above it as well.
        """
        found: dict[tuple[int, int], list[str]] = {}
        for pattern in PATTERNS:
            for layer, head in np.argwhere(self._named(pattern)).tolist():
                found.setdefault((layer, head), []).append(pattern)
        return {place: tuple(found[place]) for place in sorted(found)}

    def examples(self, pattern: str, layer: int, head: int) -> tuple[Example, ...]:
        """The best three rows of one head on one pattern."""
        return self.head(pattern, layer, head).examples

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what each pattern is, and every head's numbers; None where nan."""
        return {
            name: {
                "words": pattern.words,
                "source": pattern.source,
                "baseline": pattern.baseline,
                "documents": self.documents[name],
                "heads": [_plain(each) for each in self._all(name)],
            }
            for name, pattern in PATTERNS.items()
        }

    def _all(self, pattern: str) -> Iterable[PatternHead]:
        n_layers, n_heads = self.shape
        return (
            self.head(pattern, layer, head) for layer in range(n_layers) for head in range(n_heads)
        )

    def _named(self, pattern: str) -> NDArray[np.bool_]:
        certain = self.score[pattern] if self.documents[pattern] < 2 else self.low[pattern]
        baseline = np.nan_to_num(self.baseline[pattern], nan=0.0)
        drawn = pattern_of(pattern).baseline == "drawn"
        # nan, where nothing was measured, is above nothing.
        return np.asarray(certain > (baseline if drawn else (1 + baseline) / 2))

    def __str__(self) -> str:
        width = max(map(len, PATTERNS))
        lines = [f"{'pattern':<{width}}  layer-head score, the highest first; * named by it"]
        for name in PATTERNS:
            cells = [
                f"{f'{one.layer}-{one.head}':>5} {one.score:.2f}{'*' if one.named else ' '}"
                for one in self.best(name)
            ]
            lines.append(f"{name:<{width}}  {'  '.join(cells) or '    - not measured'}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        n_layers, n_heads = self.shape
        return f"HeadPatterns({n_layers} layers x {n_heads} heads: {', '.join(PATTERNS)})"


def _plain(one: PatternHead) -> dict[str, Any]:
    numbers = {
        name: None if math.isnan(value) else round(value, _DECIMALS)
        for name in ("score", "low", "high", "baseline")
        for value in [getattr(one, name)]
    }
    examples = [example._asdict() for example in one.examples]
    return {
        "layer": one.layer,
        "head": one.head,
        **numbers,
        "named": one.named,
        "examples": examples,
    }
