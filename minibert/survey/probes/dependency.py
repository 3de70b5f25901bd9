"""Heads as dependency classifiers: does a head attend from words to their syntactic heads?

Clark et al. 2019, section 4.2. A head of attention answers for each word with one other word, in
one of two directions:

dependent to head   the word that the dependent attends to most: argmax over i of attention[j, i]
head to dependent   the word that attends to the dependent most: argmax over i of attention[i, j]

No word is its own answer, and [CLS] and [SEP] are none. The baseline answers with the word at a
fixed distance, inside the sentence. Everything counted is a sum, so that parts of a corpus can be
counted apart and added.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import SurveyError
from minibert.model import Model
from minibert.quantities import Float, Int
from minibert.survey.intervals import Counts, added, share, wilson
from minibert.survey.probes.word_attention import TextOfWords, word_traces

DIRECTIONS = ("dependent to head", "head to dependent")
#: The distances that the baseline chooses from, as the authors' code does.
OFFSETS = (*range(-10, 0), *range(1, 11))
#: The name of all relations together, punctuation left out.
ALL = "all"
_POSSESSIVES = {"poss", "nmod:poss"}
_MARKERS = {"'s", "'", "’s", "’", "s'"}


@runtime_checkable
class Tree(TextOfWords, Protocol):
    """A sentence with its dependency tree, such as minibert.survey.conllu reads."""

    @property
    def heads(self) -> Sequence[int]:
        """The place of each word's head in `words`, from 0 on; -1 for a root."""

    @property
    def relations(self) -> Sequence[str]:
        """The relation from each word's head to it."""


@dataclass(frozen=True)
class DependencyCounts:
    """How often each head of a model, and each fixed distance, found the head of a word.

    correct    of each relation (direction, layer, head), directions as in DIRECTIONS
    offsets    of each relation (offset), as in OFFSETS
    instances  of each relation
    """

    correct: Mapping[str, Counts]
    offsets: Mapping[str, Counts]
    instances: Mapping[str, int]
    sentences: int

    def __add__(self, other: "DependencyCounts") -> "DependencyCounts":
        """The counts of both parts together."""
        return DependencyCounts(
            correct=added(self.correct, other.correct),
            offsets=added(self.offsets, other.offsets),
            instances=added(self.instances, other.instances),
            sentences=self.sentences + other.sentences,
        )


@dataclass(frozen=True)
class RelationScore:
    """The best head of a relation and the best distance, chosen on one part, measured on another.

    Accuracies are shares, 0 to 1; `low` and `high` are the 95 % interval of `accuracy`.
    """

    relation: str
    instances: int
    direction: str
    layer: int
    head: int
    accuracy_when_chosen: float
    accuracy: float
    low: float
    high: float
    offset: int
    offset_accuracy: float


def answers(attention: Float[Tensor, "head word word"]) -> Int[Tensor, "2 head word"]:
    """The word that each head of attention answers with, for each word and direction."""
    others = attention.clone()
    # Below every weight, so that a word is not its own answer even where all weights are 0.
    others.diagonal(dim1=-2, dim2=-1).fill_(-1)
    return torch.stack([others.argmax(-1), others.argmax(-2)])


def count_dependencies(
    model: Model, sentences: Iterable[Tree], *, possessive_marker: bool = True
) -> DependencyCounts:
    """What each head of a model finds, for each relation of a treebank.

    Roots have no head and are left out. `ALL` has every other word but punctuation. With
    `possessive_marker`, the answer for a possessor ("dog" in "the dog 's tail") is the one given
    for the "'s" behind it, as in the paper, where one was given.

    Sentences are read as they are needed; the matrices of one layer of one sentence are held at a
    time. Raises SurveyError for a sentence without a tree, or that the model cannot
    read; see `word_traces`.
    """
    total = DependencyCounts({}, {}, {}, 0)
    for tree, words in word_traces(model, sentences):
        check_tree(tree)
        layers = [answers(words.attention(layer)) for layer in range(model.config.n_layers)]
        found = torch.stack(layers, dim=1)
        total += counted(tree, found, possessive_marker=possessive_marker)
    return total


def counted(
    tree: Tree, found: Int[Tensor, "2 layer head word"], *, possessive_marker: bool = True
) -> DependencyCounts:
    """The counts of one sentence, of which each head of the model gave these answers."""
    heads = np.asarray(tree.heads)
    asked = _asked(tree) if possessive_marker else np.arange(len(heads))
    right = found.numpy(force=True)[..., asked] == heads
    right_offsets = _by_offset(len(heads)) == heads
    places = _by_relation(tree)
    return DependencyCounts(
        correct={name: right[..., chosen].sum(-1) for name, chosen in places.items()},
        offsets={name: right_offsets[:, chosen].sum(-1) for name, chosen in places.items()},
        instances={name: len(chosen) for name, chosen in places.items()},
        sentences=1,
    )


def relation_scores(
    chosen_on: DependencyCounts, measured_on: DependencyCounts, *, least: int = 1
) -> list[RelationScore]:
    """The best head and the best distance of each relation, most frequent relation first.

    They are chosen on one part of a corpus and measured on another, so that the best of many heads
    is not praised for luck. Of equals the first is chosen: dependent to head, the lowest layer.
    Relations with fewer than `least` instances in one of the parts are left out.
    """
    scores = []
    for relation, total in chosen_on.instances.items():
        measured = measured_on.instances.get(relation, 0)
        if min(total, measured) < least:
            continue
        correct = chosen_on.correct[relation]
        place = np.unravel_index(int(correct.argmax()), correct.shape)
        direction, layer, head = map(int, place)
        offset = int(chosen_on.offsets[relation].argmax())
        hits = int(measured_on.correct[relation][place])
        low, high = wilson(hits, measured)
        scores.append(
            RelationScore(
                relation=relation,
                instances=measured,
                direction=DIRECTIONS[direction],
                layer=layer,
                head=head,
                accuracy_when_chosen=share(int(correct[place]), total),
                accuracy=share(hits, measured),
                low=low,
                high=high,
                offset=OFFSETS[offset],
                offset_accuracy=share(int(measured_on.offsets[relation][offset]), measured),
            )
        )
    return sorted(scores, key=lambda score: (-score.instances, score.relation))


def check_tree(tree: Tree) -> Tree:
    """The tree; SurveyError where it has not one head and one relation a word."""
    if not len(tree.heads) == len(tree.relations) == len(tree.words):
        raise SurveyError(
            f"Sentence {tree.id} has {len(tree.words)} words, {len(tree.heads)} heads and "
            f"{len(tree.relations)} relations; expected one of each a word. A treebank has them."
        )
    return tree


def is_punctuation(relation: str) -> bool:
    """Whether the relation is one of punctuation, which no score of all relations counts."""
    return relation.partition(":")[0] == "punct"


def _asked(tree: Tree) -> npt.NDArray[np.int64]:
    """The word that is asked for each word's head: itself, or the 's behind a possessor."""
    words, last = tree.words, len(tree.words) - 1
    return np.array(
        [
            place + 1
            if relation in _POSSESSIVES and place < last and words[place + 1] in _MARKERS
            else place
            for place, relation in enumerate(tree.relations)
        ]
    )


def _by_offset(n_words: int) -> npt.NDArray[np.int64]:
    """The word at each distance from each word; the sentence's end where there is none."""
    places = np.arange(n_words) + np.array(OFFSETS)[:, None]
    return places.clip(0, n_words - 1)


def _by_relation(tree: Tree) -> dict[str, list[int]]:
    """The words of each relation, and of all of them but punctuation."""
    places: dict[str, list[int]] = {}
    for place, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        if head < 0:
            continue
        places.setdefault(relation, []).append(place)
        if not is_punctuation(relation):
            places.setdefault(ALL, []).append(place)
    return places
