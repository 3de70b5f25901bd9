"""How the sentiment model does on sentences it never saw, and what it did before its training."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.embedded_causal import words
from benchmarks.evidence import Measurements, finding, share
from minibert.bench.result_rows import Row
from minibert.course.real_models import REVIEW
from minibert.model import Model
from scripts.train_sentiment import (
    LABELLED,
    POLARITY,
    START,
    Sentence,
    probabilities,
    read_sentences,
    untrained,
)

__all__ = ["NEGATION", "WordCounts", "sentiment_measurements"]

SEEDS = 10
LEAST = 0.7
KINDS = {"reviews": LABELLED, "film snippets": tuple(POLARITY)}
NEGATION = re.compile(r"\b(?:no|not|never|none|nothing|nor|cannot|\w+n[’']t)\b", re.IGNORECASE)


def sentiment_measurements(model: Model, data: Path) -> Measurements:
    """What the sentiment model is measured in, from the folder with its sentences."""
    sentences = read_sentences(data)
    kept = [one for one in sentences if not one.held_out]
    held_out = [one for one in sentences if one.held_out]
    counts = WordCounts(kept)
    reviews = [one for one in held_out if one.source in LABELLED]
    rows: Measurements = {
        f"{kind} right": partial(
            right, model, counts, [one for one in held_out if one.source in sources], LEAST
        )
        for kind, sources in KINDS.items()
    }
    negated = [one for one in reviews if NEGATION.search(one.text)]
    return rows | {
        "reviews with a negation right": partial(right, model, counts, negated),
        f"reviews right, {SEEDS} untrained heads": partial(before, reviews),
        "a review of two opinions": partial(opinions, model),
    }


def right(
    model: Model, counts: "WordCounts", sentences: Sequence[Sentence], least: float | None = None
) -> Row:
    """The share of the sentences whose label is right, beside that of counted words."""
    labels = torch.tensor([one.label for one in sentences])
    by_words = torch.tensor([counts.label(one.text) for one in sentences])
    found = probabilities(model, sentences).argmax(-1) == labels
    return finding(
        float(found.double().mean()),
        at_least=least,
        **share(found),
        positive=round(float(labels.double().mean()), 4),
        by_words=round(float((by_words == labels).double().mean()), 4),
    )


def before(sentences: Sequence[Sentence]) -> Row:
    """The mean share of right labels of heads whose weights are random, of so many seeds.

    `sure` is the mean probability of the answer, `same` the mean share of the sentences that get
    the answer that is most frequent with that head.
    """
    labels = torch.tensor([one.label for one in sentences])
    found = [probabilities(untrained(START, seed=seed), sentences) for seed in range(SEEDS)]
    answers = torch.stack([one.argmax(-1) for one in found])
    shares = (answers == labels).double().mean(-1)
    positive = answers.double().mean(-1)
    return finding(
        float(shares.mean()),
        least=round(float(shares.min()), 4),
        most=round(float(shares.max()), 4),
        same=round(float(positive.maximum(1 - positive).mean()), 4),
        sure=round(float(torch.stack(found).amax(-1).mean()), 4),
        count=len(sentences),
    )


def opinions(model: Model) -> Row:
    """What the model, and heads without training, say to the review of a well-known article."""
    one = [Sentence(REVIEW, 1, "")]
    heads = [untrained(START, seed=seed) for seed in range(SEEDS)]
    return finding(
        float(probabilities(model, one)[0, 1]),
        text=REVIEW,
        untrained=[int(probabilities(head, one).argmax()) for head in heads],
    )


class WordCounts:
    """Naive Bayes of single words: what a table of counted words knows of sentiment.

    P(label | words) is in proportion to P(label) times the product of P(word | label), each
    (count of the word among those of the label + 1) / (words of the label + known words). Words
    that the training did not have are left out.
    """

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for sentence in sentences:
            self.counts[sentence.label].update(words(sentence.text))
        self.known = set(self.counts[0]) | set(self.counts[1])
        found = Counter(sentence.label for sentence in sentences)
        self.before = [math.log(found[label] / len(sentences)) for label in (0, 1)]

    def label(self, text: str) -> int:
        """The label that is more probable."""
        return int(self.log_probability(text, 1) > self.log_probability(text, 0))

    def log_probability(self, text: str, label: int) -> float:
        """log of P(label) P(words | label), in nats."""
        counts = self.counts[label]
        every = counts.total() + len(self.known)
        found = [word for word in words(text) if word in self.known]
        return self.before[label] + sum(math.log((counts[word] + 1) / every) for word in found)
