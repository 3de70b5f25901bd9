"""The tokenizer files of a checkpoint, read into the `tokenizers` library.

Two kinds of files can be read, the first that is there: tokenizer.json, or vocab.txt (BERT's
WordPiece). It imports no torch: a process with limits runs `split_everything` of some files.
"""

import json
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from minibert.errors import TokenizationError
from minibert.untrusted import Json, guarded, present, read_json, read_text, silenced, tried_out

# What the families call each part, where no file says it.
WELL_KNOWN = {
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "unk": ("[UNK]", "<unk>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
# U+2581, which SentencePiece writes for a space.
META_SPACE = "\u2581"
# The classes of transformers whose vocab.txt is BERT's WordPiece.
_WORD_PIECE = re.compile(r"(Bert|DistilBert|Electra|MobileBert|LayoutLM)Tokenizer(Fast)?")
# Where the library writes a vocabulary out, it takes memory up to the last id.
_LAST_ID = 2**24
_SAVE_ONE = (
    "Save a tokenizer.json, as transformers does: "
    "AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
)
_DAMAGED = "cannot be read as a tokenizer file; fetch it again"
# The parts of the families that are read here: their values cannot make the library fail.
_PLAIN = re.compile(
    "BPE|BPEDecoder|BertNormalizer|BertPreTokenizer|BertProcessing|ByteFallback|ByteLevel|Digits"
    "|Fuse|Lowercase|Metaspace|NFC|NFD|NFKC|NFKD|Prepend|Punctuation|Replace|RobertaProcessing"
    "|Sequence|Split|Strip|StripAccents|TemplateProcessing|Unigram|Whitespace|WhitespaceSplit"
    "|WordLevel|WordPiece"
)
_TYPE = re.compile(r'"type"\s*:\s*"(\w*)"')
# A pattern whose search is short on any text: only the end of an alternative repeats something.
_ONE = r"(?:\[(?:\\.|[^\]\\])+\]|\\[pP]\{\^?\w+\}|\\[sSdDwWnrt\W]|[^\\()\[\]{}|*+?.^$])"
_MANY = rf"{_ONE}(?:[+*]|\{{\d,\d\}})"
_WORDS = r"\(\?i:[\w'|]+\)"
_ALTERNATIVE = (
    rf"(?:{_WORDS}|{_ONE}*(?:{_ONE}\?)?(?:{_MANY}(?:{_MANY}|\(\?!{_ONE}\))?)?(?:{_WORDS}\?)?)"
)
_SHORT = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*")
_PATTERN = re.compile(r'"Regex"\s*:\s*("(?:[^"\\]|\\.)*")')
# A key written so would not be found; no writer of JSON escapes a letter.
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")


def read_settings(folder: Path) -> Json:
    """What tokenizer_config.json and special_tokens_map.json say; the former has the last word."""
    settings = _read_json(folder / "special_tokens_map.json")
    return settings | _read_json(folder / "tokenizer_config.json")


def declared_tokens(settings: Json) -> dict[str, AddedToken]:
    """The special token of each role that the settings name."""
    named = {role: settings.get(f"{role}_token") for role in WELL_KNOWN}
    return {role: _added_token(value, special=True) for role, value in named.items() if value}


def read_backend(folder: Path, settings: Json) -> Tokenizer:
    """A tokenizer from the first kind of files the folder holds.

    Raises TokenizationError where there is none, or where it cannot be read.
    """
    if present(folder / "tokenizer.json"):
        path = folder / "tokenizer.json"
        backend = parsed(read_text(path, TokenizationError), path)
        _check_ids(backend, path)
        return backend
    path = folder / "vocab.txt"
    if not present(path):
        raise _none_found(folder)
    try:
        _check_added(folder, settings)
        backend = _word_piece(path, settings)
    except (AttributeError, TypeError, ValueError) as error:
        raise TokenizationError(
            f"{folder}: a setting in tokenizer_config.json or added_tokens.json is not of the kind "
            f"it should be ({error}); correct it, or take it out for the default"
        ) from error
    _check_ids(backend, folder)
    return backend


def _check_ids(backend: Tokenizer, where: Path) -> None:
    last = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
    if last > _LAST_ID:
        raise TokenizationError(f"{where}: a token has the id {last}; expected at most {_LAST_ID}.")


def parsed(content: str, where: object) -> Tokenizer:
    """The tokenizer of a tokenizer.json's content, which is tried out where it is not plain.

    Raises TokenizationError, which begins with `where`, for a file that the library fails on.
    """
    if not is_plain(content) and (ended := ended_on(content)):
        raise TokenizationError(
            f"{where}: the tokenizers library cannot read this file: a process that tried "
            f"{ended}. Fetch it again, or save it with transformers' save_pretrained."
        )
    with guarded(where, TokenizationError, _DAMAGED), silenced():
        return Tokenizer.from_str(content)


def is_plain(content: str) -> bool:
    """True where the file names no part but plain ones, and no pattern that may take long.

    A part may also go without its name.
    """
    hidden = "precompiled_charsmap" in content or _ESCAPED_LETTER.search(content)
    plain = not hidden and all(map(_PLAIN.fullmatch, set(_TYPE.findall(content))))
    return plain and all(map(_SHORT.fullmatch, _patterns(content)))


def _patterns(content: str) -> list[str]:
    """The regular expressions of the file."""
    return [json.loads(each, strict=False) for each in _PATTERN.findall(content)]


def ended_on(content: str) -> str:
    """How a limited process that read the file ended; "" where it ended as it should.

    Some files end the process that reads them (a table that says it is 4 GB long), others only
    where they split a certain character, or many of one. The trial takes a fifth of a second, so
    only files that are not plain are tried.
    """
    return tried_out(__name__, split_everything.__name__, content)


def check_that_it_splits(backend: Tokenizer, *more: str) -> None:
    """Raise the library's panic, which is not an Exception, where it has one for these or any text.

    Its exceptions are for single texts, so they pass here.
    """
    backend.no_truncation()
    backend.no_padding()
    for text in ("a", "Two words, \u00bd.", *more):
        with suppress(Exception):
            backend.encode(text)
        with suppress(Exception):
            backend.encode(text, text)


def split_everything(content: str) -> None:
    """Split characters of many alphabets by this tokenizer.json.

    Those of its patterns come many times as well, with something else after them.
    """
    with suppress(Exception):
        backend = Tokenizer.from_str(content)
        characters = [chr(i) for i in range(1, 0x3000) if not 0xD800 <= i < 0xE000]
        accents = [f"{letter}{chr(i)}" for letter in "ae" for i in range(0x300, 0x370)]
        written = sorted(set("".join(_patterns(content))))
        many = [f"{each * 1000}\x00" for each in written]
        texts = " ".join(characters), " ".join(accents), "\U0001f642\u6211"
        check_that_it_splits(backend, *texts, *many)


def find_roles(backend: Tokenizer, declared: dict[str, AddedToken]) -> dict[str, int]:
    """The id of each role that has a token, which from now on is found in text as a whole."""
    added = backend.get_added_tokens_decoder()
    roles = {}
    for role, names in WELL_KNOWN.items():
        candidates = [AddedToken(name, normalized=False, special=True) for name in names]
        for token in [declared[role]] if role in declared else candidates:
            token_id = backend.token_to_id(token.content)
            if token_id is None:
                continue
            if token_id not in added or not added[token_id].special:
                backend.add_special_tokens([token])
            roles[role] = token_id
            break
    return roles


def reader(backend: Tokenizer) -> Callable[[str], str]:
    """A function from the vocabulary's own strings to what a person reads."""
    literal = {token.content for token in backend.get_added_tokens_decoder().values()}
    parts = (backend.decoder, backend.pre_tokenizer)
    state = b"".join(part.__getstate__() for part in parts if part is not None)
    prefix = getattr(backend.model, "continuing_subword_prefix", None) or ""
    alphabet = _byte_alphabet() if b'"ByteLevel"' in state else None
    spaced = META_SPACE.encode() in state

    def read(raw: str) -> str:
        if raw in literal:
            return raw
        if alphabet is not None:
            if not alphabet.keys() >= set(raw):
                return raw
            return bytes(map(alphabet.__getitem__, raw)).decode("utf-8", "backslashreplace")
        if spaced:
            return raw.replace(META_SPACE, " ")
        return raw.removeprefix(prefix) or raw

    return read


def _byte_alphabet() -> dict[str, int]:
    """The byte each character of a byte-level vocabulary stands for (GPT-2, `bytes_to_unicode`).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the
    characters from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


def _word_piece(path: Path, settings: Json) -> Tokenizer:
    """BERT's tokenizer, with the defaults of the original: lower-case unless told otherwise."""
    # As Python's text files do, and not splitlines(): U+2028 and its like may be entries.
    text = read_text(path, TokenizationError).replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n")
    vocabulary = {line: i for i, line in enumerate(lines)}
    _check_class(vocabulary, settings, path)
    unknown, start, end = _needed(vocabulary, settings, path)
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(start, vocabulary[start]), (end, vocabulary[end])],
    )
    return backend


def _check_class(vocabulary: dict[str, int], settings: Json, path: Path) -> None:
    """Raise TokenizationError where the settings name another kind of tokenizer.

    Warns where a vocabulary with capitals is lower-cased and no setting says so.
    """
    kind = settings.get("tokenizer_class")
    if kind is not None and not _WORD_PIECE.fullmatch(str(kind)):
        raise TokenizationError(
            f"{path}: tokenizer_config.json says tokenizer_class {kind!r:.80}, which is not BERT's "
            f"WordPiece; another splitting would give other tokens. {_SAVE_ONE}"
        )
    words = [word for word in vocabulary if not word.startswith(("[", "<"))]
    capitals = [word for word in words if word != word.lower()]
    if "do_lower_case" not in settings and capitals:
        warnings.warn(
            f"{path} is read as BERT's lower-casing WordPiece, which is a guess: {len(capitals)} "
            f"entries have capitals ({', '.join(capitals[:3])}). Put do_lower_case into "
            "tokenizer_config.json, or save a tokenizer.json, to settle it.",
            stacklevel=2,
        )


def _needed(vocabulary: dict[str, int], settings: Json, path: Path) -> list[str]:
    """The names of the unknown, start and end tokens, all of which the template needs."""
    declared = declared_tokens(settings)
    usual = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    names = [declared[role].content if role in declared else usual[role] for role in usual]
    if missing := [name for name in names if name not in vocabulary]:
        raise TokenizationError(
            f"{path} has no entry {', '.join(missing)}; add it, or name the token that serves "
            "in tokenizer_config.json (unk_token, cls_token, sep_token)"
        )
    return names


def _check_added(folder: Path, settings: Json) -> None:
    """Raise TokenizationError for tokens that were added to the vocabulary later."""
    usual = {name for names in WELL_KNOWN.values() for name in names}
    usual |= {token.content for token in declared_tokens(settings).values()}
    given = [*_read_json(folder / "added_tokens.json")]
    given += [*settings.get("added_tokens_decoder", {}).values()]
    later = {_added_token(one, special=False).content for one in given} - usual
    if later:
        raise TokenizationError(
            f"{folder}: tokens were added to vocab.txt ({', '.join(sorted(later)[:5])!r:.200}), "
            f"and how they are split is not read. {_SAVE_ONE}"
        )


def _added_token(value: object, *, special: bool) -> AddedToken:
    """The token that a string, or a JSON object with `content`, describes."""
    options = {"content": value} if isinstance(value, str) else value
    if not isinstance(options, dict) or not isinstance(options.get("content"), str):
        raise TokenizationError(
            f"a special or added token must be a string or an object with content, not {value!r}; "
            "look at tokenizer_config.json, special_tokens_map.json and added_tokens.json"
        )
    special = options.get("special", special)
    return AddedToken(
        options["content"],
        special=special,
        normalized=options.get("normalized", not special),
        single_word=options.get("single_word", False),
        lstrip=options.get("lstrip", False),
        rstrip=options.get("rstrip", False),
    )


def _read_json(path: Path) -> Json:
    return read_json(path, TokenizationError) if present(path) else {}


def _none_found(folder: Path) -> TokenizationError:
    if not folder.is_dir():
        return TokenizationError(f"{folder} is not a folder; give the folder with tokenizer.json")
    others = [*folder.glob("*.model"), *folder.glob("vocab.json"), *folder.glob("merges.txt")]
    found = ", ".join(sorted(path.name for path in others)) or "neither"
    return TokenizationError(
        f"{folder} has no tokenizer that can be read: looked for tokenizer.json and for vocab.txt, "
        f"and found {found}. {_SAVE_ONE}"
    )
