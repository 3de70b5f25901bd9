"""What the units compute alike."""

from functools import cache

import torch
from torch import Tensor

from minibert.analysis import HeadScores, head_scores
from minibert.course.texts import LEAVES, ORDER
from minibert.model import Model, load
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.text.tokens import Tokens
from minibert.trace.edit import EditMapping
from minibert.trace.read import Trace


@cache
def bert() -> Model:
    """tiny-bert."""
    return load("tiny-bert")


@cache
def gpt() -> Model:
    """tiny-gpt2."""
    return load("tiny-gpt2")


@cache
def traced(text: str, pair: str | None = None) -> Trace:
    """The trace of a text by tiny-bert."""
    with torch.no_grad():
        return bert().trace(text, pair)


def place(trace: Trace, word: str) -> int:
    """The position of a token."""
    return trace.tokens.strings[0].index(word)


def token_id(model: Model, word: str) -> int:
    """The id of a word that is one token."""
    tokens = model.tokenize(word)
    return int(tokens.ids[0][tokens.special[0].index(False)])


def said(trace: Trace, position: int) -> Tensor:
    """(vocab): the probabilities at a position."""
    return trace.logits[0, position].softmax(-1)


def without(trace: Trace, edit: EditMapping) -> Trace:
    """The trace with an edit."""
    with torch.no_grad():
        return trace.rerun(edit)


def divergence(clean: Tensor, changed: Tensor) -> float:
    """Kullback-Leibler divergence of two rows of logits, in nats."""
    one, other = (logits.double().log_softmax(-1) for logits in (clean, changed))
    return float((one.exp() * (one - other)).sum())


def every_head(model: Model) -> list[tuple[int, int]]:
    """All heads, layer after layer."""
    config = model.config
    return [(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]


@cache
def scores(name: str = "tiny-bert") -> HeadScores:
    """The five scores of every head of a model, over the pairs that come with the package."""
    model = bert() if name == "tiny-bert" else gpt()
    texts: list[Tokens] = [model.tokenize(ORDER)]
    if name == "tiny-bert":
        texts += [model.tokenize(*pair) for pair in (LEAVES, *SAMPLE_PAIRS)]
    return head_scores(model, texts)


def known_for(head: str, name: str = "tiny-bert") -> str:
    """What a head spends most on, of the five patterns, as a sentence."""
    layer, number = (int(part) for part in head.split("-"))
    words = {
        "previous": "the previous token", "next": "the next token", "delimiter": "[SEP]",
        "duplicate": "an earlier copy of the token", "induction": "the token after an earlier copy",
    }  # fmt: skip
    shares = {
        words[pattern]: value
        for pattern, table in scores(name).by_pattern().items()
        if (value := table[layer][number]) is not None
    }
    best = max(shares, key=lambda pattern: shares[pattern])
    return (
        f"Head {head} spends {shares[best]:.2f} of its attention on {best}; no pattern gets more."
    )


@cache
def resting_layers(text: str) -> tuple[int, ...]:
    """The layers that spend more than half of their attention on the last [SEP]."""
    trace = traced(text)
    return tuple(n for n, layer in enumerate(trace) if float(layer.probs[0, :, :, -1].mean()) > 0.5)
