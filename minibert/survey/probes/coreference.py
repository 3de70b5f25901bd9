"""Heads as antecedent selectors: whom does the head word of a mention attend to?

Clark et al. 2019, section 4.3. Of the mentions before it, a mention's head word attends to the head
word of one the most; that is right where both stand for the same person or thing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from minibert.quantities import Float
from minibert.survey.probes.counts import Counts, added, share, wilson
from minibert.survey.probes.word_attention import word_traces

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = [
    "ALL",
    "AntecedentScore",
    "Choice",
    "CoreferenceCounts",
    "Passage",
    "antecedent_scores",
    "chosen_by_attention",
    "count_antecedents",
    "counted",
]

#: The name of all kinds of mention together.
ALL = "all"


@dataclass(frozen=True)
class Choice:
    """One mention that has to find what it stands for among candidates.

    kind        of mention, for the table
    word        the place of the mention's head word in its passage
    candidates  the places of theirs
    right       of each candidate, whether it is the same person or thing
    picks       of each baseline by its name, the number of the candidate it chooses, or None
    """

    kind: str
    word: int
    candidates: tuple[int, ...]
    right: tuple[bool, ...]
    picks: Mapping[str, int | None]


@dataclass(frozen=True)
class Passage:
    """Words that a model reads at once, and the choices in them."""

    id: str
    words: tuple[str, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class CoreferenceCounts:
    """How often each head, and each baseline, chose rightly.

    correct    of each kind of mention (layer, head)
    baselines  of each kind and name of a baseline
    instances  of each kind
    """

    correct: Mapping[str, Counts]
    baselines: Mapping[tuple[str, str], int]
    instances: Mapping[str, int]
    passages: int

    def __add__(self, other: "CoreferenceCounts") -> "CoreferenceCounts":
        """The counts of both parts together."""
        return CoreferenceCounts(
            correct=added(self.correct, other.correct),
            baselines=added(self.baselines, other.baselines),
            instances=added(self.instances, other.instances),
            passages=self.passages + other.passages,
        )


@dataclass(frozen=True)
class AntecedentScore:
    """The best head for a kind of mention, chosen on one part of the texts, measured on another.

    Accuracies are shares, 0 to 1; `low` and `high` are the 95 % interval of `accuracy`.
    `accuracy_of_one` is that of the head that is best for all kinds together; `baselines` are
    measured on the same mentions.
    """

    kind: str
    instances: int
    layer: int
    head: int
    accuracy_when_chosen: float
    accuracy: float
    low: float
    high: float
    accuracy_of_one: float
    baselines: Mapping[str, float]


def chosen_by_attention(attention: Float[Tensor, "layer head word word"], choice: Choice) -> Counts:
    """The number of the candidate that each head (layer, head) chooses; the first of equals."""
    row = attention[:, :, choice.word, list(choice.candidates)]
    return row.argmax(-1).numpy(force=True)


def count_antecedents(model: "Model", passages: Iterable[Passage]) -> CoreferenceCounts:
    """How often each head of a model chooses rightly, and each baseline.

    Passages without a choice are left out. Raises SurveyError for a passage that the model cannot
    read; see `word_traces`.
    """
    total = CoreferenceCounts({}, {}, {}, 0)
    for passage, words in word_traces(model, [one for one in passages if one.choices]):
        attention = torch.stack([words.attention(n) for n in range(model.config.n_layers)])
        total += counted(passage, attention)
    return total


def counted(
    passage: Passage, attention: Float[Tensor, "layer head word word"]
) -> CoreferenceCounts:
    """The counts of one passage."""
    correct: dict[str, Counts] = {}
    picked: dict[tuple[str, str], int] = {}
    instances: dict[str, int] = {}
    for choice in passage.choices:
        hits = np.array(choice.right)[chosen_by_attention(attention, choice)].astype(np.int64)
        picks = {
            name: int(pick is not None and choice.right[pick])
            for name, pick in choice.picks.items()
        }
        for kind in (choice.kind, ALL):
            correct = added(correct, {kind: hits})
            picked = added(picked, {(kind, name): hit for name, hit in picks.items()})
            instances = added(instances, {kind: 1})
    return CoreferenceCounts(correct, picked, instances, 1)


def antecedent_scores(
    chosen_on: CoreferenceCounts, measured_on: CoreferenceCounts
) -> list[AntecedentScore]:
    """The best head for each kind of mention, all together first.

    Heads are chosen on one part of the texts and measured on another. Of equals the first is
    chosen. Kinds that one of the parts lacks are left out.
    """
    kinds = [kind for kind in chosen_on.instances if kind in measured_on.instances]
    return [
        _score(kind, chosen_on, measured_on)
        for kind in sorted(kinds, key=lambda kind: (kind != ALL, -measured_on.instances[kind]))
    ]


def _score(
    kind: str, chosen_on: CoreferenceCounts, measured_on: CoreferenceCounts
) -> AntecedentScore:
    correct, total = chosen_on.correct[kind], chosen_on.instances[kind]
    layer, head = _best(correct)
    measured = measured_on.instances[kind]
    hits = int(measured_on.correct[kind][layer, head])
    low, high = wilson(hits, measured)
    of_one = int(measured_on.correct[kind][_best(chosen_on.correct[ALL])])
    names: Sequence[str] = [name for other, name in measured_on.baselines if other == kind]
    return AntecedentScore(
        kind=kind,
        instances=measured,
        layer=layer,
        head=head,
        accuracy_when_chosen=share(int(correct[layer, head]), total),
        accuracy=share(hits, measured),
        low=low,
        high=high,
        accuracy_of_one=share(of_one, measured),
        baselines={name: share(measured_on.baselines[kind, name], measured) for name in names},
    )


def _best(correct: Counts) -> tuple[int, int]:
    layer, head = np.unravel_index(int(correct.argmax()), correct.shape)
    return int(layer), int(head)
