"""The answers of a task head as words and probabilities."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from minibert.answers.generate import AnsweringModel
from minibert.errors import MinibertError, TokenizationError, whole_number
from minibert.layers.config import FAMILIES, Config, predicts_tokens
from minibert.text.tokens import Tokens


@dataclass(frozen=True)
class Choice:
    """One answer and its probability, or its value."""

    label: str
    probability: float
    """NaN where the answer is a value: problem_type regression."""
    id: int
    """The token id or the class number."""
    value: float | None = None
    """The logit, where the head is a regression; None otherwise."""


@dataclass(frozen=True)
class Prediction:
    """The best answers to one question about one text."""

    sentence: int
    """Which text of the batch."""
    position: int | None
    """Which token; None where the question is about the whole text."""
    question: str
    choices: tuple[Choice, ...]


def predict(
    model: AnsweringModel, text: object, pair: object = None, *, top: int = 5
) -> list[Prediction]:
    """The best answers of the task head, most probable first.

    masked-lm        the token at each mask token
    causal-lm        the token after the last one
    next-sentence    whether the second text follows the first
    pre-training     the answers of masked-lm and of next-sentence; for ELECTRA, which tokens were
                     replaced
    sequence-classification, token-classification
                     the class of the text, or of each token. With problem_type
                     multi_label_classification, or a single label, each label has its own
                     probability (sigmoid); with problem_type regression, its value
    question-answering
                     the span of the second text that answers the first

    Raises MinibertError for a model without a task head and for logits that are not numbers, and
    TokenizationError where a mask token or a second text is needed and missing.
    """
    top = whole_number("top", top, MinibertError, least=1)
    task = model.config.task
    if task == "none":
        raise MinibertError(
            f"{model.name} has no task head, so it predicts nothing. "
            "Read its hidden state with model(text) and its attention with model.trace(text)."
        )
    tokens = model.inputs(text, pair).as_tokens(model.tokenizer)
    if task == "pre-training" and predicts_tokens(model.config.family, task):
        task = "masked-lm+next-sentence"
    with torch.no_grad():
        rows = [row for name in task.split("+") for row in _ANSWERS[name](model, tokens, top)]
    if not rows and task != model.config.task:
        word = _mask_token(model)[1]
        raise TokenizationError(
            f"There is nothing to predict: the text has no {word}, and there is no second text. "
            f"Write {word} where a word is missing, or give a second text."
        )
    for choice in (choice for row in rows for choice in row.choices):
        if not math.isfinite(choice.probability if choice.value is None else choice.value):
            raise MinibertError(
                "The logits have NaN or infinity, so nothing can be predicted: the weights are "
                "broken, or too large for the number type; try float32."
            )
    return rows


def _mask_token(model: AnsweringModel) -> tuple[int | None, str]:
    """The id of the mask token and its string; None and "mask token" where there is none."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.mask_id is None:
        return None, "mask token"
    return tokenizer.mask_id, tokenizer.raw(tokenizer.mask_id)


def _masked(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    mask_id, word = _mask_token(model)
    places = [] if mask_id is None else (tokens.ids == mask_id).nonzero().tolist()
    if not places:
        if model.config.task == "pre-training":
            return []
        if mask_id is None:
            raise TokenizationError(
                f"{model.name} has no tokenizer with a mask token, so nothing can be filled in. "
                "Read its logits with model(ids)."
            )
        raise TokenizationError(f"There is no {word} to fill in. Write it where a word is missing.")
    logits = model(tokens)
    return [
        Prediction(s, p, "masked token", _best_tokens(model, logits[s, p], top)) for s, p in places
    ]


def _next_token(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    logits = model(tokens)
    last = [length - 1 for length in tokens.lengths]
    return [
        Prediction(s, p, "next token", _best_tokens(model, logits[s, p], top))
        for s, p in enumerate(last)
    ]


def _next_sentence(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    paired = [bool((segments == 1).any()) for segments in tokens.segments]
    if not all(paired):
        if model.config.task == "pre-training":
            return []
        raise TokenizationError("Next sentence is about two texts. Give the second as `pair`.")
    pre_training = model.config.task == "pre-training"
    logits = model.trace(tokens).next_sentence_logits if pre_training else model(tokens)
    labels: tuple[str, ...] = ("follows", "does not follow")
    question = "next sentence"
    if FAMILIES[model.config.family].orders_sentences:
        question, labels = "order of the two texts", ("in order", "swapped")
    if logits.shape[-1] != len(labels):
        labels = model.config.labels
    rows = enumerate(_wide(logits).softmax(-1))
    return [Prediction(s, None, question, _best(row, labels.__getitem__, top)) for s, row in rows]


def _replaced(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    probability = model(tokens).sigmoid()
    return [
        Prediction(
            s,
            p,
            "replaced token",
            (Choice("replaced", value, 1), Choice("original", 1 - value, 0))[
                :: 1 if value > 0.5 else -1
            ],
        )
        for s, length in enumerate(tokens.lengths)
        for p, value in enumerate(probability[s, :length].tolist())
    ]


def _text_class(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    return [
        Prediction(s, None, "class of the text", _best_classes(row, model.config, top))
        for s, row in enumerate(model(tokens))
    ]


def _token_class(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    logits = model(tokens)
    return [
        Prediction(s, p, "class of the token", _best_classes(logits[s, p], model.config, top))
        for s, length in enumerate(tokens.lengths)
        for p in range(length)
        if not tokens.special[s][p]
    ]


def _answer(model: AnsweringModel, tokens: Tokens, top: int) -> list[Prediction]:
    """The spans with the highest start + end logit, at most 30 tokens long, in the second text."""
    if not tokens.texts:
        raise TokenizationError(
            "Question answering takes its answer from a text, but only token ids were given. Give "
            "the question as `text` and the text with the answer as `pair`."
        )
    if any(len(texts) < 2 for texts in tokens.texts):
        raise TokenizationError(
            "Question answering is about two texts. Give the question as `text` and the text with "
            "the answer as `pair`."
        )
    logits = model(tokens)
    return [
        Prediction(s, None, "answer", _best_spans(tokens, s, logits[s, :length], top))
        for s, length in enumerate(tokens.lengths)
    ]


def _wide(logits: Tensor) -> Tensor:
    """The logits in float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _best_spans(tokens: Tokens, sentence: int, logits: Tensor, top: int) -> tuple[Choice, ...]:
    length = len(logits)
    inside = _second_text(tokens, sentence, logits.device)
    start, end = _wide(logits).log_softmax(0).unbind(-1)
    score = start[:, None] + end[None, :]
    position = torch.arange(length, device=logits.device)
    distance = position[None, :] - position[:, None]
    legal = (distance >= 0) & (distance < 30) & inside[:, None] & inside[None, :]
    score = score.masked_fill(~legal, -torch.inf).flatten()
    values, order = score.topk(min(top, int(legal.sum())))
    spans = [(index // length, index % length) for index in order.tolist()]
    return tuple(
        Choice(_text(tokens, sentence, first, last), value.exp().item(), first)
        for (first, last), value in zip(spans, values, strict=True)
    )


def _second_text(tokens: Tokens, sentence: int, device: torch.device) -> Tensor:
    """True at the tokens of the second text of a sentence, special tokens left out."""
    special, spans = tokens.special[sentence], tokens.spans[sentence]
    second = tokens.segments[sentence, : len(spans)] == 1
    if second.any():
        inside = second.tolist()
    else:
        # The second text begins where spans begin again. A [SEP] that a user typed has a span;
        # the ones that the tokenizer adds between the texts have none.
        starts = [
            p
            for p, (before, span) in enumerate(pairwise(spans), 1)
            if span and (not before or span[0] < before[0])
        ]
        inside = [bool(starts) and p >= starts[-1] for p in range(len(spans))]
    chosen = [inside[p] and not special[p] and bool(spans[p]) for p in range(len(spans))]
    return torch.tensor(chosen, device=device)


def _text(tokens: Tokens, sentence: int, first: int, last: int) -> str:
    start, end = tokens.spans[sentence][first], tokens.spans[sentence][last]
    # `_second_text` chooses only tokens that have a span.
    assert start is not None
    assert end is not None
    return tokens.texts[sentence][-1][start[0] : end[1]]


def _best_tokens(model: AnsweringModel, logits: Tensor, top: int) -> tuple[Choice, ...]:
    tokenizer = model.tokenizer
    # Some checkpoints have more logits than their tokenizer has tokens.
    known = len(logits) if tokenizer is None else min(len(logits), tokenizer.vocab_size)
    name: Callable[[int], str] = str if tokenizer is None else tokenizer.string
    return _best(_wide(logits).softmax(-1)[:known], name, top)


def _best_classes(logits: Tensor, config: Config, top: int) -> tuple[Choice, ...]:
    """The answers that transformers' pipelines give for the logits of a classification head."""
    labels, logits = config.labels, _wide(logits)
    if config.problem_type == "regression":
        best = _best(logits, labels.__getitem__, top)
        return tuple(Choice(one.label, math.nan, one.id, one.probability) for one in best)
    # The softmax of a single class would always be 1.
    alone = config.problem_type == "multi_label_classification" or len(labels) == 1
    return _best(logits.sigmoid() if alone else logits.softmax(-1), labels.__getitem__, top)


def _best(scores: Tensor, name: Callable[[int], str], top: int) -> tuple[Choice, ...]:
    values, ids = scores.topk(min(top, len(scores)))
    rows = zip(values.tolist(), ids.tolist(), strict=True)
    return tuple(Choice(name(id), value, id) for value, id in rows)


_ANSWERS = {
    "masked-lm": _masked,
    "causal-lm": _next_token,
    "next-sentence": _next_sentence,
    "pre-training": _replaced,
    "sequence-classification": _text_class,
    "token-classification": _token_class,
    "question-answering": _answer,
}
