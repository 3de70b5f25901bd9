"""From a Hub id to a local folder: the files of a checkpoint that minibert reads, and no others.

huggingface_hub downloads them into the cache that other programs share, and says what went wrong;
here its errors become ours. The config comes first, so that an unknown family costs one small file,
and the weights last, so that a folder that has them is whole. Where requests may go and what an
answer may be, hub_http.py says.
"""

import errno
import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import constants, errors, hf_hub_download
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.files import WEIGHT_FILES, shard_names
from minibert.checkpoint.hub_http import NO_HUB, asking
from minibert.errors import CheckpointError, MinibertError
from minibert.untrusted import MOST_BYTES, check_revision, parse_json, read_json

_VOCABULARIES = ("tokenizer.json", "vocab.txt")
_SMALL = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", *_VOCABULARIES),
)
# Of a list of files: room for 16,000.
_MOST_OF_A_LIST = 2**22


@dataclass(frozen=True)
class _File:
    """What a repository says of a file; None where it does not."""

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
    """The name of a file in a list, and what is said of it."""
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
            f"{where}: {name} is {known.size} bytes long; expected at most {most}. "
            "It was not fetched."
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
            f"{where}: {path.name} has other bytes than the repository has, so it was deleted. "
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
