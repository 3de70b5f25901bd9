"""Documents as parts a model reads at once, and the rows of attention of each, for what heads do.

For a loaded model, documents are packed into batches without padding, in their own order. A live
model gets one part at a time. Query, key, value and z of each layer are kept for the open document;
rows are computed when they are read, never as an N x N matrix of everything.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.analysis.patterns import Seen
from minibert.attached.attach import Attached
from minibert.attached.call import Call
from minibert.attached.layout import title_of
from minibert.attached.read import PageTrace, StackTrace, page_trace
from minibert.errors import SurveyError, TokenizationError
from minibert.quantities import Float
from minibert.survey.documents import Document, document_of
from minibert.survey.live import AttachedStack, Given, Surveyable
from minibert.survey.segments import grouped, joined, parts_of
from minibert.text.tokens import Tokens, columns
from minibert.text.words import Words
from minibert.trace.read import Trace

Texts = Iterable[Any]
"""Texts or Words, (text, second text) pairs, Tokens or ids of one sentence each, or Documents."""


@dataclass(frozen=True, eq=False)
class TextPart:
    """The tokens of one part of a document, with the number of the document and its id."""

    number: int
    id: str
    tokens: Tokens


def text_parts(
    model: Surveyable, texts: Texts, *, longest: int | None = None
) -> Iterator[TextPart]:
    """The parts of each document, in the order of the corpus, as `segments.parts_of` cuts them.

    Parts have at most `longest` tokens, by default the model's positions.

    Raises TokenizationError for what the model cannot read: an empty text, a pair that is too
    long, or something that is not text at all.
    """
    if isinstance(texts, str):
        raise TokenizationError("texts is one str; give a list of texts, as [text].")
    if isinstance(texts, Tokens | Tensor):
        texts = [texts[index] for index in range(len(texts))]
    for number, text in enumerate(texts):
        written = isinstance(text, str | Words | Document | tuple) and model.tokenizer is not None
        if written and model.tokenizer is not None:
            document = document_of(text, number)
            whole, places, _ = parts_of(
                document, model.tokenizer, longest or model.config.n_positions
            )
            for place in places:
                yield TextPart(number, document.id, columns(whole, [place.tolist()]))
            continue
        tokens = model.inputs(text).as_tokens(model.tokenizer)
        if len(tokens) != 1:
            raise TokenizationError(f"Document {number} has {len(tokens)} sentences; expected one.")
        yield TextPart(number, str(number), tokens)


# Numbers that the trace of one batch may keep: 128 MiB in float32.
_NUMBERS = 2**25


def generator_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers of a seed and a document, independent of what else is measured."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


@runtime_checkable
class Rows(Protocol):
    """The rows of attention of one part of a document."""

    tokens: Tokens

    def seen(self) -> list[tuple[Seen, list[int]]]:
        """The keys that the queries see, and the layers where they do; None: no limit."""

    def probs(self, layer: int, queries: slice) -> Float[Tensor, "head query key"]:
        """The rows of some queries in one layer, on the processor."""

    def paged(self) -> Trace | PageTrace:
        """The rows as a page reads them. Raises TraceError where a page cannot show them."""


@dataclass(frozen=True, eq=False)
class DocumentRows:
    """A document: its id, and the rows of each of its parts."""

    id: str
    parts: tuple[Rows, ...]


class LoadedRows:
    """The rows of a trace of one text."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.tokens = trace, trace.tokens

    def seen(self) -> list[tuple[Seen, list[int]]]:
        """The windows of the model that cut this text."""
        return [*self.trace.config.layers_by_window(self.tokens.lengths[0]).items()]

    def probs(self, layer: int, queries: slice) -> Float[Tensor, "head query key"]:
        """Some rows of one layer."""
        return self.trace.at(layer, queries=queries).probs[0].detach().cpu()

    def paged(self) -> Trace:
        """The trace."""
        return self.trace


class AttachedRows:
    """The rows of the calls that the layers of a live model made for one text.

    Raises SurveyError where the heads of a layer see different keys.
    """

    def __init__(self, model: AttachedStack, tokens: Tokens) -> None:
        self.model, self.tokens = model, tokens
        self.calls: list[Call] = []
        model.run(tokens.ids, tokens.segments, lambda _, call: self.calls.append(call))

    def seen(self) -> list[tuple[Seen, list[int]]]:
        """What the model's own masks allow, beside causal order."""
        groups: list[tuple[Tensor, list[int]]] = []
        n = self.tokens.lengths[0]
        whole = torch.ones(n, n, dtype=torch.bool)
        whole = whole.tril() if self.model.config.causal else whole
        for layer in range(len(self.calls)):
            allowed = self._allowed(layer, whole)
            same = [layers for one, layers in groups if torch.equal(one, allowed)]
            if same:
                same[0].append(layer)
            else:
                groups.append((allowed, [layer]))
        return [(None if torch.equal(one, whole) else one, layers) for one, layers in groups]

    def _allowed(self, layer: int, whole: Tensor) -> Tensor:
        found = self.calls[layer].mask_rows().allowed
        if found is None:
            return whole
        of_heads = found.cpu().expand(1, -1, *whole.shape)[0]
        if not torch.equal(of_heads, of_heads[:1].expand_as(of_heads)):
            raise SurveyError(
                f"{self.model.name}, {self.model.stack} {layer}: heads of the layer see different "
                "keys, and a pattern counts the rows of all of them together."
            )
        return of_heads[0]

    def probs(self, layer: int, queries: slice) -> Float[Tensor, "head query key"]:
        """Some rows of one layer."""
        probs: Tensor = self.calls[layer].read("probs", rows=queries)[0]
        return probs.detach().cpu().to(self.model.dtype)

    def paged(self) -> PageTrace:
        """The stack, whose tokens are those of the text. Raises TraceError; see `page_trace`."""
        model = self.model
        calls = list(zip(model.modules, self.calls, strict=True))
        name = title_of(model.name, model.stack)
        found = page_trace(StackTrace(model.stack, calls, name))
        return replace(found, tokens=self.tokens)


def document_rows(
    model: Surveyable, texts: Texts, *, longest: int | None = None
) -> Iterator[DocumentRows]:
    """The rows of each document, in the order of the corpus; no gradients are kept.

    A live model is given one part after the other. `texts` and `longest` are those of
    `text_parts`, whose errors are raised.
    """
    read = _read(model, text_parts(model, texts, longest=longest))
    for _, of_document in groupby(read, key=lambda one: one[0].number):
        found = list(of_document)
        yield DocumentRows(found[0][0].id, tuple(rows for _, rows in found))


def _read(model: Surveyable, parts: Iterable[TextPart]) -> Iterator[tuple[TextPart, Rows]]:
    """The parts with their rows, as many in a packed pass as a trace has memory for."""
    if isinstance(model, AttachedStack):
        yield from ((part, AttachedRows(model, part.tokens)) for part in parts)
        return
    config = model.config
    room = max(1, _NUMBERS // (config.n_layers * 8 * config.d_model))
    for batch in grouped(parts, room, lambda part: part.tokens.lengths[0]):
        with torch.no_grad():
            trace = model.trace(joined([part.tokens for part in batch]), packed=True)
        yield from ((part, LoadedRows(trace.text(n))) for n, part in enumerate(batch))


def surveyable(model: Given, stack: str | None, longest: int | None) -> Surveyable:
    """The model, or the stack of an attached one; a stack that was returned before stays valid.

    Raises TraceError for anything but a model, and SurveyError for a stack that does not exist and
    for a `longest` above the number of tokens that the model sees at once.
    """
    subject: Surveyable
    if isinstance(model, Attached):
        subject = AttachedStack(model, stack, longest)
    elif isinstance(model, AttachedStack):
        subject = model
    else:
        check_model(model)
        subject = model
        if stack is not None:
            raise SurveyError(f"stack={stack!r:.80}: {model.name} has one stack; leave stack out.")
    limit = subject.config.n_positions
    if longest is not None and not 8 <= longest <= limit:
        raise SurveyError(f"longest={longest}: expected from 8 to {limit} tokens of a part.")
    return subject
