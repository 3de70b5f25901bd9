"""Reads a tokenizer.json in a process of its own, before the process of the user does.

Some files end the process that reads them (a table that says it is 4 GB long), others only where
they split a certain character. The trial takes a fifth of a second, so only files with parts that
are not plain are tried.
"""

import re
import sys
from contextlib import suppress

from tokenizers import Tokenizer

from minibert.untrusted import tried_out

# The parts of the families that are read here: their values cannot make the library fail.
_PLAIN = re.compile(
    "BPE|BPEDecoder|BertNormalizer|BertPreTokenizer|BertProcessing|ByteFallback|ByteLevel|Digits"
    "|Fuse|Lowercase|Metaspace|NFC|NFD|NFKC|NFKD|Prepend|Punctuation|Replace|RobertaProcessing"
    "|Sequence|Split|Strip|StripAccents|TemplateProcessing|Unigram|Whitespace|WhitespaceSplit"
    "|WordLevel|WordPiece"
)
_TYPE = re.compile(r'"type"\s*:\s*"(\w*)"')
# A key written so would not be found; no writer of JSON escapes a letter.
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")


def is_plain(content: str) -> bool:
    """True where the file names no part but plain ones; a part may also go without its name."""
    hidden = "precompiled_charsmap" in content or _ESCAPED_LETTER.search(content)
    return not hidden and all(map(_PLAIN.fullmatch, set(_TYPE.findall(content))))


def ended_on(content: str) -> str:
    """How a limited process that read the file ended; "" where it ended as it should."""
    program = "from minibert.text.tokenizer_trial import split_everything as run; run()"
    return tried_out(program, content=content.encode("utf-8", "surrogatepass"))


def check_that_it_splits(backend: Tokenizer, *more: str) -> None:
    """Raise the library's panic, which is no Exception, where it has one for these or any text.

    Its exceptions are for single texts, so they pass here.
    """
    backend.no_truncation()
    backend.no_padding()
    for text in ("a", "Two words, \u00bd.", *more):
        with suppress(Exception):
            backend.encode(text)
        with suppress(Exception):
            backend.encode(text, text)


def split_everything() -> None:
    """Split characters of many alphabets by the tokenizer.json on standard input."""
    with suppress(Exception):
        backend = Tokenizer.from_str(sys.stdin.buffer.read().decode())
        characters = [chr(i) for i in range(1, 0x3000) if not 0xD800 <= i < 0xE000]
        accents = [f"{letter}{chr(i)}" for letter in "ae" for i in range(0x300, 0x370)]
        check_that_it_splits(backend, " ".join(characters), " ".join(accents), "\U0001f642\u6211")
