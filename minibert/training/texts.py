"""Text files for training: documents, the tokenizer that learns from them, and then token ids.

Tokenizers: WordPiece (Schuster and Nakajima 2012, as in Devlin et al. 2019) for models that see
both sides, else byte-level BPE (Sennrich et al. 2016, as in Radford et al. 2019). The `tokenizers`
library does the work.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from minibert.errors import TrainingError
from minibert.model import Model
from minibert.quantities import Int
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokenizer_files import WELL_KNOWN
from minibert.untrusted import read_bytes
from minibert.writing import replacing

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
            f"{path}: byte {error.start} is not UTF-8; convert it (iconv -f latin1 -t utf-8, say)."
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


END_OF_TEXT = "<|endoftext|>"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_PRIVATE = 0xF0000
# Typographic characters, and how the cleaned texts write them.
_STRAIGHT = {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--"}


def train_tokenizer(texts: Iterable[str], *, size: int, byte_level: bool) -> Tokenizer:
    """A tokenizer of at most `size` entries: byte-level BPE, or WordPiece in lower case.

    The same texts give the same tokenizer. Raises TrainingError for a size too small for the
    special tokens and all characters.
    """
    smallest = 300 if byte_level else 100
    if size < smallest:
        raise TrainingError(f"A vocabulary of {size} is too small; expected at least {smallest}.")
    backend = _byte_level(texts, size) if byte_level else _word_piece(texts, size)
    found = backend.get_vocab_size()
    if found > size:
        raise TrainingError(
            f"The texts have so many different characters that a vocabulary of {size} cannot hold "
            f"them; expected at least {found}."
        )
    return Tokenizer(backend, {})


def write_tokenizer_settings(model: Model, folder: Path) -> None:
    """Write the tokenizer_config.json that makes transformers use tokenizer.json unchanged.

    Without it transformers builds the family's usual tokenizer from the vocabulary, which would
    not turn curly quotes into straight ones.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = {role: getattr(tokenizer, f"{role}_id") for role in WELL_KNOWN}
    segments = ["token_type_ids"] if model.config.n_segments > 1 else []
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.n_positions,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **{f"{role}_token": tokenizer.raw(i) for role, i in ids.items() if i is not None},
    }
    with replacing(folder / "tokenizer_config.json") as beside:
        beside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _byte_level(texts: Iterable[str], size: int) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _word_piece(texts: Iterable[str], size: int) -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    straight = [normalizers.Replace(sign, plain) for sign, plain in _STRAIGHT.items()]
    backend.normalizer = normalizers.Sequence(
        [*straight, normalizers.BertNormalizer(lowercase=True)]
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.model = models.WordPiece(_word_pieces(backend, texts, size), unk_token="[UNK]")
    backend.add_special_tokens(_SPECIAL)
    # After the training, because only then do the special tokens have ids.
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return backend


def _word_pieces(backend: Backend, texts: Iterable[str], size: int) -> dict[str, int]:
    """The vocabulary of WordPieceTrainer, but the same one in each run.

    That trainer numbers the characters inside words in the order of a hash table, which differs
    between runs, and breaks ties by these numbers. Here each such character is replaced by one from
    the private use area, which the normalizer removes from all texts. Plain BPE then learns the
    same pieces.
    """
    words = Counter(
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    )
    inner = {c: chr(_PRIVATE + n) for n, c in enumerate(sorted({c for w in words for c in w[1:]}))}
    learner = Backend(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    signs = str.maketrans(inner)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted({c for word in words for c in word}),
        show_progress=False,
    )
    coded = ((word[0] + word[1:].translate(signs) + " ") * n for word, n in words.items())
    learner.train_from_iterator(coded, trainer)
    letters = str.maketrans({sign: c for c, sign in inner.items()})
    return {
        ("##" if ord(piece[0]) >= _PRIVATE else "") + piece.translate(letters): number
        for piece, number in learner.get_vocab().items()
    }
