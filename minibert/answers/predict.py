"""What a task head says, in words."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError, TokenizationError

__all__ = ["Choice", "Prediction", "predict"]


@dataclass(frozen=True)
class Choice:
    """One answer and its probability, or its value."""

    label: str
    probability: float
    """NaN where the answer is a value: problem_type regression."""
    id: int
    """The token id or the class number."""
    value: float | None = None
    """What a regression gives, the logit itself; None for everything else."""


@dataclass(frozen=True)
class Prediction:
    """The best answers to one question about one text."""

    sentence: int
    """Which text of the batch."""
    position: int | None
    """Which token; None for a statement about the whole text."""
    question: str
    choices: tuple[Choice, ...]


def predict(model: Any, text: Any, pair: Any = None, *, top: int = 5) -> list[Prediction]:
    """The best answers of the task head, most probable first.

    masked-lm        what stands at each mask token
    causal-lm        the token after the last one
    next-sentence    whether the second text follows the first
    pre-training     both of the first and third; ELECTRA: which tokens were replaced
    sequence-classification, token-classification: the class, of the text or of each token;
                     each label for itself (sigmoid) where problem_type is
                     multi_label_classification or there is one label, its value for regression
    question-answering: the span of the second text that answers the first

    Raises MinibertError for a model without a task head, TokenizationError where a mask token or
    a second text is needed and not there.
    """
    if top < 1:
        raise MinibertError(f"top={top}: expected at least 1 answer.")
    task = model.config.task
    if task == "none":
        raise MinibertError(
            f"{model.name} has no task head, so it predicts nothing; "
            "its hidden state is model(text), its attention model.trace(text)."
        )
    tokens = model.inputs(text, pair).as_tokens(model.tokenizer)
    if task == "pre-training" and model.config.family != "electra":
        task = "masked-lm+next-sentence"
    with torch.no_grad():
        rows = [row for name in task.split("+") for row in _ANSWERS[name](model, tokens, top)]
    if not rows and task != model.config.task:
        mask_id = None if model.tokenizer is None else model.tokenizer.mask_id
        word = "mask token" if mask_id is None else model.tokenizer.raw(mask_id)
        raise TokenizationError(
            f"There is nothing to predict: no {word} stands where a word is missing, and there is "
            "no second text. Write one or give the other."
        )
    return rows


def _masked(model: Any, tokens: Any, top: int) -> list[Prediction]:
    mask_id = None if model.tokenizer is None else model.tokenizer.mask_id
    places = [] if mask_id is None else (tokens.ids == mask_id).nonzero().tolist()
    if not places:
        if model.config.task == "pre-training":
            return []
        if mask_id is None:
            raise TokenizationError(
                f"{model.name} has no tokenizer with a mask token, so nothing can be filled in; "
                "its logits are model(ids)."
            )
        word = model.tokenizer.raw(mask_id)
        raise TokenizationError(
            f"There is no {word} to fill in; write {word} where a word is missing."
        )
    logits = model(tokens)
    return [
        Prediction(s, p, "masked token", _best_tokens(model, logits[s, p], top)) for s, p in places
    ]


def _next_token(model: Any, tokens: Any, top: int) -> list[Prediction]:
    logits = model(tokens)
    last = [length - 1 for length in tokens.lengths]
    return [
        Prediction(s, p, "next token", _best_tokens(model, logits[s, p], top))
        for s, p in enumerate(last)
    ]


def _next_sentence(model: Any, tokens: Any, top: int) -> list[Prediction]:
    paired = [bool((segments == 1).any()) for segments in tokens.segments]
    if not all(paired):
        if model.config.task == "pre-training":
            return []
        raise TokenizationError(
            "Next-sentence prediction is about two texts; give the second as pair."
        )
    pre_training = model.config.task == "pre-training"
    logits = model.trace(tokens).next_sentence_logits if pre_training else model(tokens)
    if model.config.family == "albert":
        question, labels = "order of the two texts", ("in order", "swapped")
    else:
        question, labels = "next sentence", ("follows", "does not follow")
    if logits.shape[-1] != len(labels):
        labels = model.config.labels
    return [Prediction(s, None, question, _best(row, labels, top)) for s, row in enumerate(logits)]


def _replaced(model: Any, tokens: Any, top: int) -> list[Prediction]:
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


def _text_class(model: Any, tokens: Any, top: int) -> list[Prediction]:
    return [
        Prediction(s, None, "class of the text", _best_classes(row, model.config, top))
        for s, row in enumerate(model(tokens))
    ]


def _token_class(model: Any, tokens: Any, top: int) -> list[Prediction]:
    logits = model(tokens)
    return [
        Prediction(s, p, "class of the token", _best_classes(logits[s, p], model.config, top))
        for s, length in enumerate(tokens.lengths)
        for p in range(length)
        if not tokens.special[s][p]
    ]


def _answer(model: Any, tokens: Any, top: int) -> list[Prediction]:
    """The spans with the highest start + end logit, at most 30 tokens long, in the second text."""
    if not tokens.texts:
        raise TokenizationError(
            "Question answering takes its answer from a text, and there are token ids alone; give "
            "the question as text and the text with the answer as pair."
        )
    if any(len(texts) < 2 for texts in tokens.texts):
        raise TokenizationError(
            "Question answering is about two texts; give the question as text and the text with "
            "the answer as pair."
        )
    logits = model(tokens)
    return [
        Prediction(s, None, "answer", _best_spans(tokens, s, logits[s, :length], top))
        for s, length in enumerate(tokens.lengths)
    ]


def _best_spans(tokens: Any, sentence: int, logits: Tensor, top: int) -> tuple[Choice, ...]:
    length = len(logits)
    inside = _second_text(tokens, sentence, logits.device)
    start, end = logits.float().log_softmax(0).unbind(-1)
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


def _second_text(tokens: Any, sentence: int, device: torch.device) -> Tensor:
    """True at the tokens of the second text of a sentence, special tokens left out."""
    special, spans = tokens.special[sentence], tokens.spans[sentence]
    second = tokens.segments[sentence, : len(spans)] == 1
    if second.any():
        inside = second.tolist()
    else:
        # A [SEP] somebody typed has a span; only those between the texts have none.
        starts = [
            p
            for p in range(1, len(spans))
            if spans[p] and (not spans[p - 1] or spans[p][0] < spans[p - 1][0])
        ]
        inside = [bool(starts) and p >= starts[-1] for p in range(len(spans))]
    chosen = [inside[p] and not special[p] and bool(spans[p]) for p in range(len(spans))]
    return torch.tensor(chosen, device=device)


def _text(tokens: Any, sentence: int, first: int, last: int) -> str:
    texts = tokens.texts[sentence]
    return texts[-1][tokens.spans[sentence][first][0] : tokens.spans[sentence][last][1]]


def _best_tokens(model: Any, logits: Tensor, top: int) -> tuple[Choice, ...]:
    tokenizer = model.tokenizer
    # A padded vocabulary has logits without a token behind them.
    known = len(logits) if tokenizer is None else min(len(logits), tokenizer.vocab_size)
    values, ids = logits.float().softmax(-1)[:known].topk(min(top, known))
    names = [str(id) if tokenizer is None else tokenizer.string(id) for id in ids.tolist()]
    return tuple(Choice(*row) for row in zip(names, values.tolist(), ids.tolist(), strict=True))


def _best_classes(logits: Tensor, config: Any, top: int) -> tuple[Choice, ...]:
    """As transformers' pipelines turn the logits of a classification head into answers."""
    labels = config.labels
    if config.problem_type == "regression":
        values, ids = logits.float().topk(min(top, len(labels)))
        rows = zip(values.tolist(), ids.tolist(), strict=True)
        return tuple(Choice(labels[id], math.nan, id, value) for value, id in rows)
    # One class is there or not: its softmax would always be 1.
    if config.problem_type != "multi_label_classification" and len(labels) > 1:
        return _best(logits, labels, top)
    values, ids = logits.float().sigmoid().topk(min(top, len(labels)))
    rows = zip(values.tolist(), ids.tolist(), strict=True)
    return tuple(Choice(labels[id], value, id) for value, id in rows)


def _best(logits: Tensor, labels: tuple[str, ...], top: int) -> tuple[Choice, ...]:
    values, ids = logits.float().softmax(-1).topk(min(top, len(labels)))
    return tuple(
        Choice(labels[id], value, id)
        for value, id in zip(values.tolist(), ids.tolist(), strict=True)
    )


_ANSWERS = {
    "masked-lm": _masked,
    "causal-lm": _next_token,
    "next-sentence": _next_sentence,
    "pre-training": _replaced,
    "sequence-classification": _text_class,
    "token-classification": _token_class,
    "question-answering": _answer,
}
