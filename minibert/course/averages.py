"""Unit 1: weighted averages with three vectors of four numbers, and tokens."""

import torch

from minibert.course.answers import Exercise, Mistake, Numbers
from minibert.course.lab import traced
from minibert.course.texts import HORSE

VECTORS = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 1.0], [4.0, 1.0, 1.0, 0.0]])
WEIGHTS = torch.tensor([0.4, 0.3, 0.3])
SCORES = torch.tensor([2.0, 1.0, 0.0])
KEYS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
QUERY = torch.tensor([1.0, 0.0, 1.0, 0.0])


def _attended() -> list[float]:
    return ((KEYS @ QUERY).softmax(-1) @ VECTORS).tolist()


EXERCISES: dict[str, Exercise] = {
    "1-average": Numbers(
        "a = [1, 0, 2, 1], b = [0, 2, 0, 1], c = [4, 1, 1, 0]. What is 0.4·a + 0.3·b + 0.3·c? Give "
        "four numbers.",
        lambda: (WEIGHTS @ VECTORS).tolist(),
        0.02,
        "Each number of the result lies between the smallest and the largest in its column.",
        (
            Mistake(
                lambda: VECTORS.mean(0).tolist(),
                "That is the plain average: all three weights equal.",
            ),
            Mistake(
                lambda: VECTORS.sum(0).tolist(),
                "That is the sum of the vectors: multiply each by its weight first.",
            ),
            Mistake(
                lambda: (WEIGHTS.flip(0) @ VECTORS).tolist(),
                "That gives the weights in the other order: 0.4 belongs to a.",
            ),
        ),
    ),
    "1-softmax": Numbers(
        "The scores are 2, 1 and 0. Which weights does the softmax make of them? Give three "
        "numbers.",
        lambda: SCORES.softmax(-1).tolist(),
        0.01,
        "Weights are positive and their sum is 1. One more in a score means e = 2.718 times "
        "the weight.",
        (
            Mistake(
                lambda: (SCORES / SCORES.sum()).tolist(),
                "That divides the scores by their sum. Take exp of each score first.",
            ),
            Mistake(
                lambda: SCORES.exp().tolist(),
                "Those are the exponentials. Divide each by their sum.",
            ),
            Mistake(
                lambda: [1.0, 0.0, 0.0],
                "That is the maximum alone. The softmax gives the others something, too.",
            ),
            Mistake(
                lambda: (2**SCORES / (2**SCORES).sum()).tolist(),
                "That is 2 to the power of each score. Take e = 2.718 in place of 2.",
            ),
        ),
    ),
    "1-attend": Numbers(
        "The query is [1, 0, 1, 0]; the keys are [1, 0, 1, 0], [0, 1, 0, 1] and [1, 1, 0, 0]; the "
        "values are a, b and c of exercise 1-average. Scores are dot products, weights their "
        "softmax. What is the average of the values? Give four numbers.",
        _attended,
        0.02,
        "That is attention: dot products, softmax, weighted average.",
        (
            Mistake(
                lambda: ((KEYS @ QUERY).softmax(-1) @ KEYS).tolist(),
                "That averages the keys. Keys decide the weights; what is averaged are the values.",
            ),
            Mistake(
                lambda: ((KEYS @ QUERY) @ VECTORS).tolist(),
                "That takes the dot products as weights. Put the softmax between them.",
            ),
            Mistake(
                lambda: VECTORS.mean(0).tolist(),
                "That is the plain average: the query did not matter.",
            ),
        ),
    ),
    "1-tokens": Numbers(
        f"How many tokens does tiny-bert read for “{HORSE}”?",
        lambda: float(len(traced(HORSE).tokens.strings[0])),
        0.1,
        "[CLS] stands in front and [SEP] behind; each word here is one token.",
        (
            Mistake(
                lambda: float(len(HORSE.split())),
                "Those are the words. The model also reads [CLS] in front and [SEP] behind.",
            ),
            Mistake(
                lambda: float(len(HORSE.split()) + 1),
                "Two tokens are added, not one: [CLS] in front and [SEP] behind.",
            ),
            Mistake(lambda: float(len(HORSE)), "Those are the characters. A token here is a word."),
        ),
    ),
}
