"""Units 1 and 2: weighted averages of a few vectors, and one weight of one head, step by step."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from minibert.course.answers import A_WEIGHT, Choice, Exercise, Numbers
from minibert.course.lab import (
    Edits,
    bert,
    every_head,
    place,
    said,
    scores,
    token_id,
    traced,
    without,
)
from minibert.course.texts import HORSE, TIRED
from minibert.trace.edit import zero

VECTORS = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 1.0], [4.0, 1.0, 1.0, 0.0]])
WEIGHTS = torch.tensor([0.4, 0.3, 0.3])
SCORES = torch.tensor([2.0, 1.0, 0.0])
KEYS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
QUERY = torch.tensor([1.0, 0.0, 1.0, 0.0])


def _weights() -> Tensor:
    return (KEYS @ QUERY).softmax(-1)


def _other_averages() -> Iterator[tuple[list[float], str]]:
    """The average with the weights at other vectors, or without one of the vectors."""
    for order in set(permutations(WEIGHTS.tolist())) - {tuple(WEIGHTS.tolist())}:
        said = "That gives the weights in another order: 0.4 belongs to a."
        yield (torch.tensor(order) @ VECTORS).tolist(), said
    for left_out, letter in enumerate("abc"):
        kept = WEIGHTS.where(torch.arange(3) != left_out, torch.zeros(()))
        yield (kept @ VECTORS).tolist(), f"That leaves out {letter}."


_AVERAGES: dict[str, Exercise] = {
    "1-average": Numbers(
        "a = [1, 0, 2, 1], b = [0, 2, 0, 1], c = [4, 1, 1, 0]. What is 0.4·a + 0.3·b + 0.3·c? Give "
        "four numbers.",
        lambda: (WEIGHTS @ VECTORS).tolist(),
        0.02,
        "Each number of the result lies between the smallest and the largest in its column.",
        (
            "Take this number of a, of b and of c, each times its weight, and add the three.",
            "Take this number of a, of b and of c, each times its weight, and add the three.",
        ),
        (
            (lambda: VECTORS.mean(0).tolist(), "That is the plain average: all weights equal."),
            (
                lambda: VECTORS.sum(0).tolist(),
                "That is the sum of the vectors: multiply each by its weight first.",
            ),
            (
                lambda: VECTORS.mean(1).tolist(),
                "That is one number for each vector: the average along the wrong axis. Average the "
                "first numbers of a, b and c, then the second ones, and so on.",
            ),
        ),
        _other_averages,
    ),
    "1-softmax": Numbers(
        "The scores are 2, 1 and 0. Which weights does the softmax make of them? Give three "
        "numbers.",
        lambda: SCORES.softmax(-1).tolist(),
        0.01,
        "Weights are positive and their sum is 1. One more in a score means e = 2.718 times "
        "the weight.",
        (
            "It is exp of its score, divided by the sum of all three exponentials.",
            "It is exp of its score, divided by the sum of all three exponentials.",
        ),
        (
            (
                lambda: (SCORES / SCORES.sum()).tolist(),
                "That divides the scores by their sum. Take exp of each score first.",
            ),
            (
                lambda: SCORES.exp().tolist(),
                "Those are the exponentials. Divide each by their sum.",
            ),
            (
                lambda: (SCORES - 2).exp().tolist(),
                "Those are divided by the largest exponential. Divide by the sum of all three.",
            ),
            (
                lambda: [1.0, 0.0, 0.0],
                "That is the maximum alone. The softmax gives the others something, too.",
            ),
            (
                lambda: (2**SCORES / (2**SCORES).sum()).tolist(),
                "That is 2 to the power of each score. Take e = 2.718 in place of 2.",
            ),
            (
                lambda: SCORES.log_softmax(-1).tolist(),
                "Those are the logarithms of the weights. Take exp of them.",
            ),
            (
                lambda: SCORES.sigmoid().tolist(),
                "That takes each score alone. The weights of a softmax have the sum 1.",
            ),
            (lambda: [1 / 3] * 3, "Those are equal weights, as if all scores were equal."),
        ),
    ),
    "1-attend": Numbers(
        "The query is [1, 0, 1, 0]; the keys are [1, 0, 1, 0], [0, 1, 0, 1] and [1, 1, 0, 0]; the "
        "values are a, b and c of exercise 1-average. Scores are dot products, weights their "
        "softmax. What is the average of the values? Give four numbers.",
        lambda: (_weights() @ VECTORS).tolist(),
        0.02,
        "That is attention: dot products, softmax, weighted average.",
        (
            "The scores are 2, 0 and 1. Which weights do they give, and which average?",
            "The scores are 2, 0 and 1. Which weights do they give, and which average?",
        ),
        (
            (
                lambda: (_weights() @ KEYS).tolist(),
                "That averages the keys. Keys decide the weights; what is averaged are the values.",
            ),
            (
                lambda: ((KEYS @ QUERY) @ VECTORS).tolist(),
                "That takes the dot products as weights. Put the softmax between them.",
            ),
            (
                lambda: ((KEYS @ QUERY).exp() @ VECTORS).tolist(),
                "That takes the exponentials as weights. Divide each by their sum first.",
            ),
            (
                lambda: VECTORS.mean(0).tolist(),
                "That is the plain average: the query did not matter.",
            ),
            (
                lambda: VECTORS[0].tolist(),
                "That is the value of the best key alone. The others have weight, too.",
            ),
            (
                lambda: ((KEYS @ QUERY / 2).softmax(-1) @ VECTORS).tolist(),
                "That divides the scores by √4. This exercise has no such scale; unit 2 has it.",
            ),
            (
                lambda: ((VECTORS @ QUERY).softmax(-1) @ VECTORS).tolist(),
                "That compares the query with the values. Compare it with the keys.",
            ),
            (
                lambda: (KEYS @ QUERY).tolist(),
                "Those are the scores. Make weights of them, then average the values.",
            ),
            (lambda: _weights().tolist(), "Those are the weights. Average the values with them."),
        ),
    ),
    "1-tokens": Numbers(
        f"How many tokens does tiny-bert read for “{HORSE}”?",
        lambda: float(len(traced(HORSE).tokens.strings[0])),
        0.1,
        "[CLS] stands in front and [SEP] behind; each word here is one token.",
        (
            "Count each word, and what BERT puts before and after the text.",
            "Each word here is one token, and two are added.",
        ),
        (
            (
                lambda: float(len(HORSE.split())),
                "Those are the words. The model also reads [CLS] in front and [SEP] behind.",
            ),
            (
                lambda: float(len(HORSE.split()) + 1),
                "Two tokens are added, not one: [CLS] in front and [SEP] behind.",
            ),
            (lambda: float(len(HORSE)), "Those are the characters. A token here is a word."),
        ),
    ),
}


VERBS = ("are", "were", "was", "is")


def next_head() -> tuple[int, int]:
    """The head that looks at the next token."""
    return scores().best("next")[:2]


@cache
def _row() -> tuple[Tensor, int, Tensor]:
    """The scores of the query of horse, the position of quickly, and the weights."""
    trace = traced(HORSE)
    at = trace[next_head()]
    query = place(trace, "horse")
    return at.scores[0, query].double(), place(trace, "quickly"), at.probs[0, query].double()


def _scale() -> float:
    return bert().config.d_head ** 0.5


def _score() -> float:
    row, key, _ = _row()
    return float(row[key])


def _unscaled() -> float:
    row, key, _ = _row()
    return float((row * _scale()).softmax(-1)[key])


def _elsewhere(quantity: Callable[[Tensor], Tensor]) -> Iterator[tuple[float, str]]:
    """The same quantity of other keys, queries and heads, and along the other axis.

    `quantity` makes a table (query, key) of the scores.
    """
    trace = traced(HORSE)
    words, home = trace.tokens.strings[0], next_head()
    query, key = place(trace, "horse"), place(trace, "quickly")
    scores = trace[home].scores[0].double()
    table = quantity(scores)
    for other, word in enumerate(words):
        if other != key:
            said = f"That is the key “{word}”: another column. The key here is “quickly”."
            yield float(table[query, other]), said
        if other != query:
            said = f"That is the query “{word}”: another row. The query here is “horse”."
            yield float(table[other, key]), said
    turned = (
        "That goes along the wrong axis. One row belongs to one query: take all keys of “horse”."
    )
    yield float(quantity(scores.mT).mT[query, key]), turned
    for layer, head in every_head(bert()):
        if (layer, head) != home:
            said = f"That is head {layer}-{head}. The page takes head {home[0]}-{home[1]}."
            yield float(quantity(trace[layer, head].scores[0].double())[query, key]), said


@cache
def _verbs(equal: bool) -> dict[str, float]:
    """The probabilities of the four verbs, with attention or with equal weights everywhere."""
    trace = traced(TIRED)
    edit: Edits = {("scores", layer): zero for layer in range(bert().config.n_layers)}
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
        (
            "The dot product stands on the page; √32 is 5.657.",
            "The dot product stands on the page; √32 is 5.657.",
        ),
        (
            (
                lambda: _score() * _scale(),
                "That is the dot product itself. Divide it by √32 = 5.657.",
            ),
            (
                lambda: _score() / _scale(),
                "That divides by d = 32. Divide by its square root, 5.657.",
            ),
            (lambda: _score() * _scale() ** 2, "That multiplies by √32. Divide."),
        ),
        lambda: _elsewhere(lambda scores: scores),
    ),
    "2-weight": Numbers(
        "Which weight does “horse” give “quickly”?",
        lambda: float(_row()[2][_row()[1]]),
        0.005,
        "A score a few units above the others takes nearly all of the weight.",
        (
            "exp makes small differences large: one more in a score is 2.718 times the weight.",
            "The other tokens get a little, too: divide by the sum of all exponentials.",
        ),
        (
            (
                lambda: float(_row()[0][_row()[1]] / _row()[0].sum()),
                "That divides the score by the sum of the scores. Take exp of every score first.",
            ),
            (
                lambda: float(
                    _row()[0].exp()[_row()[1]]
                    / (_row()[0].exp().sum() - _row()[0].exp()[_row()[1]])
                ),
                "That divides by the sum of the others. The sum below has exp of this score as "
                "well.",
            ),
        ),
        lambda: _elsewhere(lambda scores: scores.softmax(-1)),
        (
            0.0,
            1.0,
            "A weight lies between 0 and 1: divide exp(score) by the sum of all exp(score).",
        ),
    ),
    "2-unscaled": Numbers(
        "The scores are not divided by √32. Which weight does “quickly” get?",
        _unscaled,
        0.005,
        "Without the scale the softmax picks one token and nearly forgets the rest.",
        (
            "Each score is 5.657 times as large now, and so is each difference of two scores.",
            "A weight is never more than 1.",
        ),
        (
            (lambda: float(_row()[2][_row()[1]]), "That is the weight with the scale."),
            (
                lambda: float((_row()[0] / _scale()).softmax(-1)[_row()[1]]),
                "That divides twice. Leave the division out: the scores become 5.657 times as "
                "large.",
            ),
        ),
        lambda: _elsewhere(lambda scores: (scores * _scale()).softmax(-1)),
        A_WEIGHT,
    ),
    "2-equal": Numbers(
        "All scores of “horse” are 0. Which weight does “quickly” get?",
        lambda: 1 / len(_row()[0]),
        0.005,
        "Equal scores make attention a plain average over all tokens.",
        (
            "Equal scores give equal weights, and the weights sum to 1.",
            "Equal scores give equal weights, and the weights sum to 1.",
        ),
        (
            (0.0, "A score of 0 is not a weight of 0: exp(0) = 1."),
            (1.0, "exp(0) = 1, and it is still divided by the sum of all of them."),
            (
                lambda: 1 / len(HORSE.split()),
                "That counts the words. [CLS] and [SEP] are tokens, too.",
            ),
            (
                lambda: 1 / (len(HORSE.split()) + 1),
                "That counts one of [CLS] and [SEP]. Both are tokens.",
            ),
            (1 / 32, "That divides by the number of dimensions. Divide by the number of tokens."),
            (
                lambda: float(len(_row()[0])),
                "That is the number of tokens. The weight is 1 divided by it.",
            ),
        ),
        between=A_WEIGHT,
    ),
    "2-uniform": Choice(
        f"“{TIRED}” with all scores of every head set to 0: which word does the model put first?",
        dict.fromkeys(VERBS, ""),
        lambda: _top(True),
        _about,
    ),
    "2-variance": Numbers(
        "Two vectors of 64 independent numbers, each of mean 0 and variance 1. What is the "
        "standard deviation of their dot product?",
        8.0,
        0.2,
        "A sum of d such products has the variance d, so its standard deviation is √d: BERT "
        "divides by 8.",
        (
            "Variances of independent numbers add: 64 products have the variance 64.",
            "Variances add, standard deviations do not. Take the root at the end.",
        ),
        (
            (64.0, "That is the variance. The standard deviation is its square root."),
            (4096.0, "That is 64 times 64. The variance is 64; take its square root."),
            (1.0, "One product has standard deviation 1; here are 64 of them in a sum."),
        ),
    ),
}


EXERCISES = {**_AVERAGES, **_ONE_WEIGHT}
