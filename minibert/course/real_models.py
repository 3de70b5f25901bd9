"""Unit 6: real BERT, what Clark and Vig found, and a sentiment that is a coin."""

from functools import cache

import torch

from minibert.course.answers import Choice, Exercise, Mistake, Numbers
from minibert.course.lab import traced

REVIEW = "I did not really enjoyed this movie. It was fantastic!"


@cache
def coin_labels() -> tuple[int, ...]:
    """The label that an untrained head gives REVIEW, for ten seeds."""
    pooled = traced(REVIEW).pooled[0]
    found = []
    for seed in range(10):
        # As BERT's authors and transformers start a classifier: normal, 0.02, no bias.
        weight = 0.02 * torch.randn(2, len(pooled), generator=torch.Generator().manual_seed(seed))
        found.append(int((weight @ pooled).argmax()))
    return tuple(found)


def _about_coin(chosen: str) -> str:
    ones = sum(coin_labels())
    told = (
        f"Of ten seeds {ones} say positive and {10 - ones} negative, about one text and one model."
    )
    return {
        "a": f"{told} A reader's opinion would not depend on the seed.",
        "b": f"{told} The weights of the classifier are random numbers: nobody trained them.",
        "c": f"{told} The body is trained, but the classifier behind it is not.",
    }[chosen]


def _quiz(asks: str, options: dict[str, str], right: str, said: dict[str, str]) -> Choice:
    listed = " ".join(f"({letter}) {text}" for letter, text in options.items())
    return Choice(f"{asks} {listed}", options, lambda: right, said.__getitem__)


EXERCISES: dict[str, Exercise] = {
    "6-count": Numbers(
        "BERT-large has 24 layers of 16 heads. How many heads is that?",
        lambda: 24.0 * 16,
        0.1,
        "bert-base has 12 layers of 12 heads, 144 in all, and tiny-bert 4 of 4.",
        (
            Mistake(lambda: 40.0, "That adds them. Each of the 24 layers has 16 heads of its own."),
            Mistake(lambda: 144.0, "That is bert-base: 12 layers of 12 heads."),
            Mistake(
                lambda: 16.0, "That is one layer. Each of the 24 layers has 16 heads of its own."
            ),
        ),
    ),
    "6-coin": Choice(
        f"“{REVIEW}”: a classifier with fresh weights on a trained BERT says positive. What "
        "does that "
        "tell about the text? (a) It is positive. (b) Nothing. (c) A little, since the body is "
        "trained.",
        {"a": "It is positive.", "b": "Nothing.", "c": "A little, since the body is trained."},
        lambda: "b",
        _about_coin,
    ),
    "6-weight": _quiz(
        "A head gives [SEP] 0.95 of its weight. What follows?",
        {
            "a": "[SEP] matters most for the prediction.",
            "b": "The head adds little if the value of [SEP] is short.",
            "c": "The model is broken.",
        },
        "b",
        {
            "a": (
                "A weight is multiplied by a value. Unit 4 found both: a large weight on a short "
                "value."
            ),
            "b": "What a head adds is weight times value.",
            "c": (
                "Clark et al. 2019 found this in bert-base, which works well: it is how a head "
                "does nothing."
            ),
        },
    ),
    "6-ablate": _quiz(
        "A head is set to zero and the prediction stays. What follows?",
        {
            "a": "The head computes nothing.",
            "b": "Nothing on this text depended on it alone.",
            "c": "The head is not needed on any text.",
        },
        "b",
        {
            "a": "Its output was not zero before. Another head may do the same work, as in unit 5.",
            "b": "Another head may replace it, and other texts may need it.",
            "c": "One text says nothing about the others.",
        },
    ),
    "6-probe": _quiz(
        "A classifier that reads attention finds 77 % of the dependencies. What has to be "
        "beside it?",
        {
            "a": "Nothing: 77 % is high.",
            "b": "The same classifier on a model with random weights.",
            "c": "A larger classifier.",
        },
        "b",
        {
            "a": "A rule that always takes the next word finds many dependencies as well.",
            "b": "What it finds with random weights does not come from what the model learned.",
            "c": "A larger classifier may learn more by itself, and says less about the attention.",
        },
    ),
    "6-direct": _quiz(
        "By direct attribution a head adds nothing to the logit, but without it the answer "
        "changes. "
        "How can that be?",
        {
            "a": "One of the two numbers is wrong.",
            "b": "It writes into the stream what later parts read.",
            "c": "The head writes into the logits twice.",
        },
        "b",
        {
            "a": "Both are right. They answer different questions.",
            "b": (
                "The previous-token head of unit 5 does this: the induction heads read what it "
                "wrote."
            ),
            "c": "A head adds to the stream once.",
        },
    ),
}
