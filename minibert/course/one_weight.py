"""Units 1 and 2: weighted averages of a few vectors, and one weight of one head, step by step."""

from functools import cache

import torch
from torch import Tensor

from minibert.course.answers import A_WEIGHT, Choice, Exercise, Numbers
from minibert.course.lab import bert, place, said, scores, token_id, traced, without
from minibert.course.texts import HORSE, TIRED
from minibert.trace.edit import EditMapping, zero

VECTORS = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 1.0], [4.0, 1.0, 1.0, 0.0]])
WEIGHTS = torch.tensor([0.4, 0.3, 0.3])
SCORES = torch.tensor([2.0, 1.0, 0.0])
KEYS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
QUERY = torch.tensor([1.0, 0.0, 1.0, 0.0])
DOTS = KEYS @ QUERY
_N_WORDS = len(HORSE.split())

_AVERAGES: dict[str, Exercise] = {
    "1-average": Numbers(
        "a = [1, 0, 2, 1], b = [0, 2, 0, 1], c = [4, 1, 1, 0]. What is 0.4·a + 0.3·b + 0.3·c? Give "
        "four numbers.",
        lambda: WEIGHTS @ VECTORS,
        0.02,
        "Each number of the result lies between the smallest and the largest in its column.",
        "Take this number of a, of b and of c, each times its weight, and add the three.",
        lambda: {
            "That is the plain average: all weights equal.": VECTORS.mean(0),
            "That is the sum of the vectors: multiply each by its weight first.": VECTORS.sum(0),
            "That is one number for each vector: the average along the wrong axis. Average the "
            "first numbers of a, b and c, then the second ones, and so on.": VECTORS.mean(1),
            "That gives b the weight of a: 0.4 belongs to a.": WEIGHTS[[1, 0, 2]] @ VECTORS,
            "That gives c the weight of a: 0.4 belongs to a.": WEIGHTS[[2, 1, 0]] @ VECTORS,
            "That leaves out a.": WEIGHTS[1:] @ VECTORS[1:],
            "That leaves out c.": WEIGHTS[:2] @ VECTORS[:2],
        },
    ),
    "1-softmax": Numbers(
        "The scores are 2, 1 and 0. Which weights does the softmax make of them? Give three "
        "numbers.",
        lambda: SCORES.softmax(-1),
        0.01,
        "Weights are positive and their sum is 1. One more in a score means e = 2.718 times "
        "the weight.",
        "It is exp of its score, divided by the sum of all three exponentials.",
        lambda: {
            "That divides the scores by their sum. Take exp of each score first.": SCORES / 3,
            "Those are the exponentials. Divide each by their sum.": SCORES.exp(),
            "Those are divided by the largest exponential. Divide by the sum of all three.": (
                SCORES - 2
            ).exp(),
            "That is the maximum alone. The softmax gives the others something, too.": [1, 0, 0],
            "That is 2 to the power of each score. Take e = 2.718 in place of 2.": 2**SCORES / 7,
            "Those are the logarithms of the weights. Take exp of them.": SCORES.log_softmax(-1),
            "That takes each score alone. The weights of a softmax have the sum 1.": (
                SCORES.sigmoid()
            ),
            "Those are equal weights, as if all scores were equal.": [1 / 3] * 3,
        },
    ),
    "1-attend": Numbers(
        "The query is [1, 0, 1, 0]; the keys are [1, 0, 1, 0], [0, 1, 0, 1] and [1, 1, 0, 0]; the "
        "values are a, b and c of exercise 1-average. Scores are dot products, weights their "
        "softmax. What is the average of the values? Give four numbers.",
        lambda: DOTS.softmax(-1) @ VECTORS,
        0.02,
        "That is attention: dot products, softmax, weighted average.",
        "The scores are 2, 0 and 1. Which weights do they give, and which average?",
        lambda: {
            "That averages the keys. Keys decide the weights; what is averaged are the values.": (
                DOTS.softmax(-1) @ KEYS
            ),
            "That takes the dot products as weights. Put the softmax between them.": DOTS @ VECTORS,
            "That takes the exponentials as weights. Divide each by their sum first.": (
                DOTS.exp() @ VECTORS
            ),
            "That is the plain average: the query did not matter.": VECTORS.mean(0),
            "That is the value of the best key alone. The others have weight, too.": VECTORS[0],
            "That divides the scores by √4. This exercise has no such scale; unit 2 has it.": (
                (DOTS / 2).softmax(-1) @ VECTORS
            ),
            "That compares the query with the values. Compare it with the keys.": (
                (VECTORS @ QUERY).softmax(-1) @ VECTORS
            ),
            "Those are the scores. Make weights of them, then average the values.": DOTS,
            "Those are the weights. Average the values with them.": DOTS.softmax(-1),
        },
    ),
    "1-tokens": Numbers(
        f"How many tokens does tiny-bert read for “{HORSE}”?",
        lambda: len(traced(HORSE).tokens.strings[0]),
        0.1,
        "[CLS] stands in front and [SEP] behind; each word here is one token.",
        "Count each word, and what BERT puts before and after the text.",
        lambda: {
            "Those are the words. The model also reads [CLS] in front and [SEP] behind.": _N_WORDS,
            "Two tokens are added, not one: [CLS] in front and [SEP] behind.": _N_WORDS + 1,
            "Those are the characters. A token here is a word.": len(HORSE),
        },
    ),
}

VERBS = ("are", "were", "was", "is")


def next_head() -> tuple[int, int]:
    """The head that looks at the next token."""
    return scores().best("next")[:2]


@cache
def _table() -> tuple[Tensor, int, int]:
    """(query, key): the scores of that head, and the places of horse and quickly."""
    trace = traced(HORSE)
    table = trace[next_head()].scores[0].double()
    return table, place(trace, "horse"), place(trace, "quickly")


def _score() -> float:
    table, query, key = _table()
    return float(table[query, key])


def _weight(scale: float = 1.0) -> float:
    """The weight of quickly where the scores are multiplied by the scale."""
    table, query, key = _table()
    return float((table[query] * scale).softmax(-1)[key])


def _column() -> float:
    """The weight along the wrong axis."""
    table, query, key = _table()
    return float(table.softmax(0)[query, key])


def _scale() -> float:
    return bert().config.d_head ** 0.5


@cache
def _verbs(equal: bool) -> dict[str, float]:
    """The probabilities of the four verbs, with attention or with equal weights everywhere."""
    trace = traced(TIRED)
    edit: EditMapping = {("scores", layer): zero for layer in range(bert().config.n_layers)}
    probs = said(without(trace, edit) if equal else trace, place(trace, "[MASK]"))
    return {verb: float(probs[token_id(bert(), verb)]) for verb in VERBS}


def _top(equal: bool) -> str:
    return max(VERBS, key=lambda verb: _verbs(equal)[verb])


def _about(verb: str) -> str:
    before, after = _verbs(False)[verb], _verbs(True)[verb]
    told = f"“{verb}” goes from {before:.3f} to {after:.3f}."
    if verb == _top(True):
        return f"{told} Without attention the mask does not know its subject."
    if verb == _top(False):
        return f"{told} It is first only as long as the model can look at “horses”."
    return told


_ONE_WEIGHT: dict[str, Exercise] = {
    "2-score": Numbers(
        "Divide the dot product by √d. What is the score?",
        _score,
        0.05,
        "The score is a dot product on a scale that does not depend on the number of dimensions.",
        "The dot product stands on the page; √32 is 5.657.",
        lambda: {
            "That is the dot product itself. Divide it by √32 = 5.657.": _score() * _scale(),
            "That divides by d = 32. Divide by its square root, 5.657.": _score() / _scale(),
            "That multiplies by √32. Divide.": _score() * 32,
        },
    ),
    "2-weight": Numbers(
        "Which weight does “horse” give “quickly”?",
        _weight,
        0.005,
        "A score a few units above the others takes nearly all of the weight.",
        "exp makes small differences large: one more in a score is 2.718 times the weight.",
        lambda: {
            "That divides the score by the sum of the scores. Take exp of every score first.": (
                _score() / float(_table()[0][_table()[1]].sum())
            ),
            "That divides by the sum of the others. The sum below has exp of this score as well.": (
                _weight() / (1 - _weight())
            ),
            "That goes along the wrong axis. One row belongs to one query: take all keys of "
            "“horse”.": _column(),
        },
        (
            0.0,
            1.0,
            "A weight lies between 0 and 1: divide exp(score) by the sum of all exp(score).",
        ),
    ),
    "2-unscaled": Numbers(
        "The scores are not divided by √32. Which weight does “quickly” get?",
        lambda: _weight(_scale()),
        0.005,
        "Without the scale the softmax picks one token and nearly forgets the rest.",
        "Each score is 5.657 times as large now, and so is each difference of two scores.",
        lambda: {
            "That is the weight with the scale.": _weight(),
            "That divides twice. Leave the division out: the scores become 5.657 times as large.": (
                _weight(1 / _scale())
            ),
        },
        A_WEIGHT,
    ),
    "2-equal": Numbers(
        "All scores of “horse” are 0. Which weight does “quickly” get?",
        lambda: 1 / len(traced(HORSE).tokens.strings[0]),
        0.005,
        "Equal scores make attention a plain average over all tokens.",
        "Equal scores give equal weights, and the weights sum to 1.",
        lambda: {
            "A score of 0 is not a weight of 0: exp(0) = 1.": 0.0,
            "exp(0) = 1, and it is still divided by the sum of all of them.": 1.0,
            "That counts the words. [CLS] and [SEP] are tokens, too.": 1 / _N_WORDS,
            "That counts one of [CLS] and [SEP]. Both are tokens.": 1 / (_N_WORDS + 1),
            "That divides by the number of dimensions. Divide by the number of tokens.": 1 / 32,
            "That is the number of tokens. The weight is 1 divided by it.": _N_WORDS + 2,
        },
        A_WEIGHT,
    ),
    "2-uniform": Choice(
        f"“{TIRED}” with all scores of every head set to 0: which word does the model put first?",
        VERBS,
        lambda: _top(True),
        _about,
    ),
    "2-variance": Numbers(
        "Two vectors of 64 independent numbers, each of mean 0 and variance 1. What is the "
        "standard deviation of their dot product?",
        lambda: 8.0,
        0.2,
        "A sum of d such products has the variance d, so its standard deviation is √d: BERT "
        "divides by 8.",
        "Variances of independent numbers add, standard deviations do not: 64 products have the "
        "variance 64.",
        lambda: {
            "That is the variance. The standard deviation is its square root.": 64.0,
            "That is 64 times 64. The variance is 64; take its square root.": 4096.0,
            "One product has standard deviation 1; here are 64 of them in a sum.": 1.0,
        },
    ),
}

EXERCISES = {**_AVERAGES, **_ONE_WEIGHT}
