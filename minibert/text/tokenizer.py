"""Text to `Tokens`, with the vocabulary that came with the checkpoint.

The splitting is done by the `tokenizers` library, set up by tokenizer_files.py. Here texts are
checked before it sees them, and what it returns becomes `Tokens`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
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
    read_backend,
    read_settings,
    reader,
)
from minibert.text.tokens import Tokens, padded
from minibert.untrusted import guarded, silenced

__all__ = ["Tokenizer"]

if TYPE_CHECKING:
    Texts = str | Sequence[str]
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

        Reads tokenizer.json; else vocab.txt (WordPiece); else vocab.json and merges.txt
        (byte-level BPE). Settings and special tokens come from tokenizer_config.json and
        special_tokens_map.json where they are. Raises TokenizationError where none of these
        can be read.
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

        Raises TokenizationError where it is none.
        """
        with guarded("The text", TokenizationError, "is no tokenizer.json"), silenced():
            backend = Backend.from_str(content)
            check_that_it_splits(backend)
            return cls(backend, {})

    def __getstate__(self) -> dict[str, Any]:
        ids = {f"{role}_id": getattr(self, f"{role}_id") for role in WELL_KNOWN}
        sets = {"special_ids": self.special_ids, "structural_ids": self.structural_ids}
        return {"json": self.to_json(), **ids, **sets}

    def __setstate__(self, state: dict[str, Any]) -> None:
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

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string; the id written out where there is no such entry."""
        return self._entries.get(token_id, str(token_id))

    def string(self, token_id: int) -> str:
        """The string as a person reads it: "Ġbrown" is " brown", half a character is "\\xf0"."""
        return self._readable(self.raw(token_id))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens; [] for an empty text."""
        _check_text(text, "the text", may_be_empty=True)
        with _splitting():
            return self._backend.encode(text, add_special_tokens=False).ids

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text, without special tokens, and the character each begins at."""
        _check_text(text, "the text", may_be_empty=True)
        with _splitting():
            encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def decode(self, ids: Iterable[int] | Tensor, *, skip_special: bool = True) -> str:
        """The text that ids stand for; ids outside the vocabulary give nothing."""
        numbers = [int(i) for i in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < 2**32:
            wrong = next(i for i in numbers if not 0 <= i < 2**32)
            raise TokenizationError(
                f"ids must be 0 or more, and {wrong} is not one a tokenizer gave"
            )
        with guarded("the ids", TokenizationError, "cannot be decoded by the tokenizer"):
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

        Special tokens are added as the vocabulary's own template says. A sentence of more
        than `max_positions` tokens is an error; with `truncate=True` it is cut from the right,
        special tokens kept, of a pair the longer text first. Raises TokenizationError also for
        an empty batch, a text that gives no token, unpaired surrogates, unequal lists.
        """
        if truncate and max_positions is None:
            raise TokenizationError("truncate=True needs max_positions, the length to cut to")
        sentences = _sentences(text, pair)
        inputs: list[Any] = [one if len(one) == 2 else one[0] for one in sentences]
        with _splitting():
            encodings = self._backend.encode_batch(inputs)
        limit = None if truncate else max_positions
        for i, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
            _check_encoding(encoding, sentence, None if isinstance(text, str) else i, limit)
        return self._tokens(sentences, [_columns(one, max_positions) for one in encodings])

    def _tokens(self, sentences: tuple[tuple[str, ...], ...], rows: list[Columns]) -> Tokens:
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
            texts=sentences,
        )


def _splitting() -> AbstractContextManager[None]:
    """Around what the tokenizers library splits: it panics on some files that it could read."""
    return guarded("the text", TokenizationError, "cannot be split by this tokenizer")


def _columns(encoding: Encoding, limit: int | None) -> Columns:
    """Ids, segments, spans and words of a sentence, cut to `limit`."""
    owners = encoding.sequence_ids
    spans = tuple(
        None if owner is None else span
        for span, owner in zip(encoding.offsets, owners, strict=True)
    )
    ids, kinds, words = encoding.ids, encoding.type_ids, encoding.word_ids
    if limit is None or len(owners) <= limit:
        return ids, kinds, spans, tuple(words)
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


def _sentences(text: Texts, pair: Texts | None) -> tuple[tuple[str, ...], ...]:
    """The one or two texts of each sentence, each checked."""
    columns = [_as_list(text)] if pair is None else [_as_list(text), _as_list(pair)]
    alone = isinstance(text, str)
    if pair is not None and alone != isinstance(pair, str):
        raise TokenizationError("text and pair must be both one str or both lists of str")
    if len(columns[0]) != len(columns[-1]):
        raise TokenizationError(
            f"pairs need a second text for each first one, but there are {len(columns[0])} texts "
            f"and {len(columns[-1])} in pair"
        )
    if not columns[0]:
        raise TokenizationError("the batch is empty; give at least one text")
    sentences = tuple(zip(*columns, strict=True))
    for i, sentence in enumerate(sentences):
        for n, one in enumerate(sentence):
            _check_text(one, _place(n, len(sentence), None if alone else i))
    return sentences


def _as_list(text: Any) -> list[Any]:
    if isinstance(text, str):
        return [text]
    if isinstance(text, list | tuple):
        return list(text)
    raise TokenizationError(f"a text must be a str or a list of str, not {type(text).__name__}")


def _place(n: int, of: int, index: int | None) -> str:
    """How a message names text `n` of the `of` texts of sentence `index`."""
    name = "the text" if of == 1 else ("the first text", "the second text")[n]
    if index is None:
        return name
    return f"text {index} of the batch" if of == 1 else f"{name} of pair {index} of the batch"


def _check_text(text: Any, place: str, *, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise TokenizationError(f"{place} must be a str, not {type(text).__name__}")
    if not text and not may_be_empty:
        raise TokenizationError(f"{place} is empty; give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizationError(
            f"{place} has an unpaired surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}, which is no character; decode the text with errors='replace'"
        ) from None


def _check_encoding(
    encoding: Encoding, sentence: tuple[str, ...], index: int | None, limit: int | None
) -> None:
    """Raises where a text gave no token, or where the sentence is longer than `limit`."""
    owners = encoding.sequence_ids
    for n, text in enumerate(sentence):
        if n not in owners:
            raise TokenizationError(
                f"{_place(n, len(sentence), index)} gives no token: {text[:40]!r} has nothing "
                "that the vocabulary splits into tokens; give at least one word"
            )
    if limit is not None and len(owners) > limit:
        place = "the sentence" if index is None else f"sentence {index} of the batch"
        raise TokenizationError(
            f"{place} has {len(owners)} tokens, {owners.count(None)} special ones among them, and "
            f"the limit is {limit} positions; shorten it, or pass truncate=True to cut it there"
        )
