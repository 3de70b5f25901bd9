"""Wrong guesses as students make them: `check` names the slip.

Each guess is worked out here from the model, by a way that is wrong in one step. It is given with
two to four significant digits, as one writes it down.
"""

import random
import re
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch

import minibert
from minibert.analysis import embedding_parts
from minibert.course import check
from minibert.course.answers import Heads, Numbers
from minibert.course.check import EXERCISES
from minibert.course.texts import BOYS, HORSE, ORDER
from minibert.trace.edit import zero

ONLY_A_SIDE = re.compile(r"Not yet\. (It is (more|less) than \S+|\d of the \d numbers .*)\Z")
Guess = tuple[str, object, str]
"""An exercise, a wrong guess, and what a hint that names the slip has in it."""


def numbers(name: str) -> list[float]:
    """The right answer."""
    exercise = EXERCISES[name]
    assert isinstance(exercise, Numbers)
    value = exercise.value()
    return [value] if isinstance(value, float) else list(value)


def slips_of_sign_and_scale() -> Iterator[Guess]:
    for name, exercise in EXERCISES.items():
        if not isinstance(exercise, Numbers):
            continue
        several = numbers(name)
        if len(several) > 1:
            yield name, [-x for x in several], "sign"
            orders = map(list, permutations(several))
            yield from ((name, order, "order") for order in orders if order != several)
        (truth,) = several if len(several) == 1 else (0.0,)
        if truth == 0:
            continue
        yield name, -truth, "sign"
        if 0.05 < truth < 1:
            yield name, 100 * truth, "per cent"
        if abs(1 / truth - truth) > exercise.tolerance:
            yield name, 1 / truth, "way round|upside|turned|tokens|words|dimension"
        if exercise.between is not None and exercise.between[1] == 1 and 0.02 < truth < 0.4:
            yield name, 1 - truth, "rest"


def slips_of_counting() -> Iterator[Guess]:
    for name in ("1-tokens", "3-second", "3-concat", "6-count"):
        (truth,) = numbers(name)
        yield name, truth + 1, "one too many|from 1|one off"
        yield name, truth - 1, r"one off|\[SEP\]|one too few"
    for name in ("5-right", "5-hidden"):
        (truth,) = numbers(name)
        yield name, truth / 60, "count|part"
        yield name, 100 * truth / 60, "per cent"
    yield "5-copies", 98, "per cent"


def slips_of_reading_a_table() -> Iterator[Guess]:
    """Another row, column, head, or the softmax over the wrong axis."""
    model = minibert.load("tiny-bert")
    trace = model.trace(HORSE)
    strings = trace.tokens.strings[0]
    query, key = strings.index("horse"), strings.index("quickly")
    ways = {
        "2-score": lambda scores: scores,
        "2-weight": lambda scores: scores.softmax(-1),
        "2-unscaled": lambda scores: (scores * 32**0.5).softmax(-1),
    }
    for name, way in ways.items():
        table = way(trace[0, 2].scores[0].double())
        for other in range(len(strings)):
            if other != key:
                yield name, float(table[query, other]), "key|column"
            if other != query:
                yield name, float(table[other, key]), "query|row"
        yield name, float(way(trace[0, 2].scores[0].double().mT).mT[query, key]), "axis|row|query"
        for head in (0, 1, 3):
            yield name, float(way(trace[0, head].scores[0].double())[query, key]), "head"
    trace = model.trace(BOYS)
    probs = torch.stack([layer.probs[0] for layer in trace])
    for layer in range(4):
        yield "4-resting", float(probs[layer, :, :, -1].mean()), "layer"
    yield "4-resting", float(probs[2:, :, :, 0].mean()), "CLS"
    lengths = torch.stack([layer.value[0].norm(dim=-1) for layer in trace])
    ratio = lengths[..., -1].mean(1) / lengths[..., 1:-1].mean((1, 2))
    for layer in range(4):
        yield "4-value", float(ratio[layer]), "layer"
    mask = trace.tokens.strings[0].index("[MASK]")
    before = trace.logits[0, mask].log_softmax(-1)
    for layers in ([0], [0, 1], [0, 1, 2, 3]):
        changed = trace.rerun({("z", n): zero for n in layers}).logits[0, mask].log_softmax(-1)
        yield "4-off", float((before.exp() * (before - changed)).sum()), "layer"
        yield "4-off", float((changed.exp() * (changed - before)).sum()), "way round|layer"
    n = len(model.tokenize(ORDER).ids[0])
    parts = embedding_parts(model, ORDER, positions=list(range(n))[::-1])
    turned = model.trace(ORDER, edit={"embed": parts.embed})
    yield "3-equal", float(turned[0, 1].probs[0].diagonal(1).mean()), "reverse"


def slips_of_arithmetic() -> Iterator[Guess]:
    vectors = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 1.0], [4.0, 1.0, 1.0, 0.0]])
    weights, scores = torch.tensor([0.4, 0.3, 0.3]), torch.tensor([2.0, 1.0, 0.0])
    yield "1-average", (weights[[1, 0, 2]] @ vectors).tolist(), "order"
    yield "1-average", (weights[[1, 2, 0]] @ vectors).tolist(), "order"
    for left_out, letter in enumerate("abc"):
        some = weights.where(torch.arange(3) != left_out, torch.zeros(()))
        yield "1-average", (some @ vectors).tolist(), f"leaves out {letter}"
    yield "1-average", vectors.mean(1).tolist(), "axis|each vector"
    yield "1-softmax", [1 / 3] * 3, "equal"
    yield "1-softmax", scores.log_softmax(-1).tolist(), "logarithm"
    yield "1-softmax", scores.sigmoid().tolist(), "alone|sum"
    yield "1-softmax", (scores - 2).exp().tolist(), "[Dd]ivide"
    keys = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    query = torch.tensor([1.0, 0.0, 1.0, 0.0])
    yield "1-attend", (keys @ query).tolist(), "scores"
    yield "1-attend", (keys @ query).softmax(-1).tolist(), "weights"
    yield "1-attend", (keys @ query).exp().matmul(vectors).tolist(), "[Dd]ivide|sum"
    yield "1-attend", (keys @ query / 2).softmax(-1).matmul(vectors).tolist(), "scale|√"
    yield "1-attend", (vectors @ query).softmax(-1).matmul(vectors).tolist(), "values?"
    yield "1-attend", vectors[0].tolist(), "alone|others"
    yield "4-entropy", 0.4515, "base 10"
    yield "4-entropy", 3.4657, "weight"
    yield "4-entropy", 2.8284, "exp"
    yield "2-variance", 4096, "64"
    yield "2-equal", 1 / 6, "both|one of"
    yield "2-equal", 1 / 32, "dimensions"
    yield "3-concat", 4, "heads"
    yield "3-second", 13, "all"
    yield "5-right", 30, "coin|half"
    yield "5-hidden", 30, "coin|half"
    yield "5-without", 1 / 7, "guess"


def slips_of_naming_a_head() -> Iterator[Guess]:
    for name in ("3-previous", "3-neurons", "5-head", "5-induction"):
        exercise = EXERCISES[name]
        assert isinstance(exercise, Heads)
        truth = [tuple(map(int, head.split("-"))) for head in sorted(exercise.heads())]
        if all(head < 3 and layer < 3 for layer, head in truth):
            yield name, [f"{layer + 1}-{head + 1}" for layer, head in truth], "counted from 0"
        turned = [f"{head}-{layer}" for layer, head in truth]
        if set(turned) != set(exercise.heads()):
            yield name, turned, "layer first|comes first"


KINDS = {
    kind.__name__: kind
    for kind in (
        slips_of_sign_and_scale,
        slips_of_counting,
        slips_of_reading_a_table,
        slips_of_arithmetic,
        slips_of_naming_a_head,
    )
}


def written(guess: object, digits: int) -> object:
    """A number as one writes it down, with so many significant digits."""
    if isinstance(guess, list):
        return [written(one, digits) for one in guess]
    return float(f"{guess:.{digits}g}") if isinstance(guess, float) else guess


def wrong(kind: str, seed: int) -> list[Guess]:
    """The slips of a kind as they are written down, less those that give a right answer."""
    draw = random.Random(seed)
    guesses = [(name, written(guess, draw.choice((2, 3, 4))), said)
               for name, guess, said in KINDS[kind]()]  # fmt: skip
    return [one for one in guesses if not check(one[0], one[1])]


@pytest.mark.parametrize("kind", KINDS)
def test_the_hint_names_the_slip(kind: str) -> None:
    guesses = wrong(kind, random.randrange(2**32))
    said = [(name, guess, wanted, check(name, guess).said) for name, guess, wanted in guesses]
    unnamed = [one for one in said if not re.search(one[2], one[3])]
    assert len(unnamed) <= 0.1 * len(said), unnamed
    assert not any(ONLY_A_SIDE.match(one[3]) for one in said)
