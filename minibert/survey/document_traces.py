"""The documents of a corpus, each as traces of one packed pass: where distances and patterns read.

Documents are packed into batches without padding, in their own order. Of a batch only what a trace
keeps is in memory (query, key, value and z of each layer), never an N x N of all.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from minibert.survey.text_parts import TextPart, Texts, text_parts
from minibert.text.tokens import Tokens, padded
from minibert.trace.read import Trace

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["DocumentTraces", "document_traces", "generator_of"]

# Numbers that the trace of one batch may keep: 128 MiB in float32.
_NUMBERS = 2**25


@dataclass(frozen=True, eq=False)
class DocumentTraces:
    """One document: its id, its number in the corpus, and the trace of each of its parts."""

    id: str
    number: int
    parts: tuple[Trace, ...]


def document_traces(
    model: "Model", texts: Texts, *, longest: int | None = None
) -> Iterator[DocumentTraces]:
    """The traces of each document, in the order of the corpus; no gradients are kept.

    `texts` and `longest` are those of `text_parts`, whose errors are raised.
    """
    waiting: list[Trace] = []
    last: TextPart | None = None
    for batch in _batches(model, text_parts(model, texts, longest=longest)):
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


def _batches(model: "Model", parts: Iterable[TextPart]) -> Iterator[list[TextPart]]:
    """The parts of all documents, as many at once as a trace has memory for."""
    config = model.config
    room = max(1, _NUMBERS // (config.n_layers * 8 * config.d_model))
    batch: list[TextPart] = []
    size = 0
    for part in parts:
        length = part.tokens.lengths[0]
        if batch and size + length > room:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += length
    if batch:
        yield batch


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
