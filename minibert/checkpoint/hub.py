"""From a Hub id to a local folder: the files of a checkpoint that minibert reads, and no others.

The huggingface_hub client downloads, into the cache that other programs share. The config comes
first, so that an unknown family costs one small file. The weights come last, and the branch is
pointed at the snapshot after them, so that what the cache names is whole.

Where requests may go and what an answer may be, hub_http.py says.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.files import WEIGHT_FILES, shard_names
from minibert.checkpoint.hub_http import NO_HUB, UnreachableError, asking
from minibert.errors import CheckpointError
from minibert.untrusted import (
    MOST_BYTES,
    beneath,
    check_commit,
    check_revision,
    parse_json,
    read_json,
)

# The first kind that a repository has is enough; tokenizer_files.py prefers them in this order.
_VOCABULARIES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_GENERATION = "generation_config.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Of a listing: room for 16,000 files.
_MOST_OF_A_LISTING = 2**22


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
        return Path(hf_hub_download(self.name, file, revision=revision, cache_dir=self.cache))

    def asking(self, what: str, most: int | None) -> AbstractContextManager[None]:
        """Around what is asked of the Hub, for answers of at most `most` bytes: see hub_http.py."""
        return asking(self.name, f"{self}: {what} could not be fetched", self.cache, most)


@dataclass(frozen=True)
class _File:
    """What a repository says of a file; None where it does not."""

    size: int | None
    digest: str | None
    """The SHA-256 of a large file, git's name for a small one."""


@dataclass(frozen=True)
class _Listing:
    """What a repository holds at one commit."""

    commit: str
    files: Mapping[str, _File]

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
    revision = quote(repository.revision, safe="")
    with repository.asking("the list of its files", _MOST_OF_A_LISTING):
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models/{repository.name}/revision/{revision}",
            params={"blobs": "true"},
            headers=build_hf_headers(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        hf_raise_for_status(answer)
    where = f"{repository}: the list of its files"
    about = parse_json(answer.content, where)
    siblings = about.get("siblings")
    if not isinstance(siblings, list):
        raise CheckpointError(f"{where} has no siblings, the Hub's list of files. {NO_HUB}")
    commit = check_commit(about.get("sha"), str(repository))
    return _Listing(commit, dict(_listed(one, where) for one in siblings))


def _listed(entry: Any, where: str) -> tuple[str, _File]:
    """The name of a file in a listing, and what is said of it."""
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
        with repository.asking("config.json", MOST_BYTES["config.json"]):
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
    most = MOST_BYTES.get(name) if known.size is None else known.size
    with repository.asking(name, most):
        path = repository.download(name, listing.commit)
        whole = _has_its_digest(path, known)
    if not whole:
        _discard(path, repository)
        raise CheckpointError(
            f"{repository}: {name} arrived with other bytes than the repository has, so it was "
            "deleted. Load it again; if it happens again, a proxy or the disk damages files."
        )
    return path


def _has_its_digest(path: Path, known: _File) -> bool:
    # A proxy may leave digests out of its list; the client names its blobs by them.
    blob = path.readlink().name if path.is_symlink() else ""
    expected = known.digest or blob
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
