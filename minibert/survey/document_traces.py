"""The documents of a corpus, each as traces of one packed pass: where distances and patterns read.

Documents are packed into batches without padding, in their own order. Of a batch only what a trace
keeps is in memory (query, key, value and z of each layer), never an N x N of all.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.survey.formats import Document
from minibert.text.tokens import Tokens, padded
from minibert.text.windows import columns, equal_parts
from minibert.text.words import Words
from minibert.trace.read import Trace

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["DocumentTraces", "Texts", "document_traces", "generator_of"]

Texts = Iterable[Any]
"""Texts or Words, (text, second text) pairs, Tokens or ids of one sentence each, or Documents."""

# Numbers that the trace of one batch may keep: 128 MiB in float32.
_NUMBERS = 2**25


@dataclass(frozen=True, eq=False)
class DocumentTraces:
    """One document: its id, its number in the corpus, and the trace of each of its parts."""

    id: str
    number: int
    parts: tuple[Trace, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    number: int
    id: str
    tokens: Tokens


def document_traces(model: "Model", texts: Texts) -> Iterator[DocumentTraces]:
    """The traces of each document, in the order of the corpus; no gradients are kept.

    A text longer than the model's positions is cut into parts of about the same length; no token
    is in two of them, and each has the special tokens of a whole text.

    Raises TokenizationError for what the model cannot read: an empty text, a pair that is too
    long, or something that is no text at all.
    """
    if isinstance(texts, str):
        raise TokenizationError("texts is one str; give a list of texts, as [text].")
    if isinstance(texts, Tokens | Tensor):
        texts = [texts[index] for index in range(len(texts))]
    waiting: list[Trace] = []
    last: _Part | None = None
    for batch in _batches(model, texts):
        with torch.no_grad():
            trace = model.trace(_joined([part.tokens for part in batch]), packed=True)
        for index, part in enumerate(batch):
            if last is not None and part.number != last.number:
                yield DocumentTraces(last.id, last.number, tuple(waiting))
                waiting = []
            waiting.append(trace.text(index))
            last = part
    if last is not None:
        yield DocumentTraces(last.id, last.number, tuple(waiting))


def generator_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers that belong to a seed and a document, whatever else is measured."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _batches(model: "Model", texts: Texts) -> Iterator[list[_Part]]:
    """The parts of all documents, as many at once as a trace has memory for."""
    config = model.config
    room = max(1, _NUMBERS // (config.n_layers * 8 * config.d_model))
    batch: list[_Part] = []
    size = 0
    for number, text in enumerate(texts):
        for part in _parts(model, number, text):
            length = part.tokens.lengths[0]
            if batch and size + length > room:
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += length
    if batch:
        yield batch


def _parts(model: "Model", number: int, document: Any) -> Iterator[_Part]:
    name = str(number)
    if isinstance(document, Document):
        name = document.id
        contents = document.contents
        document = contents if len(contents) > 1 else contents[0]
    longest, pair = model.config.n_positions, isinstance(document, tuple) and len(document) == 2
    if isinstance(document, str | Words) and model.tokenizer is not None:
        whole = model.tokenizer(document)
        tokens = [columns(whole, [part.tolist()]) for part in equal_parts(whole, longest)]
    elif pair and isinstance(document[0], str | Words) and model.tokenizer is not None:
        tokens = [model.tokenizer(*document)]
        if tokens[0].lengths[0] > longest:
            raise TokenizationError(
                f"Document {name} is a pair of {tokens[0].lengths[0]} tokens, more than the "
                f"{longest} positions of {model.name}; shorten its texts, or give them alone."
            )
    else:
        tokens = [model.inputs(document).as_tokens(model.tokenizer)]
    for part in tokens:
        if len(part) != 1:
            raise TokenizationError(
                f"Document {name} is a batch of {len(part)} sentences; give them one by one."
            )
        yield _Part(number, name, part)


def _joined(parts: list[Tokens]) -> Tokens:
    """Sentences as one batch."""

    def table(rows: Iterable[Tensor]) -> Tensor:
        return padded([row[0].tolist() for row in rows], 0)

    fields = ("raw", "strings", "spans", "words", "special")
    return Tokens(
        ids=table(part.ids for part in parts),
        mask=table(part.mask for part in parts).bool(),
        segments=table(part.segments for part in parts),
        **{name: tuple(getattr(part, name)[0] for part in parts) for name in fields},
        texts=tuple(part.texts[0] for part in parts) if all(p.texts for p in parts) else (),
    )
