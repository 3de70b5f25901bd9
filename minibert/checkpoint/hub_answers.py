"""What a Hub answers about a file, checked before the client makes paths of it.

The client names files in its cache by the ETag and the commit that the server sends. An answer
that is no plain name would lead out of the cache, so it is refused while minibert downloads.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from huggingface_hub import constants, errors, file_download

from minibert.errors import CheckpointError
from minibert.untrusted import check_commit

__all__ = ["checked_answers"]

# Hexadecimal digests on the Hub; a mirror may have names of its own.
_PLAIN_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_=+-]{0,127}")
_asked_for: ContextVar[str] = ContextVar("_asked_for", default="")


@contextmanager
def checked_answers(where: str) -> Iterator[None]:
    """Check what the client is told about files inside; `where` begins the error message."""
    token = _asked_for.set(where)
    try:
        yield
    finally:
        _asked_for.reset(token)


def _check(metadata: Any, where: str) -> None:
    check_commit(metadata.commit_hash, where)
    xet = getattr(metadata, "xet_file_data", None)
    for name, value in {"ETag": metadata.etag, "hash": getattr(xet, "file_hash", None)}.items():
        if value is not None and not _PLAIN_NAME.fullmatch(str(value)):
            raise CheckpointError(
                f"{where}: the server names a file by the {name} {value!r:.80}; expected letters "
                "and digits. Nothing was fetched. Check HF_ENDPOINT: this is no Hub to be trusted."
            )


def _install() -> None:
    """Put the check into the client, once; it does nothing outside of `checked_answers`."""
    ask = file_download.get_hf_file_metadata

    def ask_and_check(*arguments: Any, **options: Any) -> Any:
        where = _asked_for.get()
        try:
            metadata = ask(*arguments, **options)
        except errors.EntryNotFoundError as error:
            # The client keeps a note of absent files, under the commit of this answer.
            headers = getattr(getattr(error, "response", None), "headers", {})
            commit = headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
            if where and commit is not None:
                check_commit(commit, where)
            raise
        if where and metadata.commit_hash is not None:
            _check(metadata, where)
        return metadata

    file_download.get_hf_file_metadata = ask_and_check


_install()
