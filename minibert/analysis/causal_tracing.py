"""Causal tracing: where a state of the clean pass brings back an answer that noise took away.

1. The clean pass: the metric of the text as it is.
2. The corrupt pass: noise is added to the embeddings of the subject's tokens.
3. The corrupt pass again, with one state, at one token and around one layer, as it was in 1.

Source: Meng et al. 2022, "Locating and editing factual associations in GPT", section 2.1 and
appendix B.1: noise of three standard deviations of the embeddings, the mean of ten samples, a
window of ten layers where MLPs or attention are restored. What enters layer 0 gets the noise; in
GPT-2 that is the same as noise on the word embeddings, and in BERT it stands behind their norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_callable,
    check_choice,
    check_unedited,
    whole_number,
)
from minibert.analysis.metrics import Metric, of_sentence
from minibert.analysis.positions import Each, positions_each
from minibert.doors import Figure, plots
from minibert.errors import EditError
from minibert.quantities import Float
from minibert.trace.edit import Edit, noise, replace
from minibert.trace.read import Trace

__all__ = ["RESTORED", "CausalTraces", "around", "causal_tracing"]

RESTORED = ("resid_post", "attn_out", "mlp_out")
# The paper's groups of tokens, in the order of the text.
_KINDS = (
    "first subject token",
    "middle subject tokens",
    "last subject token",
    "first token after",
    "further tokens",
    "last token",
)


@dataclass(frozen=True, eq=False)
class CausalTraces:
    """The metric with one state restored, by layer and token; nan for padding.

    values      the mean over the samples of noise
    clean       the metric of each text as it is
    corrupt     with noise on the subject, the mean over the samples
    name        what was restored, in `window` layers around each layer
    subject     the positions of each sentence's subject
    std         the standard deviation of the noise
    """

    values: Float[Tensor, "layer batch position"]
    clean: Float[Tensor, " batch"]
    corrupt: Float[Tensor, " batch"]
    name: str
    window: int
    subject: tuple[tuple[int, ...], ...]
    std: float
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""

    @property
    def change(self) -> Float[Tensor, "layer batch position"]:
        """The indirect effect of each state: how much it moved the metric of the corrupt pass."""
        return self.values - self.corrupt[:, None]

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the rows of `mean` count: the paper's six groups of tokens."""
        return _KINDS

    @property
    def mean(self) -> Float[Tensor, "kind layer"]:
        """The average indirect effect of each group of tokens over the sentences that have it.

        In a sentence it is the mean over the group's tokens. A subject of one token is a last one.
        """
        change = self.change
        rows = []
        for kind in range(len(_KINDS)):
            found = [
                change[:, n, at].mean(-1)
                for n, subject in enumerate(self.subject)
                if (at := _kinds(subject, len(self.labels[n]))[kind])
            ]
            empty = change.new_full((len(change),), torch.nan)
            rows.append(torch.stack(found).mean(0) if found else empty)
        return torch.stack(rows)

    def plot(self, path: str | Path | None = None, *, sentence: int | None = 0) -> Figure:
        """The matplotlib Figure of the change in one sentence, token x layer; None: of the mean.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        if sentence is None:
            values, rows = self.mean, list(_KINDS)
        else:
            index, tokens = plots.chosen_sentence(self.labels, sentence)
            values = self.change[:, index, : len(tokens)].T
            rows = [f"{t}*" if n in self.subject[index] else t for n, t in enumerate(tokens)]
        heat = plots.Heat(
            values,
            rows=rows,
            columns=[str(layer) for layer in range(values.shape[1])],
            title=f"Restoring {self.name}" + f", {self.window} layers" * (self.window > 1),
            unit="change of the metric",
            row_title="" if sentence is None else "token (*: subject)",
            column_title="layer",
            signed=True,
        )
        return plots.heat_map(heat, path)


def causal_tracing(
    trace: Trace,
    subject: Each,
    metric: Metric,
    *,
    name: str = "resid_post",
    window: int | None = None,
    samples: int = 10,
    std: float | None = None,
    seed: int = 0,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> CausalTraces:
    """How far each state, restored in the pass with a corrupted subject, brings the metric back.

    subject    the subject's positions in every sentence, as `phrase_positions` finds them; one
               entry a sentence, or one position for all
    metric     of logits, one number a sentence, as `answer_probability(token)`
    name       resid_post, attn_out or mlp_out
    window     layers that are restored together, centred on each; by default 1 of resid_post, 10
               of the others
    samples    passes with noise that are averaged, with the seeds from `seed` on
    std        of the noise; by default three times that of the word embeddings of the subjects

    `positions` are those of the logits that the metric reads; `batch` passes run at once. It costs
    layers x tokens x samples passes a sentence. With a given `std` each sentence gets what it gets
    alone; without one the level is of the subjects of all sentences together.

    Raises EditError for a subject, name or number that does not fit, and TraceError for a trace
    that was made with edits.
    """
    check_unedited(trace)
    check_callable(metric, "metric", EditError)
    check_choice(name, "name", RESTORED)
    config = trace.config
    subjects = positions_each(trace, subject, "subject")
    samples = whole_number("samples", samples, EditError, least=1)
    seed = whole_number("seed", seed, EditError, least=0)
    wide = (1 if name == "resid_post" else 10) if window is None else window
    wide = whole_number("window", wide, EditError, least=1)
    level = _level(trace, subjects) if std is None else std
    noises = [noise(seed + number, std=level) for number in range(samples)]
    traced = [
        _of_sentence(trace, n, subjects[n], metric, noises, (name, wide), positions, batch)
        for n in range(trace.allowed.batch)
    ]
    values = trace.embed.new_full((config.n_layers, len(traced), trace.allowed.position), torch.nan)
    for n, (found, _, _) in enumerate(traced):
        values[:, n, : found.shape[1]] = found
    clean, corrupt = (torch.stack([each[end] for each in traced]) for end in (1, 2))
    labels = trace.tokens.strings
    return CausalTraces(values, clean, corrupt, name, wide, subjects, level, labels)


def _of_sentence(
    trace: Trace,
    sentence: int,
    subject: Sequence[int],
    metric: Metric,
    noises: Sequence[Edit],
    restored: tuple[str, int],
    positions: Sequence[int] | None,
    batch: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of one sentence: (layer, position), clean, and corrupt."""
    own, (name, window) = trace.text(sentence), restored
    L, N = trace.config.n_layers, own.allowed.position
    corrupting: list[dict[Any, Any]] = [
        {"embed": each.at(positions=list(subject))} for each in noises
    ]
    restoring = [
        {(name, each): replace(own, positions=place) for each in around(layer, window, L)}
        for layer in range(L)
        for place in range(N)
    ]
    edits = [*corrupting, *(c | r for r in restoring for c in corrupting)]
    own_metric = of_sentence(metric, sentence)
    options: dict[str, Any] = {"positions": positions, "batch": batch}
    with torch.no_grad():
        # No edit at all is the clean pass.
        clean, *rest = own.rerun_each([{}, *edits], own_metric, **options)[:, 0].split(
            [1, len(noises), len(edits) - len(noises)]
        )
    values = rest[1].unflatten(0, (L, N, len(noises))).mean(-1)
    return values, clean[0], rest[0].mean()


def around(layer: int, window: int, n_layers: int) -> range:
    """The layers of a window, as in the paper's code: cut at both ends of the model."""
    return range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))


def _level(trace: Trace, subjects: Sequence[Sequence[int]]) -> float:
    ids = torch.cat([trace.tokens.ids[n, list(at)] for n, at in enumerate(subjects)])
    rows = trace.model.body.W_E.detach()[ids.to(trace.embed.device)]
    return 3 * float(rows.double().std())


def _kinds(subject: Sequence[int], length: int) -> tuple[list[int], ...]:
    """The positions of each group of tokens; those before the subject are in none."""
    first, last, end = min(subject), max(subject), length - 1
    after = list(range(last + 1, end))
    middle = [n for n in subject if n not in (first, last)]
    ends = [] if end <= last else [end]
    return [first] if first < last else [], middle, [last], after[:1], after[1:], ends
