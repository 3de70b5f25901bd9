"""The container of a saved trace: a safetensors file with a description and a digest.

The digest is the SHA-256 of every byte of the file, with zeros in its own place. So a changed
bit, name, type or word is found when the file is opened, not when it is used. It is not
a signature: who changes a file on purpose can write a new digest.

Nothing here imports torch before a file is written or read with it.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from safetensors import safe_open

from minibert.errors import TraceError
from minibert.untrusted import MOST_TENSORS, Json, guarded, open_regular

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = object

Array = np.ndarray

COLUMNS = ("texts", "spans", "words")
# What the model's tokenizer says, too, for a page that is written without it.
LABELS = ("raw", "strings", "special")
# One entry for all metadata: safetensors writes several in a random order, so bytes would differ.
ENTRY, VERSION = "minibert.trace", 5
# The first value of the first entry, so its first occurrence in the header is the digest itself.
_DIGEST, _UNSET = "sha256", b"0" * 64
# About 400,000 tokens; what a trace keeps of so many is far larger than memory.
_MOST_HEADER = 2**25
_CHUNK = 2**20


def write_container(path: Path, tensors: dict[str, Tensor], about: dict[str, object]) -> None:
    """Write the file. Raises TraceError for a description that `read_container` would refuse."""
    described = {_DIGEST: _UNSET.decode(), "version": VERSION, **about}
    text = json.dumps(described)
    if len(text) > _MOST_HEADER // 2:
        raise TraceError(
            f"{path.parent}: the tokens of this trace take {len(text)} bytes of description; "
            f"expected at most {_MOST_HEADER // 2}. Save trace.text(i) of each sentence."
        )
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={ENTRY: text})
    with path.open("r+b") as file:
        size, header = _start(file, path)
        digest = _digest(size + header, file)
        file.seek(len(size))
        file.write(header.replace(_UNSET, digest, 1))


def read_container(path: Path) -> tuple[Json, dict[str, Tensor]]:
    """The description and the tensors; these are mapped, so what is not used is not loaded.

    The file is read once for its digest, in small parts. Raises TraceError for what is not a
    regular file, no trace, of another version, cut short or changed.
    """
    about, _ = read_description(path)
    with guarded(path, TraceError, CUT), safe_open(path, framework="pt") as opened:
        return about, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def read_arrays(path: Path) -> tuple[Json, dict[str, Array]]:
    """Read a container without torch: the description, and the tensors as mapped arrays.

    Those of bfloat16, which NumPy does not have, are copied into single precision.
    """
    about, (start, entries) = read_description(path)
    with guarded(path, TraceError, CUT):
        data = np.memmap(path, mode="r")[start:]
        return about, {name: _array(data, **entry) for name, entry in entries.items()}


_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "BOOL": "?"}


def _array(data: Array, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    begin, end = data_offsets
    found = data[begin:end].view(_KINDS[dtype]).reshape(shape)
    return (found.astype("<u4") << 16).view("<f4") if dtype == "BF16" else found


def read_description(path: Path) -> tuple[Json, tuple[int, Json]]:
    """The description, where the data begins, and the entry of each tensor.

    Raises TraceError as `read_container` does.
    """
    with open_regular(path, TraceError) as file, guarded(path, TraceError, CUT):
        size, header = _start(file, path)
        about = _description(header, path)
        found = str(about.pop(_DIGEST, ""))
        if not re.fullmatch("[0-9a-f]{64}", found):
            raise TraceError(f"{path}: its description has no digest. Save the trace again.")
        if _digest(size + header.replace(found.encode(), _UNSET, 1), file) != found.encode():
            raise TraceError(
                f"{path}: not a complete trace file as it was saved: its bytes do not fit its "
                "digest (sha256). It was cut short or changed; copy it again from where it is "
                "whole, or trace and save again."
            )
        entries = {name: e for name, e in json.loads(header).items() if name != "__metadata__"}
        return about, (len(size) + len(header), entries)


CUT = (
    "not a complete trace file; it was cut short or damaged, or is another kind of file; "
    "trace.save(path) writes a trace"
)


def _start(file: BufferedIOBase, path: Path) -> tuple[bytes, bytes]:
    """The first two parts of the file: the header's size and the header."""
    size = file.read(8)
    length = struct.unpack("<Q", size)[0]
    if length > min(_MOST_HEADER, os.fstat(file.fileno()).st_size):
        raise TraceError(f"{path}: {CUT} (a header of {length} bytes).")
    return size, file.read(length)


def _description(header: bytes, path: Path) -> Json:
    entries = json.loads(header)
    if len(entries) > MOST_TENSORS:
        raise TraceError(f"{path}: {len(entries)} tensors; expected at most {MOST_TENSORS}.")
    metadata = entries.get("__metadata__", {})
    if ENTRY not in metadata:
        raise TraceError(
            f"{path}: a safetensors file, but not a trace; trace.save(path) writes a trace. "
            "minibert.load(folder) reads the weights of a model."
        )
    with guarded(path, TraceError, "its description of the trace is damaged"):
        about = dict(json.loads(metadata[ENTRY]))
    if (version := about.pop("version", None)) != VERSION:
        raise TraceError(
            f"{path}: a trace file of version {version!r:.40}; this minibert reads version "
            f"{VERSION}. Read it with the minibert that wrote it, or trace and save again."
        )
    return about


def _digest(start: bytes, rest: BufferedIOBase) -> bytes:
    digest = hashlib.sha256(start)
    # One buffer, which stays in the processor's cache from the read to the digest.
    part = memoryview(bytearray(_CHUNK))
    while count := rest.readinto(part):
        digest.update(part[:count])
    return digest.hexdigest().encode()


def checked_columns(
    about: Json, names: Sequence[str], lengths: tuple[int, ...]
) -> dict[str, tuple[Any, ...]]:
    """The named entries of `COLUMNS` and `LABELS`: a tuple for each sentence, one item a token.

    Raises ValueError or LookupError for what are not the columns of such a batch.
    """
    found = {name: _tuples(about[name]) for name in names}
    texts = found["texts"]
    if len(texts) not in (0, len(lengths)):
        raise ValueError("a text for each sentence is missing")
    for name, column in found.items():
        if name != "texts" and tuple(map(len, column)) != lengths:
            raise ValueError("a column of the tokens does not fit their ids")
    for i in range(len(lengths)):
        own = texts[i] if texts else ()
        if len(own) > 2:
            raise ValueError("a sentence of more than two texts")
        longest = max(map(len, own), default=0)
        if not all(_is_span(span, longest) for span in found["spans"][i]):
            raise ValueError("a span of a token is not in its text")
        if not all(word is None or is_count(word) for word in found["words"][i]):
            raise ValueError("the word of a token is not a number")
        # What is not text is a TypeError here, an unpaired surrogate a UnicodeEncodeError.
        for written in (own, *(found[name][i] for name in ("raw", "strings") if name in found)):
            "".join(written).encode()
    return found


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_span(span: object, longest: int) -> bool:
    """True for two counts in order, up to the length of the text; None: it has no text."""
    if not isinstance(span, tuple) or len(span) != 2 or not all(map(is_count, span)):
        return span is None
    return bool(span[0] <= span[1] <= longest)


def _tuples(value: object) -> Any:
    """The value with tuples in place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
