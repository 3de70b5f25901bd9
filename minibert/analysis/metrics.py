"""Metrics of logits, and what they say of each sentence of a trace, padding left out."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from minibert.analysis.arguments import is_whole, listed, whole_number
from minibert.errors import EditError, TokenizationError
from minibert.quantities import Float
from minibert.trace.places import Places
from minibert.trace.point import as_point
from minibert.trace.read import Trace
from minibert.trace.sweep import measured, of_sentences

__all__ = ["Metric", "answer_probability", "logit_difference", "numbers_of", "of_sentence"]

Metric = Callable[[Tensor], Tensor]
Answer = int | Sequence[int]
"""A token id for every sentence, or one for each of them."""


def logit_difference(right: Answer, wrong: Answer) -> Callable[[Tensor | Trace], Tensor]:
    """The metric logit[right] − logit[wrong] at each sentence's last token.

    `right` and `wrong` are a token id for all sentences, or a list with one for each. The metric
    takes a trace, logits of a trace or a model, or the logits that `rerun_each` gives it, and
    returns one number for each sentence. Of a slice of logits, and of the logits of a compiled
    model, it reads the last position, which may be padding.

    Raises TokenizationError for what is no token id, and where the logits have no such token. The
    metric raises EditError for logits without positions, and for a list of another length than
    the batch.
    """
    answers = _answer("right", right), _answer("wrong", wrong)

    def difference(given: Tensor | Trace) -> Tensor:
        last = _last_logits(given)
        first, second = (_of_each(ids, given, last) for ids in answers)
        rows = range(len(last))
        return last[rows, first] - last[rows, second]

    return difference


def answer_probability(token: Answer) -> Callable[[Tensor | Trace], Tensor]:
    """The metric softmax(logits)[token] at each sentence's last token; see `logit_difference`.

    Source: what causal tracing reads (Meng et al. 2022, section 2.1).
    """
    answer = _answer("token", token)

    def probability(given: Tensor | Trace) -> Tensor:
        last = _last_logits(given)
        chosen = _of_each(answer, given, last)
        return last.softmax(-1)[range(len(last)), chosen]

    return probability


def of_sentence(metric: Metric, sentence: int) -> Metric:
    """The metric for passes of one sentence of a batch, whose own answers it then reads."""
    return lambda logits: metric(of_sentences(logits, (sentence,) * len(logits)))


def numbers_of(
    metric: Metric, trace: Trace, positions: Sequence[int] | None = None
) -> Float[Tensor, " batch"]:
    """One number a sentence: the metric of its logits, at these positions of its own or at all.

    The metric is given the same logits as by `Trace.rerun_each`: no padding. Raises EditError where
    it gives anything but one number for each sentence.
    """
    logits = trace.logits
    if as_point("logits", trace.config).of_text:
        return measured(metric, logits, None)
    places = Places.of(trace.allowed)
    if positions is None:
        return measured(metric, logits, places.lengths)
    rows = [
        # A metric may want one position twice.
        [places.positions(sentence, one, error=EditError)[0] for one in positions]
        for sentence in range(len(places.lengths))
    ]
    chosen = torch.stack([one[row] for one, row in zip(logits, rows, strict=True)])
    return measured(metric, chosen, None)


def _answer(name: str, given: Answer) -> int | list[int]:
    expected = "a token id, or a list with one for each sentence"
    if isinstance(given, Sequence | Tensor) and not is_whole(given):
        ids = listed(given, name, TokenizationError, expected)
        return [whole_number(name, one, TokenizationError, least=0) for one in ids]
    return whole_number(name, given, TokenizationError, least=0)


def _of_each(answer: int | list[int], given: Tensor | Trace, last: Tensor) -> list[int]:
    """The answer of each row of logits."""
    if isinstance(answer, int):
        answers = [answer] * len(last)
    else:
        logits = given.logits if isinstance(given, Trace) else given
        sentences = getattr(logits, "sentences", None)
        if sentences is None and len(answer) != len(last):
            raise EditError(
                f"The metric has {len(answer)} answers for {len(last)} sentences; expected one "
                "for each, or a single one for all."
            )
        try:
            answers = answer if sentences is None else [answer[sentence] for sentence in sentences]
        except IndexError:
            raise EditError(
                f"The metric has {len(answer)} answers and the batch has more sentences; expected "
                "one for each, or a single one for all."
            ) from None
    for token in answers:
        whole_number("answer", token, TokenizationError, least=0, most=last.shape[-1] - 1)
    return answers


def _last_logits(given: Tensor | Trace) -> Float[Tensor, "batch vocab"]:
    """The logits at the last token of each sentence."""
    logits = given.logits if isinstance(given, Trace) else given
    if logits.dim() != 3:
        raise EditError(
            f"The logits have shape {tuple(logits.shape)}; expected (batch, position, vocab). A "
            "metric of tokens needs a model with a vocabulary head."
        )
    # What a model and a trace say of sentences of different lengths; a slice says nothing.
    packed, lengths = (getattr(logits, name, None) for name in ("packed", "lengths"))
    if packed is not None:
        return logits[0, [end - 1 for end in accumulate(packed)]]
    if lengths is not None:
        return logits[range(len(lengths)), [length - 1 for length in lengths]]
    return logits[:, -1]
