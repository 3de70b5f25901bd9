"""The file of a trace: tensors and a description in safetensors, under one digest.

The digest is the SHA-256 of every byte of the file, with zeros in its own place. So a changed
bit, name, type or word is found when the file is opened, not when it is used. It is no
signature: who changes a file on purpose can write a new digest.
"""

import hashlib
import json
import os
import re
import struct
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minibert.errors import TraceError
from minibert.untrusted import MOST_TENSORS, guarded, open_regular

__all__ = ["VERSION", "read_container", "write_container"]

# One entry for all metadata: safetensors writes several in a random order, so bytes would differ.
ENTRY, VERSION = "minibert.trace", 4
# The first value of the first entry, so its first occurrence in the header is the digest itself.
_DIGEST, _UNSET = "sha256", b"0" * 64
# About 400,000 tokens; what a trace keeps of so many is far larger than memory.
_MOST_HEADER = 2**25
_CHUNK = 2**20


def write_container(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write the file. Raises TraceError for a description that `read_container` would refuse."""
    described = {_DIGEST: _UNSET.decode(), "version": VERSION, **about}
    text = json.dumps(described)
    if len(text) > _MOST_HEADER // 2:
        raise TraceError(
            f"{path.parent}: the tokens of this trace take {len(text)} bytes of description; "
            f"expected at most {_MOST_HEADER // 2}. Save trace.text(i) of each sentence."
        )
    save_file(tensors, path, metadata={ENTRY: text})
    with path.open("r+b") as file:
        size, header = _start(file, path)
        digest = _digest(size + header, file)
        file.seek(len(size))
        file.write(header.replace(_UNSET, digest, 1))


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors; these are mapped, so what is not used is not loaded.

    The file is read once for its digest, in small parts. Raises TraceError for what is no regular
    file, no trace, of another version, cut short or changed.
    """
    with open_regular(path, TraceError) as file, guarded(path, TraceError, _CUT):
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
    with guarded(path, TraceError, _CUT), safe_open(path, framework="pt") as opened:
        return about, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


_CUT = (
    "not a complete trace file; it was cut short or damaged, or is another kind of file; "
    "trace.save(path) writes a trace"
)


def _start(file: BufferedIOBase, path: Path) -> tuple[bytes, bytes]:
    """The first two parts of the file: the header's size and the header."""
    size = file.read(8)
    length = struct.unpack("<Q", size)[0]
    if length > min(_MOST_HEADER, os.fstat(file.fileno()).st_size):
        raise TraceError(f"{path}: {_CUT} (a header of {length} bytes).")
    return size, file.read(length)


def _description(header: bytes, path: Path) -> dict[str, Any]:
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
