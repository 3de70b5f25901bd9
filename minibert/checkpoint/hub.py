"""From a Hub id to a local folder: the files of a checkpoint that minibert reads, and no others.

huggingface_hub downloads them into the cache that other programs share, and says what went wrong;
here its errors become ours. The config comes first, so that an unknown family costs one small file,
and the weights last, so that a folder that has them is whole.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi, constants, errors, hf_hub_download

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.files import WEIGHT_FILES, shard_names
from minibert.errors import CheckpointError, MinibertError
from minibert.untrusted import check_revision, read_json

_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
_SMALL = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "merges.txt", *_VOCABULARIES),
)


class UnreachableError(CheckpointError):
    """The Hub did not answer, or said that it cannot just now."""


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

    What the cache holds is not fetched again; it is also used where the Hub cannot be reached.

    Raises CheckpointError when there is no such repository or no access to it, when it is of an
    unknown family or has no weights that can be read, and when a download fails.
    """
    revision = check_revision(revision or constants.DEFAULT_REVISION)
    offline = offline or bool(constants.HF_HUB_OFFLINE)
    where = f"{repo_id} (revision {revision})"
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir).expanduser()
    get = partial(hf_hub_download, repo_id, cache_dir=cache, local_files_only=offline)
    with _explained(repo_id, where, cache):
        config = Path(get("config.json", revision=revision))
        try:
            # Which head is wanted is the reader's choice; here only the body has to be known.
            config_from_hf(read_json(config), task="none")
        except CheckpointError as error:
            raise CheckpointError(f"{where}: {error} Nothing more was fetched.") from error
        folder, commit = config.parent, config.parent.name
        if _is_whole(folder) or (offline and _has_weights(folder)):
            return folder
        if offline:
            raise errors.LocalEntryNotFoundError("The weights are not in the cache.")
        files = HfApi().list_repo_files(repo_id, revision=commit)
        weights = next((name for name in WEIGHT_FILES if name in files), None)
        if weights is None:
            raise CheckpointError(
                f"{where} has no weights of a kind that is read ({', '.join(WEIGHT_FILES)}); it "
                f"holds {', '.join(sorted(files)[:12])}. Save it with transformers' "
                "save_pretrained and load that folder."
            )
        for name in (*(name for name in _SMALL if name in files), weights):
            get(name, revision=commit)
        if weights.endswith(".index.json"):
            for name in shard_names(folder / weights):
                get(name, revision=commit)
    return folder


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
            f"{where}: the Hub sends a file of it by Xet alone. Install the package hf_xet, or "
            "download it by `hf download` and load that folder."
        )
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
    if getattr(error, "errno", None) in full:
        return CheckpointError(
            f"{where}: {cache} cannot be written to ({line}). Make room or give access, or choose "
            "another place with cache_dir or HF_HUB_CACHE."
        )
    return UnreachableError(
        f"{where}: it could not be fetched from {constants.ENDPOINT} ({type(error).__name__}: "
        f"{line}). Check the network and HF_ENDPOINT, or try again later; what was fetched whole "
        "is kept. A folder or an embedded model needs no network."
    )
