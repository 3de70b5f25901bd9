"""The documents of a corpus as tokens, cut into parts that a model reads at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minibert.errors import TokenizationError
from minibert.survey.attached_stack import AttachedStack
from minibert.survey.formats import Document
from minibert.text.tokens import Tokens
from minibert.text.windows import columns, equal_parts
from minibert.text.words import Words

if TYPE_CHECKING:
    from minibert.model import Model

    Surveyable = Model | AttachedStack

__all__ = ["TextPart", "Texts", "text_parts"]

Texts = Iterable[Any]
"""Texts or Words, (text, second text) pairs, Tokens or ids of one sentence each, or Documents."""


@dataclass(frozen=True, eq=False)
class TextPart:
    """The tokens of one part of a document, with the number of the document and its id."""

    number: int
    id: str
    tokens: Tokens


def text_parts(
    model: "Surveyable", texts: Texts, *, longest: int | None = None
) -> Iterator[TextPart]:
    """The parts of each document, in the order of the corpus.

    A text longer than `longest`, by default the model's positions, is cut into parts of about the
    same length; no token is in two of them, and each has the special tokens of a whole text.

    Raises TokenizationError for what the model cannot read: an empty text, a pair that is too
    long, or something that is no text at all.
    """
    if isinstance(texts, str):
        raise TokenizationError("texts is one str; give a list of texts, as [text].")
    if isinstance(texts, Tokens | Tensor):
        texts = [texts[index] for index in range(len(texts))]
    for number, text in enumerate(texts):
        yield from _of_document(model, number, text, longest or model.config.n_positions)


def _of_document(
    model: "Surveyable", number: int, document: Any, longest: int
) -> Iterator[TextPart]:
    name = str(number)
    if isinstance(document, Document):
        name = document.id
        contents = document.contents
        document = contents if len(contents) > 1 else contents[0]
    pair = isinstance(document, tuple) and len(document) == 2
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
        yield TextPart(number, name, part)
