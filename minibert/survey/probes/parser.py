"""How many words get their right head from attention alone, from attention and words, and without.

Clark et al. 2019, section 5, table 3: probes (pair_probe.py) are trained on one part of a treebank
and measured on another, beside probes that see distances instead of attention, a model with random
weights, and two rules. Punctuation counts nowhere, as is usual for English; ROOT counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tqdm import tqdm

from minibert.errors import SurveyError
from minibert.survey.probes.counts import share, wilson
from minibert.survey.probes.dependency import Tree
from minibert.survey.probes.pair_features import Example, examples, with_distances
from minibert.survey.probes.pair_probe import Training, attachment, check_enough, train_probe

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["WORD_DIMENSIONS", "AttachmentScore", "attachment_scores", "branching"]

#: Dimensions of word vectors that a probe sees: a treebank of 25,000 words cannot fit many more.
WORD_DIMENSIONS = 32
#: With and without words: with them there are many more weights, which have to stay small.
_ALONE, _WITH_WORDS = Training(), Training(learning_rate=0.01, decay=1e-4)


@dataclass(frozen=True)
class AttachmentScore:
    """The unlabelled attachment score of one way to find heads.

    score  the share of words that got their right head, 0 to 1; `low` and `high` are its 95 %
           interval
    """

    name: str
    correct: int
    words: int
    score: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, correct: int, words: int) -> "AttachmentScore":
        """The score of this many right words of all."""
        return cls(name, correct, words, share(correct, words), *wilson(correct, words))


def branching(sentences: Sequence[Example], offset: int) -> tuple[int, int]:
    """How many words have their neighbour as head, and how many count.

    `offset` is 1 for the next word and -1 for the previous one; a word without one is a root.
    """
    correct = words = 0
    for one in sentences:
        n_words = len(one.heads)
        for place, (head, counts) in enumerate(zip(one.heads, one.counted, strict=True), start=1):
            answer = place + offset if 1 <= place + offset <= n_words else 0
            correct += int(counts and head == answer)
            words += int(counts)
    return correct, words


def attachment_scores(
    model: "Model",
    trained_on: Sequence[Tree],
    measured_on: Sequence[Tree],
    *,
    random_model: "Model | None" = None,
    n_dimensions: int = WORD_DIMENSIONS,
    training: Training | None = None,
) -> list[AttachmentScore]:
    """The attachment scores of every way, rules first.

    `random_model` is the same model with weights that nobody trained; its probes get the words of
    `model`, as in the paper. Word vectors are the model's input embeddings in `n_dimensions`
    principal dimensions: like the paper's GloVe they say which word it is and nothing of its
    sentence, and every model has them.

    Attention is collected once for each model and held in memory (see `examples`). The same input
    gives the same scores. Raises SurveyError for trees that cannot be read or trained on.
    """
    check_enough(len(trained_on), training or _ALONE)
    if not measured_on:
        raise SurveyError("There are no sentences to measure on; give some.")
    width = model.body.word.weight.shape[1]
    if not 1 <= n_dimensions <= width:
        raise SurveyError(
            f"{n_dimensions} dimensions of word vectors: expected 1 to {width}, as many as "
            f"{model.name}'s input embeddings have."
        )
    parts = [examples(model, trees) for trees in (trained_on, measured_on)]
    ways = {"distances": list(map(with_distances, parts))}
    if random_model is not None:
        untrained = [examples(random_model, trees) for trees in (trained_on, measured_on)]
        ways["attention of random weights"] = [
            [replace(one, vectors=other.vectors) for one, other in zip(*pair, strict=True)]
            for pair in zip(untrained, parts, strict=True)
        ]
    ways["attention"] = parts
    scores = [
        AttachmentScore.of("next word (right-branching)", *branching(parts[1], 1)),
        AttachmentScore.of("previous word (left-branching)", *branching(parts[1], -1)),
    ]
    with tqdm(total=2 * len(ways), disable=None, unit="probe", leave=False) as progress:
        for name, (train, measure) in ways.items():
            for dimensions in (0, n_dimensions):
                how = training or (_WITH_WORDS if dimensions else _ALONE)
                probe = train_probe(train, n_dimensions=dimensions, training=how)
                whole = f"{name} and words" if dimensions else name
                scores.append(AttachmentScore.of(whole, *attachment(probe, measure)))
                progress.update()
    return scores
