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
from numpy.typing import NDArray
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.quantities import Bool
from minibert.text.tokens import Tokens, padded
from minibert.text.windows import windows
from minibert.trace.read import Trace

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["DocumentTraces", "Documents", "Part", "document_traces", "generator_of"]

Documents = Iterable[Any]
"""Texts, (text, second text) pairs, Tokens, rows of ids, or objects with id, text and pair."""

# Numbers that the trace of one batch may keep: 128 MiB in float32.
_NUMBERS = 2**25


@dataclass(frozen=True, eq=False)
class Part:
    """A document, or as much of it as the model has positions for.

    `counted` is False for rows that an earlier part of the same document has as well.
    """

    trace: Trace
    counted: Bool[Tensor, " position"]


@dataclass(frozen=True, eq=False)
class DocumentTraces:
    """One document: its id, its number in the corpus, and the traces of its parts."""

    id: str
    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class _Piece:
    number: int
    id: str
    tokens: Tokens
    counted: Bool[Tensor, " position"]


def document_traces(model: "Model", texts: Documents) -> Iterator[DocumentTraces]:
    """The traces of each document, in the order of the corpus; no gradients are kept.

    A text longer than the model's positions is cut into windows. The last window begins early
    enough to be full, and its rows that the window before it has do not count.

    Raises TokenizationError for what the model cannot read: an empty text, a pair that is too
    long, or something that is no text at all.
    """
    if isinstance(texts, str):
        raise TokenizationError("texts is one str; give a list of texts, as [text].")
    if isinstance(texts, Tokens | Tensor):
        texts = [texts[index] for index in range(len(texts))]
    waiting: list[Part] = []
    last: _Piece | None = None
    for batch in _batches(model, texts):
        with torch.no_grad():
            trace = model.trace(_joined([piece.tokens for piece in batch]), packed=True)
        for index, piece in enumerate(batch):
            if last is not None and piece.number != last.number:
                yield DocumentTraces(last.id, last.number, tuple(waiting))
                waiting = []
            waiting.append(Part(trace.text(index), piece.counted))
            last = piece
    if last is not None:
        yield DocumentTraces(last.id, last.number, tuple(waiting))


def generator_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers that belong to a seed and a document, whatever else is measured."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _batches(model: "Model", texts: Documents) -> Iterator[list[_Piece]]:
    """The pieces of all documents, as many at once as a trace has memory for."""
    config = model.config
    room = max(1, _NUMBERS // (config.n_layers * 8 * config.d_model))
    batch: list[_Piece] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in _pieces(model, number, text):
            length = piece.tokens.lengths[0]
            if batch and size + length > room:
                yield batch
                batch, size = [], 0
            batch.append(piece)
            size += length
    if batch:
        yield batch


def _pieces(model: "Model", number: int, document: Any) -> Iterator[_Piece]:
    name = str(getattr(document, "id", number))
    if hasattr(document, "text"):
        document = document.text if document.pair is None else (document.text, document.pair)
    for tokens, counted in _parts(model, document):
        yield _Piece(number, name, tokens, counted)


def _parts(model: "Model", document: Any) -> Iterator[tuple[Tokens, Tensor]]:
    if isinstance(document, str) and model.tokenizer is not None and document.strip():
        tokens = model.tokenizer(document)
        room = model.config.n_positions - tokens.spans[0].count(None)
        if tokens.lengths[0] > model.config.n_positions:
            yield from _windows(model, document, room)
            return
    if isinstance(document, tuple) and len(document) == 2 and isinstance(document[0], str):
        tokens = model.tokenize(*document)
    else:
        inputs = model.inputs(document)
        tokens = inputs.as_tokens(model.tokenizer)
    if len(tokens) != 1:
        raise TokenizationError(
            f"A document is a batch of {len(tokens)} sentences; give them one by one."
        )
    yield tokens, torch.ones(tokens.lengths[0], dtype=torch.bool)


def _windows(model: "Model", text: str, room: int) -> Iterator[tuple[Tokens, Tensor]]:
    """The windows of a long text, and which of their rows no window before them has."""
    found = windows(model, text, stride=room)
    done = 0
    for index, start in enumerate(found.starts):
        tokens = found.tokens[index]
        inside: NDArray[np.bool_] = np.array([span is not None for span in tokens.spans[0]])
        again = inside & (np.cumsum(inside) <= done - start)
        done = start + int(inside.sum())
        yield tokens, torch.from_numpy(~again)


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
