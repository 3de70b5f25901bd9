"""Text files for training: documents of paragraphs and sentences, and then token ids."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from minibert.errors import TrainingError
from minibert.quantities import Int
from minibert.text.tokenizer import Tokenizer
from minibert.untrusted import read_bytes

# All texts are held in memory, several times while the tokenizer learns from them.
_MOST_BYTES = 2**31
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--", "_": "", "\ufeff": ""})
# A sentence ends with . ! or ? and a closing quote after it, or at a new line.
_SENTENCE_END = re.compile(r"""(?<=[.!?])\s+(?=\S)|(?<=[.!?]["'])\s+(?=\S)|\n+(?=\S)""")


@dataclass(frozen=True)
class Document:
    """One text: its name, and its paragraphs, one on each line."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text; a run resumes only with the same text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def clean(text: str) -> str:
    """The text with one line a paragraph, straight quotes, and no underscores for italics.

    Printed books break lines at any word and have three kinds of quotes. A small model should not
    spend its capacity on these.
    """
    paragraphs = re.split(r"\n\s*\n", text.translate(_PLAIN))
    return "\n".join(line for line in (" ".join(p.split()) for p in paragraphs) if line)


def read_texts(paths: Iterable[str | Path]) -> tuple[Document, ...]:
    """The documents of these UTF-8 files, in the order given.

    Raises TrainingError for a file that cannot be read, is not UTF-8, or has no text.
    """
    return tuple(_read(Path(path)) for path in paths)


def _read(path: Path) -> Document:
    content = read_bytes(path, TrainingError, most=_MOST_BYTES)
    try:
        text = clean(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TrainingError(
            f"{path}: byte {error.start} is not UTF-8; convert the file "
            "(iconv -f latin1 -t utf-8, for instance)."
        ) from error
    if not text:
        raise TrainingError(f"{path}: the file has no text.")
    return Document(path.name, text)


def hold_out(
    documents: Sequence[Document], *, share: float = 0.05
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """The documents without their ends, and these ends: the last share of each one's characters.

    The cut is moved to the start of the next sentence, if there is one.
    """
    kept, held = [], []
    for document in documents:
        text = document.text
        cut = max(1, round(len(text) * (1 - share)))
        cut = next((start for start in sentence_starts(text) if start >= cut), cut)
        kept.append(Document(document.name, text[:cut].rstrip()))
        if text[cut:].strip():
            held.append(Document(f"the end of {document.name}", text[cut:]))
    return tuple(kept), tuple(held)


def sentence_starts(text: str) -> list[int]:
    """The character at which each sentence begins; a new line also begins a sentence."""
    return [0, *(match.end() for match in _SENTENCE_END.finditer(text))]


@dataclass(frozen=True)
class Corpus:
    """Documents as token ids, one after the other, and where their sentences begin."""

    ids: Int[Tensor, " token"]
    sentence_starts: Int[Tensor, " sentence"]
    """Positions in ids."""
    first_sentences: Int[Tensor, " document"]
    """The first sentence of each document, as an index into sentence_starts."""

    @classmethod
    def of(
        cls, documents: Sequence[Document], tokenizer: Tokenizer, *, between: Sequence[int] = ()
    ) -> "Corpus":
        """The corpus of these documents; the ids `between` are added at the end of each."""
        ids: list[int] = []
        starts: list[Tensor] = []
        firsts: list[int] = []
        for document in documents:
            encoded, places = tokenizer.encode_with_starts(document.text)
            firsts.append(sum(map(len, starts)))
            starts.append(_first_tokens(places, sentence_starts(document.text)) + len(ids))
            ids += [*encoded, *between]
        none = torch.empty(0, dtype=torch.int64)
        return cls(
            torch.tensor(ids, dtype=torch.int64),
            torch.cat([none, *starts]),
            torch.tensor(firsts, dtype=torch.int64),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def end(self, document: int) -> int:
        """The position after the last token of a document."""
        last = document + 1 == len(self.first_sentences)
        return len(self.ids) if last else int(self.start(document + 1))

    def start(self, document: int) -> int:
        """The position of the first token of a document."""
        return int(self.sentence_starts[self.first_sentences[document]])

    @cached_property
    def sizes(self) -> Int[Tensor, " document"]:
        """Tokens of each document."""
        count = len(self.first_sentences)
        return torch.tensor([self.end(n) - self.start(n) for n in range(count)], dtype=torch.int64)


def _first_tokens(places: Sequence[int], starts: Sequence[int]) -> Tensor:
    """The first token of each sentence, without repetitions.

    `places` and `starts` are the characters at which tokens and sentences begin.
    """
    token_places, wanted = (torch.tensor(p, dtype=torch.int64) for p in (places, starts))
    # A byte-level token may begin with the space before its word, so the token at or before the
    # sentence's first character is taken. Where several tokens share a character it is the first.
    nearest = (torch.searchsorted(token_places, wanted, right=True) - 1).clamp_min(0)
    if len(places):
        nearest = torch.searchsorted(token_places, token_places[nearest])
    return nearest.unique()
