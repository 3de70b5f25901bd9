"""Unit 2: query, key, scale, softmax and value, at one weight of one head."""

from functools import cache
from typing import Any

from torch import Tensor

from minibert.course.answers import Choice, Exercise, Mistake, Numbers
from minibert.course.lab import bert, place, said, scores, token_id, traced, without
from minibert.course.texts import HORSE, TIRED
from minibert.trace.edit import zero

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


@cache
def _verbs(equal: bool) -> dict[str, float]:
    """The probabilities of the four verbs, with attention or with equal weights everywhere."""
    trace = traced(TIRED)
    edit: dict[Any, Any] = {("scores", layer): zero for layer in range(bert().config.n_layers)}
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


EXERCISES: dict[str, Exercise] = {
    "2-score": Numbers(
        "Divide the dot product by √d. What is the score?",
        _score,
        0.05,
        "The score is a dot product on a scale that does not depend on the number of dimensions.",
        (
            Mistake(
                lambda: _score() * _scale(),
                "That is the dot product itself. Divide it by √32 = 5.657.",
            ),
            Mistake(
                lambda: _score() / _scale(),
                "That divides by d = 32. Divide by its square root, 5.657.",
            ),
            Mistake(lambda: _score() * _scale() ** 2, "That multiplies by √32. Divide."),
        ),
    ),
    "2-weight": Numbers(
        "Which weight does “horse” give “quickly”?",
        lambda: float(_row()[2][_row()[1]]),
        0.005,
        "A score a few units above the others takes nearly all of the weight.",
        (
            Mistake(
                lambda: float(_row()[0][_row()[1]] / _row()[0].sum()),
                "That divides the score by the sum of the scores. Take exp of every score first.",
            ),
            Mistake(
                lambda: float(
                    _row()[0].exp()[_row()[1]]
                    / (_row()[0].exp().sum() - _row()[0].exp()[_row()[1]])
                ),
                "That divides by the sum of the others. The sum below has exp of this score as "
                "well.",
            ),
        ),
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
            Mistake(lambda: float(_row()[2][_row()[1]]), "That is the weight with the scale."),
            Mistake(
                lambda: float((_row()[0] / _scale()).softmax(-1)[_row()[1]]),
                "That divides twice. Leave the division out: the scores become 5.657 times as "
                "large.",
            ),
        ),
        (0.0, 1.0, "A weight lies between 0 and 1."),
    ),
    "2-equal": Numbers(
        "All scores of “horse” are 0. Which weight does “quickly” get?",
        lambda: 1 / len(_row()[0]),
        0.005,
        "Equal scores make attention a plain average over all tokens.",
        (
            Mistake(lambda: 0.0, "A score of 0 is not a weight of 0: exp(0) = 1."),
            Mistake(lambda: 1.0, "exp(0) = 1, and it is still divided by the sum of all of them."),
            Mistake(
                lambda: 1 / len(HORSE.split()),
                "That counts the words. [CLS] and [SEP] are tokens, too.",
            ),
        ),
        (0.0, 1.0, "A weight lies between 0 and 1."),
    ),
    "2-uniform": Choice(
        f"“{TIRED}” with all scores of every head set to 0: which word does the model put first?",
        dict.fromkeys(VERBS, ""),
        lambda: _top(True),
        _about,
    ),
    "2-variance": Numbers(
        "Two vectors of 64 independent numbers, each of mean 0 and variance 1. What is the "
        "standard "
        "deviation of their dot product?",
        lambda: 8.0,
        0.2,
        "A sum of d such products has the variance d, so its standard deviation is √d: BERT "
        "divides by 8.",
        (
            Mistake(
                lambda: 64.0, "That is the variance. The standard deviation is its square root."
            ),
            Mistake(
                lambda: 1.0, "One product has standard deviation 1; here are 64 of them in a sum."
            ),
        ),
    ),
}
