"""What is read of logits: metrics of each sentence of a trace, and the loss at each token.

Padding is left out. The loss of a causal model is −log p(token | the tokens before it), the
surprisal, in nats; of a masked one −log of what it gives the token at the token's own place, with
the text as it is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from minibert.analysis.arguments import check_model, listed, places_of, vocabulary_head
from minibert.attached.read import AttachedTrace
from minibert.errors import EditError, TokenizationError, is_whole, whole_number
from minibert.model import Input, Model
from minibert.quantities import Float, TokenIds
from minibert.result import Result, sourced
from minibert.trace.edit import Places, as_point
from minibert.trace.read import Trace
from minibert.trace.sweep import OwnLogits, called, measured

Metric = Callable[[Tensor], Tensor]
Answer = int | Sequence[int]
"""A token id for every sentence, or one for each of them."""


@dataclass(frozen=True)
class TokenMetric:
    """One number of the logits at each sentence's last token, for a metric of tokens."""

    answers: tuple[int | list[int], ...]
    number: Callable[..., Tensor]
    """Of the last logits, (sentence, vocab), and the ids of each answer, one a sentence."""

    def __call__(
        self, given: Tensor | Trace, *, lengths: Sequence[int] | None = None
    ) -> Float[Tensor, " sentence"]:
        """The number of each sentence of a trace, or of logits whose sentences have these lengths.

        Raises EditError for logits that do not say where their sentences end.
        """
        logits = given.logits if isinstance(given, Trace) else given
        if logits.dim() != 3:
            raise EditError(
                f"The logits have shape {tuple(logits.shape)}; expected (batch, position, vocab). "
                "A metric of tokens needs a model with a vocabulary head."
            )
        if isinstance(given, Trace) and given.allowed.packed is not None:
            last = logits[0, [end - 1 for end in accumulate(given.allowed.packed)]]
        elif isinstance(given, OwnLogits) and lengths is None:
            last = logits[:, -1]
        else:
            ends = Places.of(given.allowed).lengths if isinstance(given, Trace) else lengths
            last = logits[range(len(logits)), [end - 1 for end in _checked(ends, logits)]]
        return self._of_last(last, range(len(last)))

    def of_sentences(self, logits: OwnLogits, sentences: Sequence[int]) -> Tensor:
        """The numbers of some sentences of a batch, each with its own answers."""
        if logits.dim() != 3:
            return self(logits)
        return self._of_last(logits[:, -1], sentences)

    def _of_last(self, last: Float[Tensor, "sentence vocab"], sentences: Sequence[int]) -> Tensor:
        chosen = [_of_each(ids, last, sentences) for ids in self.answers]
        return self.number(last, *chosen)


def _checked(lengths: Sequence[int] | None, logits: Tensor) -> Sequence[int]:
    """The length of each sentence; EditError where it is not known or cannot be."""
    if lengths is None:
        raise EditError(
            "These logits do not say where their sentences end, and padding has logits too. Give "
            "the metric the trace itself, as metric(trace), or metric(logits, "
            "lengths=tokens.lengths)."
        )
    found = listed(lengths, "lengths", EditError, "a length for each sentence")
    if len(found) != len(logits):
        raise EditError(f"lengths has {len(found)} numbers for {len(logits)} sentences.")
    return [
        whole_number("lengths", each, EditError, least=1, most=logits.shape[1]) for each in found
    ]


def logit_difference(right: Answer, wrong: Answer) -> TokenMetric:
    """The metric logit[right] − logit[wrong] at each sentence's last token.

    `right` and `wrong` are a token id for all sentences, or a list with one for each. The metric
    takes a trace, the logits that `rerun_each` gives it, or other logits with the `lengths` of
    their sentences, and returns one number for each sentence.

    Raises TokenizationError for what is not a token id, and where the logits have no such token.
    The metric raises EditError for logits without positions, for logits that do not say where their
    sentences end, and for a list of another length than the batch.
    """

    def difference(last: Tensor, first: list[int], second: list[int]) -> Tensor:
        rows = range(len(last))
        return last[rows, first] - last[rows, second]

    return TokenMetric((_answer("right", right), _answer("wrong", wrong)), difference)


def answer_probability(token: Answer) -> TokenMetric:
    """The metric softmax(logits)[token] at each sentence's last token; see `logit_difference`.

    Source: what causal tracing reads (Meng et al. 2022, section 2.1).
    """

    def probability(last: Tensor, chosen: list[int]) -> Tensor:
        return last.softmax(-1)[range(len(last)), chosen]

    return TokenMetric((_answer("token", token),), probability)


def of_sentence(metric: Metric, sentence: int) -> Metric:
    """The metric for passes of one sentence of a batch, whose own answers it then reads."""
    return lambda logits: called(metric, logits, (sentence,) * len(logits))


def numbers_of(
    metric: Metric, trace: Trace | AttachedTrace, positions: Sequence[int] | None = None
) -> Float[Tensor, " batch"]:
    """One number a sentence: the metric of its logits, at these positions of its own or at all.

    The metric is given the same logits as by `Trace.rerun_each`: no padding. Raises EditError where
    it gives anything but one number for each sentence.
    """
    logits, places = trace.logits, places_of(trace)
    if isinstance(trace, AttachedTrace):
        # Padding may stand in front.
        logits = pad_sequence([one[[*at]] for one, at in zip(logits, places.at, strict=True)], True)
    elif as_point("logits", trace.config).of_text:
        return measured(metric, logits, None)
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


def _of_each(answer: int | list[int], last: Tensor, sentences: Sequence[int]) -> list[int]:
    """The answer of each row of logits, which are of these sentences of the batch."""
    if isinstance(answer, int):
        answers = [answer] * len(last)
    else:
        whole = sentences == range(len(last))
        if max(sentences, default=0) >= len(answer) or (whole and len(answer) != len(last)):
            raise EditError(
                f"The metric has {len(answer)} answers for {max(sentences) + 1} sentences; "
                "expected one token for each, or a single one for all."
            )
        answers = [answer[sentence] for sentence in sentences]
    for token in answers:
        whole_number("answer", token, TokenizationError, least=0, most=last.shape[-1] - 1)
    return answers


# What transformers takes for a token that has no loss.
_IGNORED = -100


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenLosses(Result[Tensor]):
    """The loss at each token in nats, (batch, position); nan for padding and for no loss."""

    @property
    def mean(self) -> float:
        """Over all tokens with a loss: transformers' `loss`."""
        return float(self.values.nanmean())

    @property
    def sentences(self) -> Float[Tensor, " batch"]:
        """The mean of each sentence; nan for one without a loss."""
        return self.values.nanmean(1)

    @property
    def perplexity(self) -> float:
        """exp of the mean."""
        return float(self.values.nanmean().exp())


@sourced
def token_losses(model: Model, text: Input, *, targets: object = None) -> TokenLosses:
    """−log softmax(logits)[target] at each position, (batch, position).

    In a causal model the logits are those one position before, so the first token has no loss. The
    targets are the ids of the text, or `targets`: ids of the same shape, with −100 where there is
    no loss, as `labels` of transformers. For a masked model give the text with [MASK] in it and the
    true ids as targets.

    Raises TraceError for a model without a vocabulary head, and TokenizationError for input that
    the model cannot read and targets that do not fit it.
    """
    check_model(model)
    vocabulary_head(model)
    inputs = model.inputs(text)
    tokens = inputs.as_tokens(model.tokenizer)
    chosen = inputs.ids.long() if targets is None else _targets(targets, inputs.ids, model)
    chosen = chosen.masked_fill(~tokens.mask.to(chosen.device), _IGNORED)
    with torch.no_grad():
        logits = model(tokens)
        # Under torch.autocast logits are narrow.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if model.config.causal:
            chosen[:, 0] = _IGNORED
            logits = torch.cat((logits[:, :1], logits[:, :-1]), 1)
        losses = F.cross_entropy(
            logits.flatten(0, 1), chosen.flatten(), ignore_index=_IGNORED, reduction="none"
        )
    values = losses.unflatten(0, chosen.shape).masked_fill(chosen == _IGNORED, torch.nan)
    names, title = "batch position", "Loss"
    return TokenLosses(values, names, title, "nats", tokens=tokens.strings)


def _targets(targets: object, ids: TokenIds, model: Model) -> TokenIds:
    try:
        found = torch.as_tensor(getattr(targets, "ids", targets), device=ids.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TokenizationError(
            f"targets is a {type(targets).__name__}; expected token ids, (batch, position)."
        ) from error
    found = found[None] if found.dim() == 1 else found
    if found.shape != ids.shape or found.dtype not in (torch.int64, torch.int32):
        raise TokenizationError(
            f"targets of shape {tuple(found.shape)} and {found.dtype}; expected token ids of shape "
            f"{tuple(ids.shape)}, as the text."
        )
    size = model.config.vocab_size
    if bool(((found != _IGNORED) & ((found < 0) | (found >= size))).any()):
        raise TokenizationError(f"targets: expected ids below {size}, or {_IGNORED} for none.")
    return found.long().clone()
