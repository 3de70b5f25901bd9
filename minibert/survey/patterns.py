"""Heads named by what they do: ten patterns, with score, confidence interval and examples.

    found = patterns(model, texts)
    print(found)
    found.best("induction"), found.examples("induction", 5, 5), found.named()

analysis/patterns.py says what a pattern is. One document is open at a time, and nothing N x N of
all layers is kept.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.analysis.patterns import (
    BAG_OF_WORDS,
    NUMBERS,
    PATTERNS,
    Marks,
    Pattern,
    chosen_delimiters,
    draws_of,
    pattern_of,
)
from minibert.errors import AttentionError
from minibert.quantities import Bool, Float, Int
from minibert.survey.document_rows import (
    DocumentRows,
    Texts,
    document_rows,
    generator_of,
    surveyable,
)
from minibert.survey.documents import worth_reading
from minibert.survey.live import Given, Surveyable
from minibert.survey.tables import layer_intervals

EXAMPLES = 3


class Example(NamedTuple):
    """One row of attention that follows a pattern.

    document    its id
    query, key  the tokens, at query_position and key_position; of several keys that the pattern
                means, the one most looked at
    weight      the attention on this key
    score       the score of the row, with all keys that the pattern means
    """

    document: str
    query_position: int
    query: str
    key_position: int
    key: str
    weight: float
    score: float


class BestExamples:
    """The rows with the highest scores of each (pattern, layer, head), one for each two tokens."""

    def __init__(self, size: tuple[int, int, int]) -> None:
        self.kept: dict[tuple[int, int, int], list[Example]] = {}
        # What a row must exceed to be kept.
        self._least = np.zeros(size)

    def find(
        self,
        place: tuple[int, int],
        probs: Float[Tensor, "head query key"],
        scores: Float[Tensor, "head query"],
        cells: Bool[Tensor, "query key"],
        marks: Marks,
        *,
        first: int,
        document: str,
    ) -> None:
        """Keep what is better than the best so far, of the queries from `first` on.

        `place` is the pattern and layer; `scores` are -1 in rows that do not count.
        """
        best, rows = scores.topk(min(EXAMPLES, scores.shape[1]))
        better = (best[:, 0].double().numpy() > self._least[place]).nonzero()[0]
        for head in better.tolist():
            for score, row in zip(best[head].tolist(), rows[head].tolist(), strict=True):
                if score <= self._least[(*place, head)]:
                    break
                weights = torch.where(cells[row], probs[head, row], -1.0)
                key = int(weights.argmax())
                query = first + row
                two = (query, marks.strings[query], key, marks.strings[key])
                self.offer((*place, head), Example(document, *two, float(weights[key]), score))

    def offer(self, place: tuple[int, int, int], example: Example) -> None:
        """Put an example in its place; of equal ones the first stays."""
        kept = self.kept.setdefault(place, [])
        alike = [each for each in kept if (each.query, each.key) == (example.query, example.key)]
        if alike and alike[0].score >= example.score:
            return
        kept = [each for each in kept if each not in alike] + [example]
        kept.sort(key=lambda each: -each.score)
        self.kept[place] = kept[:EXAMPLES]
        if len(kept) >= EXAMPLES:
            self._least[place] = kept[EXAMPLES - 1].score


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
    """The score of each row by chance, from how many keys it means and sees."""
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
        self, layer: int, probs: Float[Tensor, "head query key"], targets: Targets, *, document: str
    ) -> None:
        """Add what these queries do in one layer of the open document.

        `document` is its id where rows of it may be examples, else "".
        """
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
                if document:
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


def _overlap(
    probs: Float[Tensor, "head query key"], cells: Bool[Tensor, "query key"]
) -> Float[Tensor, "head query"]:
    """Σ min(p, u): what a row has in common with looking at all these keys alike."""
    even = cells.to(probs.dtype) / cells.sum(1, keepdim=True).clamp_min(1)
    return torch.minimum(probs, even).sum(-1)


Values = NDArray[np.float64]

# Heads that a printed table names for each pattern.
_SHOWN = 3
_DECIMALS = 6


@dataclass(frozen=True)
class PatternHead:
    """The result of one head on one pattern.

    score       the mean over documents of the mean over rows, 0 to 1
    low, high   its 95 % confidence interval over documents; nan with fewer than two
    baseline    its score by chance: see `Pattern.baseline`; nan where not measured
    named       True if the head is named after this pattern: see `HeadPatterns.named`
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
        """The result of one head on one pattern. Raises AttentionError if either does not exist."""
        pattern_of(pattern)
        n_layers, n_heads = self.shape
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise AttentionError(
                f"There is no head {layer}-{head}: expected a layer from 0 to {n_layers - 1} and a "
                f"head from 0 to {n_heads - 1}."
            )
        place = layer, head
        tables = (self.score, self.low, self.high, self.baseline)
        score, low, high, baseline = (float(table[pattern][place]) for table in tables)
        named, documents = bool(self._named(pattern)[place]), self.documents[pattern]
        examples = self.kept.get((pattern, layer, head), ())
        return PatternHead(
            pattern, layer, head, score, low, high, baseline, named, documents, examples
        )

    def best(self, pattern: str, count: int = _SHOWN) -> list[PatternHead]:
        """The heads that score highest on a pattern, best first.

        Empty where no document has rows that count, as for the next token in a causal model.
        Raises AttentionError for a name that is not a pattern.
        """
        pattern_of(pattern)
        scores = self.score[pattern]
        if not self.documents[pattern]:
            return []
        order = np.argsort(-scores, axis=None, kind="stable")[:count]
        return [self.head(pattern, *divmod(int(at), scores.shape[1])) for at in order]

    def named(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """The patterns that each head is named after; heads without one are left out.

        A head gets a pattern's name if score > (1 + baseline)/2: of the attention that the baseline
        leaves, more than half follows the pattern. With a baseline near 0 this is the 50 % of Clark
        et al. 2019, section 3.1, and at most one of several patterns with different keys can reach
        it. For bag of words, whose baseline is a random row, being above the baseline is enough.
        With two or more documents, the lower end of the confidence interval must also be above it.
        """
        found: dict[tuple[int, int], list[str]] = {}
        for pattern in PATTERNS:
            for layer, head in np.argwhere(self._named(pattern)).tolist():
                found.setdefault((layer, head), []).append(pattern)
        return {place: tuple(found[place]) for place in sorted(found)}

    def examples(self, pattern: str, layer: int, head: int) -> tuple[Example, ...]:
        """The best three rows of one head on one pattern."""
        return self.head(pattern, layer, head).examples

    def to_dict(self) -> dict[str, object]:
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
        size = "{} layers x {} heads".format(*self.shape)
        return f"HeadPatterns({size}: {', '.join(PATTERNS)})"


def _plain(one: PatternHead) -> dict[str, object]:
    numbers = {name: getattr(one, name) for name in ("score", "low", "high", "baseline")}
    return {
        "layer": one.layer,
        "head": one.head,
        **{n: None if math.isnan(x) else round(x, _DECIMALS) for n, x in numbers.items()},
        "named": one.named,
        "examples": [example._asdict() for example in one.examples],
    }


def patterns(
    model: Given,
    texts: Texts,
    *,
    repeated: Int[Tensor, "draws position"] | None = None,
    delimiters: Collection[int] | None = None,
    stack: str | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> HeadPatterns:
    """Score every head of a model on every pattern: means over documents.

    `model` comes from minibert.load, or from minibert.attach with a tokenizer; then the live model
    runs unchanged, and `stack` chooses among several. `texts` are what `text_parts` takes, with at
    most `longest` tokens in a part; the pattern of the same word in the other sentence needs pairs.
    Induction and duplicate are measured on `repeated`: random sequences that occur twice, as
    `minibert.analysis.repeated_ids` gives them, where only looking back helps. The default is 100
    draws of 2 x 50 tokens.
    `delimiters` are ids, by default the tokenizer's sep_id or, without one, its eos_id. `seed`
    and the document's id draw how far the cells of the "moved" baselines are away.

    Raises TokenizationError for texts that the model cannot read, and SurveyError for an attached
    model or a stack that cannot be surveyed (see `minibert.survey.survey`).
    """
    subject = surveyable(model, stack, longest)
    name, tokenizer, one = subject.name, subject.tokenizer, subject.config
    marks = chosen_delimiters(name, tokenizer, one.vocab_size, delimiters)
    draws = repeated
    if draws is None:
        sizes = one.causal, one.vocab_size, one.n_positions, one.pad_id
        draws = draws_of(name, tokenizer, *sizes)
    size = (one.n_layers, one.n_heads)
    sums = PatternSums(_of("corpus"), *size)
    _measure(subject, document_rows(subject, texts, longest=longest), sums, marks, seed)
    looking_back = PatternSums(_of("repeated"), *size)
    _measure(subject, document_rows(subject, draws), looking_back, marks, seed)
    return HeadPatterns.of([sums, looking_back])


def shift_of(seed: int, document: str) -> int:
    """How far the cells of a document are moved for a baseline: 1 to 4 places, either way."""
    return int(generator_of(seed, document).choice([-4, -3, -2, -1, 1, 2, 3, 4]))


def _of(texts: str) -> list[Pattern]:
    return [pattern for pattern in PATTERNS.values() if pattern.texts == texts]


def _measure(
    model: Surveyable,
    documents: Iterable[DocumentRows],
    sums: PatternSums,
    delimiters: list[int],
    seed: int,
) -> None:
    """Add every document to the sums.

    Layers that see the same keys are measured together: a row counts in a layer where it sees a key
    that the pattern means.
    """
    for document in documents:
        shift = shift_of(seed, document.id)
        for part in document.parts:
            marks = Marks.of_tokens(
                part.tokens, delimiters, model.tokenizer, causal=model.config.causal
            )
            shown = document.id if worth_reading(" ".join(marks.strings)) else ""
            size = max(1, NUMBERS // (model.config.n_heads * len(marks)))
            seen = [(replace(marks, seen=keys), layers) for keys, layers in part.seen()]
            for start in range(0, len(marks), size):
                queries = slice(start, min(start + size, len(marks)))
                for own, layers in seen:
                    targets = Targets.of(
                        sums.patterns, own, queries, shift=shift, dtype=model.dtype
                    )
                    sums.begin(targets, layers)
                    for layer in layers:
                        sums.add(layer, part.probs(layer, queries), targets, document=shown)
        sums.close()
