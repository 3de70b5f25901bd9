"""The door for what a Hub answers: to whom requests go, and what an answer may be.

huggingface_hub makes the requests, with the HTTP library that its version brings: requests before
1.0, then httpx and httpx2. Inside of `asking` each request and each answer of it passes here:

hosts   the endpoint's host and its subdomains, those of huggingface.co and hf.co, to which mirrors
        send on, and those that MINIBERT_HUB_HOSTS names; never from https to http. The token goes
        to the endpoint alone
bytes   of one answer at most what its file is long, or may be; no answer is decompressed
time    one deadline for all that is asked inside, tried again or not: a minute, and what the bytes
        take at 16 KiB/s. Of a silent server the client's own limits are shorter
names   a commit is a hash; the ETag, by which the client names a file in its cache, is plain
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants, errors, file_download, utils
from huggingface_hub.utils import _http

from minibert.errors import CheckpointError
from minibert.untrusted import check_commit

PATIENCE, LEAST_RATE = 60.0, 2**14
_MOST_OF_AN_ERROR = 2**20
# The Hub's own, and the network that it sends requests for large files to.
_HUB_HOSTS = ("huggingface.co", "hf.co")
# Hexadecimal digests on the Hub; a mirror may have names of its own.
_PLAIN_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_=+-]{0,127}")
NO_HUB = "Check HF_ENDPOINT: this is no Hub to be trusted."


@dataclass
class _Allowance:
    """What may come of what is asked: bytes of an answer (None: not known yet), and until when."""

    where: str
    most: int | None
    until: float = 0.0

    def expect(self, most: int | None) -> None:
        """Allow answers of `most` bytes, and the time that they take."""
        self.most = most
        self.until = max(self.until, time.monotonic() + PATIENCE + (most or 0) / LEAST_RATE)

    def check_time(self) -> None:
        if time.monotonic() > self.until:
            raise UnreachableError(
                f"{self.where}: {constants.ENDPOINT} did not answer in time: less than "
                f"{LEAST_RATE} bytes a second came. Load it again; what was fetched whole is kept."
            )

    def counted(self, read: Callable[..., Iterator[bytes]], most: int) -> Callable[..., Any]:
        """`read`, which raises CheckpointError once it has given more than `most` bytes."""

        def pieces(*arguments: Any, **options: Any) -> Iterator[bytes]:
            left = most
            for piece in read(*arguments, **options):
                left -= len(piece)
                if left < 0:
                    raise CheckpointError(
                        f"{self.where}: the answer is longer than the {most} bytes that it may "
                        f"have. {NO_HUB}"
                    )
                self.check_time()
                yield piece

        return pieces


_allowance: ContextVar[_Allowance | None] = ContextVar("_allowance", default=None)


@contextmanager
def asking(name: str, where: str, cache: Path, most: int | None) -> Iterator[None]:
    """Around what is asked of the Hub; what fails inside becomes a CheckpointError.

    name   the repository's
    where  begins the message: what could not be fetched
    most   bytes of an answer; None for the length that the server names before it sends a file
    """
    _install()
    allowance = _Allowance(where, most)
    allowance.expect(most)
    token = _allowance.set(allowance)
    try:
        yield
    except CheckpointError:
        raise
    # The client passes on the errors of three HTTP libraries and of the disk, which share no class
    # but this; each means that the file is not there.
    except Exception as error:
        cause: BaseException = error
        # The client's way to say that something else happened and the cache did not help.
        while isinstance(cause, errors.LocalEntryNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        response = getattr(cause, "response", None)
        if response is not None:
            raise _refusal(cause, response.status_code, name, where) from None
        raise _trouble(cause, where, cache) from None
    finally:
        _allowance.reset(token)


def _check_request(request: Any) -> None:
    """Let the request go where it may, without compression, the token to the endpoint alone."""
    if (allowance := _allowance.get()) is None:
        return
    allowance.check_time()
    there, endpoint = urlsplit(str(request.url)), urlsplit(constants.ENDPOINT)
    more = os.environ.get("MINIBERT_HUB_HOSTS", "").split(",")
    hosts = [one.strip().lower() for one in (endpoint.hostname or "", *_HUB_HOSTS, *more)]
    host = (there.hostname or "").lower()
    known = any(one and (host == one or host.endswith(f".{one}")) for one in hosts)
    if not known or there.scheme not in ("https", endpoint.scheme):
        raise CheckpointError(
            f"{allowance.where}: {constants.ENDPOINT} sends on to {there.scheme}://{host:.100}, "
            "which was not asked. If you trust that host, name it in MINIBERT_HUB_HOSTS."
        )
    request.headers["Accept-Encoding"] = "identity"
    if (there.scheme, there.netloc) != (endpoint.scheme, endpoint.netloc):
        request.headers.pop("authorization", None)


def _check_answer(response: Any, *_: Any, **__: Any) -> None:
    """Bound what can be read of the answer."""
    if (allowance := _allowance.get()) is None:
        return
    if response.headers.get("content-encoding", "identity") != "identity":
        raise CheckpointError(
            f"{allowance.where}: the answer is compressed, which was not asked for. {NO_HUB}"
        )
    # The client sleeps as long as it is told.
    for name in ("retry-after", "ratelimit"):
        told = re.findall(r"\d+", response.headers.get(name, ""))
        if any(float(seconds) > allowance.until - time.monotonic() for seconds in told):
            response.headers.pop(name)
    most = allowance.most if response.status_code in (200, 206) else _MOST_OF_AN_ERROR
    if hasattr(response, "iter_raw"):
        response.iter_raw = allowance.counted(response.iter_raw, most or 0)
    else:
        response.raw.stream = allowance.counted(_as_it_comes(response.raw), most or 0)


def _as_it_comes(raw: Any) -> Callable[..., Iterator[bytes]]:
    """In the place of urllib3's `stream`, which waits until it has as much as it was asked for."""

    def stream(size: int = 2**16, **_: Any) -> Iterator[bytes]:
        while piece := raw.read1(size):
            yield piece

    return stream if hasattr(raw, "read1") else raw.stream


def _install() -> None:
    """Have every client that huggingface_hub uses ask here, one that the user made as well."""
    httpx = hasattr(utils, "set_client_factory")
    make = getattr(_http, "_GLOBAL_CLIENT_FACTORY" if httpx else "_GLOBAL_BACKEND_FACTORY")
    if getattr(make, "asks_here", False):
        return

    def client() -> Any:
        made = make()
        if httpx:
            hooks = made.event_hooks
            made.event_hooks = {
                "request": [*hooks["request"], _check_request],
                "response": [_check_answer, *hooks["response"]],
            }
            return made
        send = made.send

        def checked(request: Any, **options: Any) -> Any:
            _check_request(request)
            return send(request, **options)

        made.send = checked
        made.hooks["response"].insert(0, _check_answer)
        return made

    client.asks_here = True  # type: ignore[attr-defined]
    set_factory = utils.set_client_factory if httpx else utils.configure_http_backend
    set_factory(client)


def _check_metadata(metadata: Any, allowance: _Allowance) -> Any:
    """What the client is told about a file, once it leads nowhere else."""
    if metadata.commit_hash is not None:
        check_commit(metadata.commit_hash, allowance.where)
    if metadata.etag is not None and not _PLAIN_NAME.fullmatch(str(metadata.etag)):
        raise CheckpointError(
            f"{allowance.where}: the server names a file by the ETag {metadata.etag!r:.80}; "
            f"expected letters and digits. Nothing was fetched. {NO_HUB}"
        )
    if allowance.most is None:
        if metadata.size is None:
            raise CheckpointError(
                f"{allowance.where}: the server does not say how long the file is. {NO_HUB}"
            )
        allowance.expect(metadata.size)
    # Xet is another way to the same bytes, by hosts that the server names and past this door.
    return replace(metadata, xet_file_data=None) if hasattr(metadata, "xet_file_data") else metadata


def _patch_the_client() -> None:
    """Put the check of names into the client, once; it does nothing outside of `asking`."""
    ask, has_xet = file_download.get_hf_file_metadata, file_download.is_xet_available

    def ask_and_check(*arguments: Any, **options: Any) -> Any:
        allowance = _allowance.get()
        try:
            metadata = ask(*arguments, **options)
        except errors.EntryNotFoundError as error:
            # The client keeps a note of absent files, under the commit of this answer.
            headers = getattr(getattr(error, "response", None), "headers", {})
            commit = headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
            if allowance and commit is not None:
                check_commit(commit, allowance.where)
            raise
        return _check_metadata(metadata, allowance) if allowance else metadata

    file_download.get_hf_file_metadata = ask_and_check
    file_download.is_xet_available = lambda: _allowance.get() is None and has_xet()


_patch_the_client()


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


class UnreachableError(CheckpointError):
    """The Hub did not answer, or said that it cannot just now."""


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
    if "regular download method" in str(error):
        # The client refuses such files without Xet, and would have it installed.
        return CheckpointError(
            f"{where}: the file is larger than the Hub sends without Xet, which minibert does not "
            "use. Download it with the Hub's own tool (hf download), and load that folder."
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
