"""From a Hub id to a local folder: the files of a checkpoint that minibert reads, and no others.

huggingface_hub downloads them into the cache that other programs share, and says what went wrong;
here its errors become ours. The config comes first, so that an unknown family costs one small file,
and the weights last, so that a folder that has them is whole.

Requests are made by the HTTP library that its version brings: requests before 1.0, then httpx and
httpx2. Inside of `asking` each request and each answer of it passes a door:

hosts   the endpoint's host and its subdomains, those of huggingface.co and hf.co, to which mirrors
        send on, and those that MINIBERT_HUB_HOSTS names; never from https to http. The token goes
        to the endpoint alone
bytes   of one answer at most what its file is long, or may be; no answer is decompressed
time    one deadline for all that is asked inside, tried again or not: a minute, and what the bytes
        take at 16 KiB/s. Of a silent server the client's own limits are shorter
names   a commit is a hash; the ETag, by which the client names a file in its cache, is plain
"""

import errno
import hashlib
import inspect
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants, errors, file_download, hf_hub_download, utils
from huggingface_hub.utils import _http, build_hf_headers, get_session, hf_raise_for_status

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.headers import WEIGHT_FILES, shard_names
from minibert.errors import CheckpointError, MinibertError
from minibert.untrusted import MOST_BYTES, check_commit, check_revision, parse_json, read_json

_VOCABULARIES = ("tokenizer.json", "vocab.txt")
_SMALL = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", *_VOCABULARIES),
)
# Of a list of files: room for 16,000.
_MOST_OF_A_LIST = 2**22


@dataclass(frozen=True)
class _File:
    """The facts that a repository lists about a file; None where it lists none."""

    size: int | None
    digest: str | None
    """The SHA-256 of a large file, git's name for a small one."""


def fetch(
    repo_id: str,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> Path:
    """The local folder with config.json, tokenizer files and weights of a Hub repository.

    revision   a branch, tag or commit; "main" when not given
    cache_dir  where the Hub's cache is; HF_HUB_CACHE when not given
    offline    make no request and use the cache alone, as HF_HUB_OFFLINE=1 does

    What the cache holds is not fetched again. Where the Hub cannot be asked whether the branch has
    moved, the copy in the cache is used, and a warning says so. What is fetched must have the
    digest that the repository has for it.

    Raises CheckpointError when there is no such repository or no access to it, when it is of an
    unknown family or has no weights that can be read, and when a download fails.
    """
    revision = check_revision(revision or constants.DEFAULT_REVISION)
    offline = offline or bool(constants.HF_HUB_OFFLINE)
    where = f"{repo_id} (revision {revision})"
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir).expanduser()
    get = partial(hf_hub_download, repo_id, cache_dir=cache, local_files_only=offline)
    with _explained(repo_id, where, cache):
        with asking(f"{where}: config.json", MOST_BYTES["config.json"]) as asked:
            config = Path(get("config.json", revision=revision))
        try:
            # Which head is wanted is the reader's choice; here only the body has to be known.
            config_from_hf(read_json(config), task="none")
        except CheckpointError as error:
            raise CheckpointError(f"{where}: {error} Nothing more was fetched.") from error
        folder, commit = config.parent, config.parent.name
        if _is_whole(folder) or (offline and _has_weights(folder)):
            if asked.failure is not None:
                problem = _meaning(asked.failure, repo_id, where, cache)
                # Level 5 is the line that called minibert.load.
                warnings.warn(f"{problem} Using the copy in the cache, {folder}.", stacklevel=5)
            return folder
        if offline:
            raise errors.LocalEntryNotFoundError("The weights are not in the cache.")
        if asked.failure is not None:
            raise asked.failure
        files = _list(repo_id, commit, where)
        weights = next((name for name in WEIGHT_FILES if name in files), None)
        if weights is None:
            raise CheckpointError(
                f"{where} has no weights of a kind that is read ({', '.join(WEIGHT_FILES)}); it "
                f"holds {', '.join(sorted(files)[:12])}. Save it with transformers' "
                "save_pretrained and load that folder."
            )
        _compare(config, files.get("config.json"), where)
        for name in (*(name for name in _SMALL if name in files), weights):
            _get(partial(get, name, revision=commit), name, files, where)
        if weights.endswith(".index.json"):
            for name in shard_names(folder / weights):
                _get(partial(get, name, revision=commit), name, files, where)
    return folder


def fetch_file(
    repo_id: str,
    names: Sequence[str],
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> Path:
    """The local path of the first of these files that a Hub repository has.

    Options, digests and errors are those of `fetch`; offline, the first that the cache has.
    """
    revision = check_revision(revision or constants.DEFAULT_REVISION)
    where = f"{repo_id} (revision {revision})"
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir).expanduser()
    get = partial(hf_hub_download, repo_id, cache_dir=cache, revision=revision)
    if offline or constants.HF_HUB_OFFLINE:
        for name in names:
            with suppress(errors.LocalEntryNotFoundError):
                return Path(get(name, local_files_only=True))
        raise CheckpointError(
            f"{where}: the cache {cache} has no {' or '.join(names)}, and no request was made. "
            "Load it once with a connection, or give a folder."
        )
    with _explained(repo_id, where, cache):
        files = _list(repo_id, revision, where)
        name = next((each for each in names if each in files), "")
        if not name or ".." in name:
            raise CheckpointError(f"{where} has no {' or '.join(names)}.")
        _get(partial(get, name), name, files, where)
        return Path(get(name, local_files_only=True))


def _list(name: str, commit: str, where: str) -> dict[str, _File]:
    """The files of a repository at a commit, branch or tag."""
    where = f"{where}: the list of its files"
    with asking(where, _MOST_OF_A_LIST):
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models/{name}/revision/{commit}",
            params={"blobs": "true"},
            headers=build_hf_headers(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        hf_raise_for_status(answer)
    siblings = parse_json(answer.content, where).get("siblings")
    if not isinstance(siblings, list):
        raise CheckpointError(f"{where} has no siblings, the Hub's list of files. {NO_HUB}")
    return dict(_listed(one, where) for one in siblings)


def _listed(entry: Any, where: str) -> tuple[str, _File]:
    """The name of a file in a list, and the facts listed with it."""
    large = entry.get("lfs") if isinstance(entry, dict) else ()
    if large is None or isinstance(large, dict):
        name, size = entry.get("rfilename"), entry.get("size")
        digest = entry.get("blobId") if large is None else large.get("sha256")
        long = size is None or (type(size) is int and size >= 0)
        if long and isinstance(name, str) and isinstance(digest, str | None):
            return name, _File(size, digest)
    raise CheckpointError(
        f"{where} has the entry {entry!r:.300}; expected rfilename, size and digest as the Hub "
        f"gives them. {NO_HUB}"
    )


def _get(download: Callable[[], str], name: str, files: Mapping[str, _File], where: str) -> None:
    """Fetch a file into the cache, at most as long as the repository says, and compare it."""
    known = files.get(name, _File(None, None))
    most = MOST_BYTES.get(Path(name).name)
    if most is not None and known.size is not None and known.size > most:
        raise CheckpointError(
            f"{where}: {name} is {known.size} bytes long, above {most}; it was not fetched."
        )
    with asking(f"{where}: {name}", most if known.size is None else known.size):
        path = Path(download())
    _compare(path, known, where)


def _compare(path: Path, known: _File | None, where: str) -> None:
    """Delete a file without the digest that it should have, and raise CheckpointError."""
    # A proxy may leave digests out of its list; the client names its blobs by them.
    blob = path.resolve()
    expected = (known.digest if known else None) or blob.name
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", expected):
        # Git's name for a file: the SHA-1 of this header and the content.
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        return
    with path.open("rb") as file:
        whole = hashlib.file_digest(file, lambda: digest).hexdigest() == expected
    if not whole:
        path.unlink(missing_ok=True)
        # A link may lead to a store that other caches share.
        if blob.parent.parent in [each.resolve() for each in path.parents]:
            blob.unlink(missing_ok=True)
        raise CheckpointError(
            f"{where}: {path.name} differs from the repository's file, so it was deleted. "
            "Load it again; if it happens again, a proxy or the disk damages files."
        )


def _has_weights(folder: Path) -> bool:
    present = next((name for name in WEIGHT_FILES if (folder / name).is_file()), "")
    shards = shard_names(folder / present) if present.endswith(".index.json") else []
    return bool(present) and all((folder / name).is_file() for name in shards)


def _is_whole(folder: Path) -> bool:
    # Another program may have fetched the weights and no tokenizer.
    return _has_weights(folder) and any((folder / name).is_file() for name in _VOCABULARIES)


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN."
#: The first kind that an error is of says what it means.
_MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (
        errors.GatedRepoError,
        "the repository is gated. Ask for access at {endpoint}/{name}, then " + _LOG_IN,
    ),
    (
        errors.RepositoryNotFoundError,
        "{endpoint} has no such repository, or it is private. Check the spelling; for a private "
        "one " + _LOG_IN,
    ),
    (
        errors.RevisionNotFoundError,
        "the repository has no such revision. Give one of its branches, tags or commits, or none "
        "for main.",
    ),
    (
        errors.LocalEntryNotFoundError,
        "the cache {cache} has no whole copy of it, and no request was made (offline=True or "
        "HF_HUB_OFFLINE=1). Load it once with a connection, or give the folder of a checkpoint.",
    ),
    (
        errors.EntryNotFoundError,
        "a file is not there ({line}); expected a checkpoint as transformers saves it.",
    ),
)


@contextmanager
def _explained(name: str, where: str, cache: Path) -> Iterator[None]:
    """Around what is asked of the client; what fails inside becomes a CheckpointError."""
    try:
        yield
    except MinibertError:
        raise
    except errors.HFValidationError as error:
        raise CheckpointError(
            f"{name!r} is neither a folder nor a Hub id (owner/name): {error}"
        ) from error
    # The client passes on what the disk and its HTTP library raise, which differs by version.
    except Exception as error:
        raise _meaning(error, name, where, cache) from error


def _meaning(error: BaseException, name: str, where: str, cache: Path) -> CheckpointError:
    # The client's way to say that something else happened and that the cache did not help.
    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
    names = {"endpoint": constants.ENDPOINT, "name": name, "cache": cache, "line": line}
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return CheckpointError(f"{where}: {meaning.format(**names)}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return CheckpointError(f"{where}: access was refused ({status}); {_LOG_IN}")
    if "hf_xet" in str(error):
        return CheckpointError(
            f"{where}: a file of it is larger than the Hub sends without Xet, which minibert does "
            "not use. Download it by `hf download` and load that folder."
        )
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
    if getattr(error, "errno", None) in full:
        return CheckpointError(
            f"{where}: {cache} cannot be written to ({line}). Make room or give access, or choose "
            "another place with cache_dir or HF_HUB_CACHE."
        )
    return CheckpointError(
        f"{where}: there is no folder of that name, and it could not be fetched from "
        f"{constants.ENDPOINT} ({type(error).__name__}: {line}). Check the name, the network and "
        "HF_ENDPOINT, or try again later; what was fetched whole is kept."
    )


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
                    raise CheckpointError(f"{self.where}: more than {most} bytes came. {NO_HUB}")
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
            f"{allowance.where}: {constants.ENDPOINT} redirects to {there.scheme}://{host:.100}, "
            "which was not requested. If you trust that host, name it in MINIBERT_HUB_HOSTS."
        )
    request.headers["Accept-Encoding"] = "identity"
    if (there.scheme, there.netloc) != (endpoint.scheme, endpoint.netloc):
        request.headers.pop("authorization", None)


def _check_answer(response: Any, *_: Any, **__: Any) -> None:
    """Bound what can be read of the answer."""
    if (allowance := _allowance.get()) is None:
        return
    if response.headers.get("content-encoding", "identity") != "identity":
        raise CheckpointError(f"{allowance.where}: the answer came compressed. {NO_HUB}")
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

    def stream(size: int = 2**16, **_: object) -> Iterator[bytes]:
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
            raise CheckpointError(f"{allowance.where}: the file's length is not said. {NO_HUB}")
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
