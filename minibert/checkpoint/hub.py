"""From a Hub id to a local folder: the files of a checkpoint that minibert reads, and no others.

The huggingface_hub client downloads, into the cache that other programs share. The config comes
first, so that an unknown family costs one small file. The weights come last, and the branch is
pointed at the snapshot after them, so that what the cache names is whole.

The client names files in its cache by the ETag and the commit that the server sends. An answer
that is no plain name would lead out of the cache, so it is refused while minibert downloads.
"""

import errno
import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    file_download,
    hf_hub_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HFValidationError
from huggingface_hub.hf_api import RepoSibling

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.files import WEIGHT_FILES, shard_names
from minibert.errors import CheckpointError
from minibert.untrusted import MOST_BYTES, beneath, check_commit, check_revision, read_json

# The first kind that a repository has is enough; tokenizer_files.py prefers them in this order.
_VOCABULARIES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_GENERATION = "generation_config.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")


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

    What the cache holds is not fetched again. Each file that is fetched is compared with the
    digest its repository has for it. A Hub that cannot be reached gives a warning when the cache
    holds a whole copy.

    Raises CheckpointError when there is no such repository or no access to it, when it is of an
    unknown family or has no weights that can be read, and when a download fails.
    """
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir).expanduser()
    repository = _Repository(repo_id, check_revision(revision or constants.DEFAULT_REVISION), cache)
    try:
        found = repository.snapshot()
    except HFValidationError as error:
        raise CheckpointError(
            f"{repo_id!r} is neither a folder nor a Hub id (owner/name): {error}"
        ) from error
    if offline or constants.HF_HUB_OFFLINE:
        return _whole(found, repository)
    # What a commit holds never changes, so there is nothing to ask.
    if found is not None and _COMMIT.fullmatch(repository.revision) and _has_everything(found):
        return found
    try:
        listing = _list(repository)
    except UnreachableError as error:
        if found is None or _missing(found):
            raise
        # Level 4 is the line that called minibert.load.
        warnings.warn(f"{error} Using the copy in the cache, {found}.", stacklevel=4)
        return found
    return _download(repository, listing)


@dataclass(frozen=True)
class _Repository:
    """A repository at one revision, and the cache that holds it."""

    name: str
    revision: str
    cache: Path

    def __str__(self) -> str:
        return f"{self.name} (revision {self.revision})"

    def cached(self, file: str, commit: str | None = None) -> Path | None:
        """The file in the cache, at the last commit of the revision that the cache knows."""
        path = try_to_load_from_cache(
            self.name, file, cache_dir=self.cache, revision=commit or self.revision
        )
        return Path(path) if isinstance(path, str) and self.holds(Path(path).parent) else None

    def holds(self, path: Path) -> bool:
        """True where the path, `..` counted, stays in the cache."""
        return Path(os.path.normpath(path)).is_relative_to(os.path.normpath(self.cache))

    def snapshot(self) -> Path | None:
        """The folder of the revision in the cache, whole or not."""
        config = self.cached("config.json")
        return None if config is None else config.parent

    def download(self, file: str, revision: str) -> Path:
        """The file in the cache, fetched if it is not there."""
        with checked_answers(str(self)):
            return Path(hf_hub_download(self.name, file, revision=revision, cache_dir=self.cache))

    def fetching(self, what: str) -> AbstractContextManager[None]:
        """Around what is asked of the Hub: failures become a CheckpointError that explains."""
        where = f"{self}: {what} could not be fetched"
        return failures_explained(self.name, where, self.cache)


@dataclass(frozen=True)
class _Listing:
    """What a repository holds at one commit."""

    commit: str
    files: Mapping[str, RepoSibling]

    def __str__(self) -> str:
        names = sorted(self.files)
        return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _missing(snapshot: Path) -> list[str]:
    """The weight files that the folder lacks. They come last: a folder that has them is whole."""
    present = next((name for name in WEIGHT_FILES if (snapshot / name).is_file()), None)
    if present is None:
        return ["its weights"]
    shards = shard_names(snapshot / present) if present.endswith(".index.json") else []
    return [name for name in shards if not (snapshot / name).is_file()]


def _has_everything(snapshot: Path) -> bool:
    # Another program may have fetched the weights and no tokenizer.
    vocabulary = any((snapshot / kind[0]).is_file() for kind in _VOCABULARIES)
    return vocabulary and not _missing(snapshot)


def _whole(snapshot: Path | None, repository: _Repository) -> Path:
    missing = [] if snapshot is None else _missing(snapshot)
    if snapshot is not None and not missing:
        return snapshot
    lack = f"it lacks {', '.join(missing)}" if missing else "it has no whole copy of it"
    raise CheckpointError(
        f"{repository} cannot be taken from the cache {repository.cache}: {lack}. No request was "
        "made, because offline=True or HF_HUB_OFFLINE=1 is set. Load it once with a connection, "
        "or give the folder of a checkpoint."
    )


def _list(repository: _Repository) -> _Listing:
    with repository.fetching("the list of its files"):
        about = HfApi().model_info(
            repository.name,
            revision=repository.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        if not about.sha or about.siblings is None:
            raise ValueError("the answer names no commit and no files")
    commit = check_commit(about.sha, str(repository))
    return _Listing(commit, {file.rfilename: file for file in about.siblings})


def _download(repository: _Repository, listing: _Listing) -> Path:
    if "config.json" not in listing.files:
        raise CheckpointError(
            f"{repository} has no config.json; expected a checkpoint as transformers saves it, "
            f"found {listing or 'nothing'}."
        )
    config = _get("config.json", repository, listing)
    _check_config(config, repository)
    weights = _weights(repository, listing)
    if _GENERATION in listing.files:
        _get(_GENERATION, repository, listing)
    for name in _tokenizer_files(listing):
        _get(name, repository, listing)
    path = _get(weights, repository, listing)
    if weights.endswith(".index.json"):
        for name in shard_names(path):
            _get(name, repository, listing)
    known = repository.snapshot()
    if known is None or known.name != config.parent.name:
        # Asked for by branch and not by commit, the client notes what the branch stands for.
        with repository.fetching("config.json"):
            repository.download("config.json", repository.revision)
    return config.parent


def _check_config(path: Path, repository: _Repository) -> None:
    try:
        # Which head is wanted is the reader's choice; here only the body has to be known.
        config_from_hf(read_json(path), task="none")
    except CheckpointError as error:
        raise CheckpointError(f"{repository}: {error} Nothing more was fetched.") from error


def _weights(repository: _Repository, listing: _Listing) -> str:
    for name in WEIGHT_FILES:
        if name in listing.files:
            return name
    raise CheckpointError(
        f"{repository} has no weights of a kind that is read ({', '.join(WEIGHT_FILES)}); "
        f"it holds {listing}. Save it with transformers' save_pretrained and load that folder."
    )


def _tokenizer_files(listing: _Listing) -> list[str]:
    kinds = (kind for kind in _VOCABULARIES if listing.files.keys() >= set(kind))
    vocabulary = next(kinds, ())
    return [name for name in (*vocabulary, *_TOKENIZER_SETTINGS) if name in listing.files]


def _get(name: str, repository: _Repository, listing: _Listing) -> Path:
    """The file in the cache, fetched and compared with its digest if it was not there."""
    known = listing.files.get(name)
    if known is None:
        raise CheckpointError(
            f"{repository} has no {name}, which its index of weights names; the upload is not "
            "whole. Try another revision."
        )
    if known.size is not None and known.size > MOST_BYTES.get(name, known.size):
        raise CheckpointError(
            f"{repository}: {name} is {known.size} bytes long; expected at most "
            f"{MOST_BYTES[name]}. It was not fetched."
        )
    path = repository.cached(name, listing.commit)
    if path is not None and known.size in (None, path.stat().st_size):
        return path
    if path is not None:
        _discard(path, repository)
    with repository.fetching(name):
        path = repository.download(name, listing.commit)
        whole = _has_its_digest(path, known)
    if not whole:
        _discard(path, repository)
        raise CheckpointError(
            f"{repository}: {name} arrived with other bytes than the repository has, so it was "
            "deleted. Load it again; if it happens again, a proxy or the disk damages files."
        )
    return path


def _has_its_digest(path: Path, known: RepoSibling) -> bool:
    # A proxy may leave digests out of its list; the client names its blobs by them.
    blob = path.readlink().name if path.is_symlink() else ""
    expected = (known.lfs.sha256 if known.lfs else known.blob_id) or blob
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        digest = hashlib.sha256()
    elif _COMMIT.fullmatch(expected):
        # Git's name for a file: the SHA-1 of this header and the content.
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest() == expected


def _discard(path: Path, repository: _Repository) -> None:
    blob = path.resolve()
    path.unlink(missing_ok=True)
    # A link may lead to a store that other caches share.
    if beneath(blob, repository.cache):
        blob.unlink(missing_ok=True)


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
