"""Text to `Tokens`, with the vocabulary that came with the checkpoint.

The splitting is done by the `tokenizers` library, set up by tokenizer_files.py. Here texts are
checked before it sees them, and what it returns becomes `Tokens`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.text.tokenizer_files import (
    WELL_KNOWN,
    check_that_it_splits,
    declared_tokens,
    find_roles,
    is_plain,
    parsed,
    read_backend,
    read_settings,
    reader,
)
from minibert.text.tokens import Tokens, padded
from minibert.text.words import (
    Sentence,
    Words,
    check_encoding,
    check_text,
    sentences,
    word_backend,
    written,
)
from minibert.untrusted import Json, guarded, silenced

if TYPE_CHECKING:
    Texts = str | Words | Sequence[str | Words]
else:
    # Checked where they come in, with an error that says what to do; a run-time type checker
    # must not get in before it.
    Texts = object


Columns = tuple[
    Sequence[int], Sequence[int], tuple[tuple[int, int] | None, ...], tuple[int | None, ...]
]


class Tokenizer:
    """Turns text into `Tokens` and ids into text.

    mask_id, pad_id, cls_id, sep_id, unk_id, bos_id, eos_id   None where there is none
    special_ids      all of them, and every other token the files call special
    structural_ids   the special ids that stand for no text: not the mask, not the unknown
    """

    mask_id: int | None
    pad_id: int | None
    cls_id: int | None
    sep_id: int | None
    unk_id: int | None
    bos_id: int | None
    eos_id: int | None
    special_ids: frozenset[int]
    structural_ids: frozenset[int]

    def __init__(self, backend: Backend, declared: dict[str, AddedToken]) -> None:
        # Files from training runs come with a fixed length of their own (128, say), which
        # would cut and pad silently.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        roles = find_roles(backend, declared)
        for role in WELL_KNOWN:
            setattr(self, f"{role}_id", roles.get(role))
        added = backend.get_added_tokens_decoder()
        special = (i for i, token in added.items() if token.special)
        self.special_ids = frozenset(special) | frozenset(roles.values())
        markers = {i for role, i in roles.items() if role not in ("mask", "unk")}
        self.structural_ids = self.special_ids - {self.mask_id, self.unk_id} | markers
        self._readable = cache(reader(backend))

    @classmethod
    def from_folder(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer of a checkpoint folder.

        Reads tokenizer.json, else vocab.txt (WordPiece). Settings and special tokens come from
        tokenizer_config.json and special_tokens_map.json where they are. Raises TokenizationError
        where neither can be read.
        """
        folder = Path(path)
        settings = read_settings(folder)
        backend = read_backend(folder, settings)
        with guarded(folder, TokenizationError, "its tokenizer cannot be used"), silenced():
            check_that_it_splits(backend)
            return cls(backend, declared_tokens(settings))

    @classmethod
    def from_json(cls, content: str) -> "Tokenizer":
        """The tokenizer of a tokenizer.json's content, as `to_json` gives it.

        Raises TokenizationError for anything else.
        """
        backend = parsed(content, "The text")
        with guarded("The text", TokenizationError, "is not a tokenizer.json"), silenced():
            check_that_it_splits(backend)
            return cls(backend, {})

    def __getstate__(self) -> dict[str, object]:
        ids = {f"{role}_id": getattr(self, f"{role}_id") for role in WELL_KNOWN}
        sets = {"special_ids": self.special_ids, "structural_ids": self.structural_ids}
        return {"json": self.to_json(), **ids, **sets}

    def __setstate__(self, state: Json) -> None:
        state = dict(state)
        self._backend = Backend.from_str(state.pop("json"))
        self._readable = cache(reader(self._backend))
        self.__dict__.update(state)

    def to_json(self) -> str:
        """The content of a tokenizer.json that gives this tokenizer again."""
        return self._backend.to_str()

    @cached_property
    def _entries(self) -> dict[int, str]:
        return {i: token for token, i in self._backend.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one, added tokens counted."""
        return max(self._entries, default=-1) + 1

    def text_ids_from(self, first: int) -> list[int]:
        """The ids from `first` on, those of special tokens apart."""
        return [i for i in self._entries if i >= first and i not in self.special_ids]

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string; the id written out where there is no such entry."""
        return self._entries.get(token_id, str(token_id))

    def string(self, token_id: int) -> str:
        """The string as a person reads it: "Ġbrown" is " brown", half a character is "\\xf0"."""
        return self._readable(self.raw(token_id))

    @contextmanager
    def _splitting(self) -> Iterator[None]:
        """Around what the library splits: it panics on some texts, with a word on standard error.

        Where all of its parts are plain it does not, and nothing has to be kept from there.
        """
        problem = "cannot be read by this tokenizer"
        with (
            guarded("the text or ids", TokenizationError, problem),
            nullcontext() if self._plain else silenced(),
        ):
            yield

    @cached_property
    def _plain(self) -> bool:
        backend = self._backend
        parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
        return all(is_plain(part.__getstate__().decode()) for part in parts if part is not None)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens; [] for an empty text."""
        return self.encode_with_starts(text)[0]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text, without special tokens, and the character each begins at."""
        check_text(text, "the text", may_be_empty=True)
        with self._splitting():
            encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def decode(self, ids: Iterable[int] | Tensor, *, skip_special: bool = True) -> str:
        """The text that ids stand for; ids outside the vocabulary give nothing."""
        numbers = [int(i) for i in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < 2**32:
            wrong = next(i for i in numbers if not 0 <= i < 2**32)
            raise TokenizationError(f"ids must be 0 or more, and below 2**32; found {wrong}")
        with self._splitting():
            return self._backend.decode(numbers, skip_special_tokens=skip_special)

    def __call__(
        self,
        text: Texts,
        pair: Texts | None = None,
        *,
        truncate: bool = False,
        max_positions: int | None = None,
    ) -> Tokens:
        """Tokens of a text or a list of texts, each with the text of `pair` that goes with it.

        A text is a str, or Words where it is split already.

        Special tokens are added as the vocabulary's own template says. A sentence of more
        than `max_positions` tokens is an error; with `truncate=True` it is cut from the right,
        special tokens kept, of a pair the longer text first. Raises TokenizationError also for
        an empty batch, a text that gives no token, unpaired surrogates, unequal lists.
        """
        if truncate and max_positions is None:
            raise TokenizationError("truncate=True needs max_positions, the length to cut to")
        given = sentences(text, pair)
        encodings = self._encodings(given)
        limit = None if truncate else max_positions
        for i, (sentence, encoding) in enumerate(zip(given, encodings, strict=True)):
            check_encoding(encoding, sentence, None if isinstance(text, str | Words) else i, limit)
        rows = [_columns(*both, max_positions) for both in zip(encodings, given, strict=True)]
        return self._tokens(tuple(tuple(map(written, sentence)) for sentence in given), rows)

    def _encodings(self, given: tuple[Sentence, ...]) -> list[Encoding]:
        """What the library makes of sentences, those of words by themselves, in their order."""
        in_words = [isinstance(sentence[0], Words) for sentence in given]
        inputs: list[object] = [
            one if len(one) == 2 else one[0]
            for one in (tuple(list(t) if isinstance(t, Words) else t for t in s) for s in given)
        ]
        encodings: list[Any] = [None] * len(given)
        for words in set(in_words):
            rows = [i for i, of_words in enumerate(in_words) if of_words == words]
            backend = self._word_backend if words else self._backend
            with self._splitting():
                made = backend.encode_batch([inputs[i] for i in rows], is_pretokenized=words)
            for i, encoding in zip(rows, made, strict=True):
                encodings[i] = encoding
        return encodings

    @cached_property
    def _word_backend(self) -> Backend:
        with self._splitting():
            return word_backend(self._backend)

    def _tokens(self, texts: tuple[tuple[str, ...], ...], rows: list[Columns]) -> Tokens:
        ids, kinds, spans, words = zip(*rows, strict=True)
        raw = tuple(tuple(map(self.raw, row)) for row in ids)
        ones = [(1,) * len(row) for row in ids]
        return Tokens(
            ids=padded(ids, self.pad_id or 0),
            mask=padded(ones, 0).bool(),
            segments=padded(kinds, 0),
            raw=raw,
            strings=tuple(tuple(map(self._readable, row)) for row in raw),
            spans=spans,
            words=words,
            special=tuple(tuple(map(self.structural_ids.__contains__, row)) for row in ids),
            texts=texts,
        )


def _columns(encoding: Encoding, sentence: Sentence, limit: int | None) -> Columns:
    """Ids, segments, spans and words of a sentence, cut to `limit`."""
    owners = encoding.sequence_ids
    ids, kinds, words = encoding.ids, encoding.type_ids, encoding.word_ids
    # Of words the library counts characters within each word.
    starts = [text.starts if isinstance(text, Words) else None for text in sentence]
    spans: list[tuple[int, int] | None] = []
    for (start, end), owner, word in zip(encoding.offsets, owners, words, strict=True):
        begins = None if owner is None else starts[owner]
        first = 0 if begins is None or word is None else begins[word]
        spans.append(None if owner is None else (first + start, first + end))
    if limit is None or len(owners) <= limit:
        return ids, kinds, tuple(spans), tuple(words)
    kept = _kept(owners, limit)
    return (
        [ids[i] for i in kept],
        [kinds[i] for i in kept],
        tuple(spans[i] for i in kept),
        tuple(words[i] for i in kept),
    )


def _kept(owners: Sequence[int | None], limit: int) -> list[int]:
    """The positions that stay when a sentence is cut to `limit`, special tokens among them.

    As in transformers' "longest_first": the longer text gives until both are equally long.
    """
    special = owners.count(None)
    first, second = owners.count(0), owners.count(1)
    room = limit - special
    if room < (2 if second else 1):
        raise TokenizationError(
            f"max_positions={limit} leaves no room for a token of each text beside the {special} "
            f"special ones; it must be at least {special + (2 if second else 1)}"
        )
    short = min(first, second, room // 2)
    left = [short, room - short] if first <= second else [room - short, short]
    kept = []
    for i, owner in enumerate(owners):
        if owner is not None:
            left[owner] -= 1
        if owner is None or left[owner] >= 0:
            kept.append(i)
    return kept
