"""What this machine has: embedded models, models in the Hub's cache, linear back ends.

Place: beside loading.py, for the command line.
"""

import json
import os
from collections.abc import Mapping, Sequence
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

__all__ = ["Entry", "cached", "describe", "embedded", "linear_backends"]

_EMBEDDED = Path(__file__).parents[1] / "embedded"


@dataclass(frozen=True)
class Entry:
    """One model on this machine. Where `problem` says something, it cannot be loaded."""

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
    """The models of a known family in the Hugging Face cache, by name; the folder may be missing.

    Of several revisions it is the one that `main` names, else the newest. What may not be read
    is an entry with its problem.
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


def linear_backends(
    measure: bool,
) -> tuple[str, str | None, Mapping[str, tuple[str, Mapping[str, float]]], Sequence[str]]:
    """The machine, the override in force, what was measured on it, and the back ends there are.

    `measure` measures the common shapes in float32 that are not measured yet, for some seconds.
    """
    if measure:
        for rows in (8, 64, 256):
            for width in (128, 256, 512, 1024, 2048):
                backends.choose(rows, width, width, torch.float32)
    override = os.environ.get("MINIBERT_LINEAR") or None
    return backends.machine(), override, backends.chosen(), backends.NAMES


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
