"""Reads a tokenizer.json in a process of its own, before the process of the user does.

Some files end the process that reads them (a table that says it is 4 GB long), others only where
they split a certain character. `tried_out` starts this file as a program, with limits on memory
and time. It takes a fifth of a second, so only files with parts that are not `PLAIN` are tried.
"""

import os
import re
import subprocess
import sys
from contextlib import suppress

from tokenizers import Tokenizer

# The parts of the families that are read here: their values cannot make the library fail.
PLAIN = re.compile(
    "BPE|BPEDecoder|BertNormalizer|BertPreTokenizer|BertProcessing|ByteFallback|ByteLevel|Digits"
    "|Fuse|Lowercase|Metaspace|NFC|NFD|NFKC|NFKD|Prepend|Punctuation|Replace|RobertaProcessing"
    "|Sequence|Split|Strip|StripAccents|TemplateProcessing|Unigram|Whitespace|WhitespaceSplit"
    "|WordLevel|WordPiece"
)
_TYPE = re.compile(r'"type"\s*:\s*"(\w*)"')
# A key written so would not be found; no writer of JSON escapes a letter.
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")
_MEMORY, _SECONDS = 2**32, 60


def is_plain(content: str) -> bool:
    """True where the file names no part but `PLAIN` ones; a part may also go without its name."""
    hidden = "precompiled_charsmap" in content or _ESCAPED_LETTER.search(content)
    return not hidden and all(map(PLAIN.fullmatch, set(_TYPE.findall(content))))


def tried_out(content: str) -> str | None:
    """What became of the process that read the file, where it did not end as it should."""
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=content.encode("utf-8", "surrogatepass"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            timeout=2 * _SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"took more than {2 * _SECONDS} s"
    return f"ended with status {done.returncode}" if done.returncode else None


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


def _main() -> None:
    with suppress(ImportError):
        import resource

        for kind, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, _SECONDS)):
            soft, hard = resource.getrlimit(kind)
            limits = [one for one in (soft, hard, most) if one != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min(limits), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(Exception):
        backend = Tokenizer.from_str(sys.stdin.buffer.read().decode())
        characters = [chr(i) for i in range(1, 0x3000) if not 0xD800 <= i < 0xE000]
        accents = [f"{letter}{chr(i)}" for letter in "ae" for i in range(0x300, 0x370)]
        check_that_it_splits(backend, " ".join(characters), " ".join(accents), "\U0001f642\u6211")


if __name__ == "__main__":
    _main()
