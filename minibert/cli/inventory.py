"""Lists what this machine has: embedded models, models in the Hub's cache, linear back ends."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minibert.checkpoint.architectures import MODEL_TYPES
from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.files import open_checkpoint
from minibert.checkpoint.load import embedded_names
from minibert.errors import CheckpointError
from minibert.layers import linear_backends as backends
from minibert.layers.config import Config
from minibert.model import Model
from minibert.untrusted import read_json

__all__ = ["ROWS", "BackendRow", "Entry", "cached", "describe", "embedded", "linear_backends"]

_EMBEDDED = Path(__file__).parents[1] / "embedded"


@dataclass(frozen=True)
class Entry:
    """One model on this machine. `problem` says why it cannot be loaded; "" if it can."""

    name: str
    size: int
    """Bytes on disk of the files of this revision."""
    config: Config | None = None
    parameters: int = 0
    problem: str = ""


def embedded() -> list[Entry]:
    """The models that come with minibert."""
    return [describe(_EMBEDDED / name, name) for name in embedded_names()]


def cached() -> list[Entry]:
    """The models of a known family in the Hugging Face cache, sorted by name; [] without a cache.

    Of several revisions it lists the one that `main` names, else the newest. A cache that cannot be
    read is one entry with its problem.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, ValueError):
        return []
    except OSError as error:
        return [Entry(constants.HF_HUB_CACHE, 0, problem=error.strerror or str(error))]
    found = []
    for repository in sorted(repositories, key=lambda one: one.repo_id):
        revisions = sorted(
            repository.revisions, key=lambda one: ("main" in one.refs, one.last_modified)
        )
        if repository.repo_type == "model" and revisions:
            folder = revisions[-1].snapshot_path
            if _read(folder).get("model_type") in MODEL_TYPES:
                found.append(describe(folder, repository.repo_id))
    return found


def describe(folder: Path, name: str) -> Entry:
    """The entry of a checkpoint folder; its weights are not read."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        config = config_from_hf(_read(folder))
        stored = open_checkpoint(folder)
    except CheckpointError as error:
        return Entry(name, size, problem=str(error))
    if config.task == "none" and config.pooler:
        config = replace(config, pooler=any("pooler." in tensor for tensor in stored))
    with torch.device("meta"):
        parameters = sum(tensor.numel() for tensor in Model(config).parameters())
    return Entry(name, size, config, parameters)


@dataclass(frozen=True)
class BackendRow:
    """The linear back ends that the rule chooses for one data type and one shape of weight."""

    dtype: str
    weight: str
    """Its shape, "d_in -> d_out"."""
    held: backends.Choice
    """Whether a weight of a file gets a packed copy when it is loaded."""
    calls: tuple[str, ...]
    """The back end of a call without a packed copy, for each number in `ROWS`."""


ROWS = (1, 16, 128)
_SHAPES = ((128, 128), (384, 384), (768, 768), (768, 3072), (3072, 768))


def linear_backends() -> list[BackendRow]:
    """The choices of the rule on this machine, for common shapes in each data type."""
    return [
        BackendRow(
            str(dtype).removeprefix("torch."),
            f"{d_in} -> {d_out}",
            backends.chosen(dtype, d_in, d_out),
            tuple(backends.chosen(dtype, d_in, d_out, rows=rows).name for rows in ROWS),
        )
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for d_in, d_out in _SHAPES
    ]


def _read(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / "config.json")
    except CheckpointError:
        return {}
