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

import inspect
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
NO_HUB = "Check HF_ENDPOINT: this is not a Hub to be trusted."


@dataclass
class Allowance:
    """What may come of what is asked: bytes of an answer (None: not known yet), and until when."""

    where: str
    most: int | None
    until: float = 0.0
    failure: Exception | None = None
    """Why the last file could not be asked about; the client may have its copy all the same."""

    def expect(self, most: int | None) -> None:
        """Allow answers of `most` bytes, and the time that they take."""
        self.most = most
        self.until = max(self.until, time.monotonic() + PATIENCE + (most or 0) / LEAST_RATE)

    def check_time(self) -> None:
        """Raise CheckpointError when the deadline is over."""
        if time.monotonic() > self.until:
            raise CheckpointError(
                f"{self.where}: {constants.ENDPOINT} did not answer in time: less than "
                f"{LEAST_RATE} bytes a second came. Load it again; what was fetched whole is kept."
            )

    def counted(self, read: Callable[..., Iterator[bytes]], most: int) -> Callable[..., object]:
        """`read`, which raises CheckpointError once it has given more than `most` bytes."""

        def pieces(*arguments: object, **options: object) -> Iterator[bytes]:
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


_allowance: ContextVar[Allowance | None] = ContextVar("_allowance", default=None)


@contextmanager
def asking(where: str, most: int | None) -> Iterator[Allowance]:
    """Around what is asked of the Hub.

    where  begins the message: what is fetched
    most   bytes of an answer; None for the length that the server names before it sends a file
    """
    _install()
    allowance = Allowance(where, most)
    allowance.expect(most)
    token = _allowance.set(allowance)
    try:
        yield allowance
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

        def checked(request: object, **options: object) -> object:
            _check_request(request)
            return send(request, **options)

        made.send = checked
        made.hooks["response"].insert(0, _check_answer)
        return made

    client.asks_here = True  # type: ignore[attr-defined]
    set_factory = utils.set_client_factory if httpx else utils.configure_http_backend
    set_factory(client)


def _check_metadata(metadata: Any, allowance: Allowance) -> Any:
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
    """Put the check of names into the client, once; it does nothing outside of `asking`.

    There the client asks about a file once: its five tries of a name without a network take 25 s.
    """
    ask, has_xet = file_download.get_hf_file_metadata, file_download.is_xet_available
    tries = {"retry_on_errors"} & inspect.signature(ask).parameters.keys()

    def ask_and_check(*arguments: Any, **options: Any) -> Any:
        if (allowance := _allowance.get()) is None:
            return ask(*arguments, **options)
        try:
            metadata = ask(*arguments, **options | dict.fromkeys(tries, False))
        except Exception as error:
            allowance.failure = error
            # The client keeps a note of absent files, under the commit of this answer.
            headers = getattr(getattr(error, "response", None), "headers", {})
            commit = headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
            if isinstance(error, errors.EntryNotFoundError) and commit is not None:
                check_commit(commit, allowance.where)
            raise
        return _check_metadata(metadata, allowance)

    file_download.get_hf_file_metadata = ask_and_check
    file_download.is_xet_available = lambda: _allowance.get() is None and has_xet()


_patch_the_client()
