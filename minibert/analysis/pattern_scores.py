"""How far heads follow patterns of one's own: head detectors beside the five of patterns.py.

A pattern is a function of one sentence that says which keys each query should look at. A score is
what patterns.py scores by: the share of attention, 0 to 1, that goes there, as the mean
over the rows for which the pattern says something.

TransformerLens' `detect_head` takes such patterns too, and divides by all of the attention instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_callable, check_model
from minibert.analysis.matrix_scores import mean_of_rows
from minibert.analysis.precision import wide
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["PatternScores", "pattern_scores"]

Pattern = Callable[[Tokens], Tensor]


@dataclass(frozen=True, eq=False)
class PatternScores:
    """The share of its attention that each head spends where each pattern says; nan: nowhere."""

    names: tuple[str, ...]
    values: Float[Tensor, "pattern layer head"]

    def best(self, name: str) -> tuple[int, int, float]:
        """The layer and head that score highest on a pattern, counted from 0, and the score.

        Raises TraceError for a name that is no pattern, and where nothing was measured.
        """
        if name not in self.names:
            raise TraceError(f"{name!r:.80} is no pattern here; there are {', '.join(self.names)}.")
        table = self.values[self.names.index(name)]
        if bool(table.isnan().all()):
            raise TraceError(f"{name!r} named no key in these texts, so no head has a score.")
        layer, head = divmod(int(table.argmax()), table.shape[1])
        return layer, head, float(table[layer, head])

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of every pattern: a layer x head map each.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises MinibertError without
        matplotlib.
        """
        unit = "share of attention"
        tables = [
            plots.by_head(values, title=name, unit=unit, limits=(0.0, 1.0))
            for name, values in zip(self.names, self.values, strict=True)
        ]
        return plots.heat_maps(tables, path)


def pattern_scores(model: "Model", text: Any, patterns: Mapping[str, Pattern]) -> PatternScores:
    """The score of every head on each pattern: the mean over sentences of what each one scores.

    A pattern is called with the Tokens of one sentence, without padding, and returns a mask or
    weights from 0 to 1, (query, key). Only rows with a key count, and only sentences with a row.

    Raises TraceError for what is no pattern and for weights of another shape or out of range, and
    TokenizationError for input that the model cannot read.
    """
    check_model(model)
    if not isinstance(patterns, Mapping) or not patterns:
        raise TraceError('patterns: expected functions by name, as {"first": function}.')
    for name, pattern in patterns.items():
        check_callable(pattern, f"patterns[{name!r:.80}]", TraceError)
    tokens = model.inputs(text).as_tokens(model.tokenizer)
    # The last layer's attention is all that is wanted of it: no MLP, no logits.
    with torch.no_grad():
        trace = model.trace(tokens, until=model.config.n_layers - 1)
        scores = torch.stack(
            [_of_sentence(trace.text(row), patterns) for row in range(len(tokens))]
        )
    return PatternScores(tuple(patterns), scores.nanmean(0))


def _of_sentence(
    trace: Trace, patterns: Mapping[str, Pattern]
) -> Float[Tensor, "pattern layer head"]:
    N = trace.allowed.position
    found = [_weights(name, pattern, trace.tokens, N) for name, pattern in patterns.items()]
    weights = torch.stack(found).to(trace.embed.device)
    rows = weights.any(-1)[:, None]  # pattern 1 query
    layers = []
    for layer in trace:
        probs = wide(layer.probs)[0]
        mass = torch.einsum("hqk,nqk->nhq", probs, weights.to(probs))
        layers.append(mean_of_rows(mass, rows))
    return torch.stack(layers, 1)


def _weights(name: str, pattern: Pattern, tokens: Tokens, length: int) -> Float[Tensor, "q k"]:
    found = pattern(tokens)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (length, length):
        raise TraceError(
            f"The pattern {name!r:.80} gave {shape} for {length} tokens; expected a tensor of "
            f"shape {(length, length)}, (query, key)."
        )
    weights = found.to(torch.float32)
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise TraceError(f"The pattern {name!r:.80}: expected a mask, or weights from 0 to 1.")
    return weights
