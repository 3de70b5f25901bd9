"""What went wrong when a file was fetched from the Hub, said for the person who asked for it.

Used by hub.py alone. Told apart are: no such repository, revision or access; a Hub that does not
answer; a disk that is full or may not be written to; and the rest.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, errors

from minibert.errors import CheckpointError

__all__ = ["UnreachableError", "failures_explained"]

_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


class UnreachableError(CheckpointError):
    """The Hub did not answer, or said that it cannot just now."""


@contextmanager
def failures_explained(name: str, where: str, cache: Path) -> Iterator[None]:
    """Nothing, until something fails inside: then a CheckpointError that says what and where.

    `name` is the repository's, `where` begins the message: what could not be fetched.
    """
    try:
        yield
    except CheckpointError:
        raise
    # The client passes on the errors of three HTTP libraries, of a Rust extension and of the
    # disk, which share no class but this; each means that the file is not there.
    except Exception as error:
        cause: BaseException = error
        # The client's way to say that something else happened and the cache did not help.
        while isinstance(cause, errors.LocalEntryNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        response = getattr(cause, "response", None)
        if response is not None:
            raise _refusal(cause, response.status_code, name, where) from None
        raise _trouble(cause, where, cache) from None


def _refusal(error: BaseException, status: int, name: str, where: str) -> CheckpointError:
    """What the Hub meant by the status it answered with."""
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{where}: the repository is gated. Ask for access at {constants.ENDPOINT}/{name}, "
            f"then {_LOG_IN}."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{where}: {constants.ENDPOINT} has no such repository, or it is private. "
            f"Check the spelling; for a private one {_LOG_IN}."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{where}: the repository has no such revision. Give one of its branches, tags or "
            "commits, or none for main."
        )
    if status in (401, 403):
        return CheckpointError(f"{where}: access was refused ({status}); {_LOG_IN}.")
    if status in (408, 429) or status >= 500:
        return UnreachableError(
            f"{where}: {constants.ENDPOINT} answered {status}. Try again later."
        )
    return CheckpointError(f"{where}: {constants.ENDPOINT} answered {status} ({_line(error)}).")


def _trouble(error: BaseException, where: str, cache: Path) -> CheckpointError:
    """What went wrong on the way or on this machine."""
    number = getattr(error, "errno", None)
    place = "choose another place with cache_dir or HF_HUB_CACHE."
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CheckpointError(
            f"{where}: {os.strerror(number)}, in {cache}. Nothing half written "
            f"is taken for whole. Make room, or {place}"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CheckpointError(
            f"{where}: {cache} cannot be written to ({_line(error)}). Change that, or {place}"
        )
    # By name, because each version of the client brings another HTTP library.
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Timeout" in names or "timed out" in str(error):
        return UnreachableError(
            f"{where}: {constants.ENDPOINT} did not answer in time. Load it again; what was "
            "fetched whole is kept. The limits are HF_HUB_ETAG_TIMEOUT "
            f"({constants.HF_HUB_ETAG_TIMEOUT} s) and HF_HUB_DOWNLOAD_TIMEOUT "
            f"({constants.HF_HUB_DOWNLOAD_TIMEOUT} s)."
        )
    if any(name in names for name in ("ConnectError", "ConnectionError", "ProxyError")):
        return UnreachableError(
            f"{where}: no connection to {constants.ENDPOINT} ({_line(error)}). Check the network "
            "and HF_ENDPOINT; a folder or an embedded model needs none."
        )
    broken = any(name in names for name in ("ProtocolError", "ReadError", "ChunkedEncoding"))
    what = "the connection broke" if broken else f"{type(error).__name__} from the client"
    return CheckpointError(
        f"{where}: {what} ({_line(error)}). Load it again; what was fetched whole is kept."
    )


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
