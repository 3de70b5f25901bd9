"""`minibert models`: what is on this machine."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.options import say_json, spread
from minibert.terminal import Terminal, say, visible

if TYPE_CHECKING:
    from minibert.layers.config import Config


@spread()
def models(as_json: bool = False, backends: bool = False) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache.

    Options:
        backends: Show instead by which rules this machine multiplies, and in which type. --json
            has both.
    """
    terminal, rules = Terminal.of(sys.stdout), _rules() if backends or as_json else {}
    if backends and not as_json:
        rows = [[name, visible(rule, space=" ")] for name, rule in rules.items()]
        say(*terminal.table(["", ""], rows, "<<"))
        return
    found = {"embedded": embedded(), "cached": cached()}
    if as_json:
        about = {title: [entry.plain() for entry in entries] for title, entries in found.items()}
        say_json(about | {"backends": rules})
        return
    say(*_model_table("embedded", found["embedded"], terminal))
    say("", *_model_table("in the Hugging Face cache", found["cached"], terminal))


def _rules() -> dict[str, str]:
    """What minibert chooses on this machine, and why."""
    import torch

    from minibert.checkpoint.load import WIDE_ENOUGH, bfloat16_by
    from minibert.layers.linear import chosen, processor

    linear = chosen(torch.float32, WIDE_ENOUGH, WIDE_ENOUGH)
    fast = bfloat16_by(processor(), WIDE_ENOUGH)
    return {
        "processor": processor().name,
        "linear": f"{linear.name} ({linear.rule})",
        "dtype_auto": f"bfloat16 from a d_model of {WIDE_ENOUGH:,} on, where the file is ({fast})"
        if fast
        else "float32 (neither amx_bf16 nor avx512_bf16)",
        "dtype_auto_gpu": "bfloat16 where the file is",
    }


@dataclass(frozen=True)
class Entry:
    """One model on this machine. `problem` says why it cannot be loaded; "" if it can."""

    name: str
    size: int
    """Bytes on disk of the files of this revision."""
    config: "Config | None" = None
    parameters: int = 0
    problem: str = ""

    def plain(self) -> dict[str, object]:
        """The model; what a config says is null where it cannot be read."""
        config = self.config
        return {
            "name": self.name,
            "family": config and config.family,
            "task": config and config.task,
            "layers": config and config.n_layers,
            "heads": config and config.n_heads,
            "parameters": config and self.parameters,
            "bytes": self.size,
            "problem": self.problem or None,
        }


def embedded() -> list[Entry]:
    """The models that come with minibert."""
    from minibert.checkpoint.headers import EMBEDDED, embedded_names

    return [_described(EMBEDDED / name, name) for name in embedded_names()]


def cached() -> list[Entry]:
    """The models of a known family in the Hugging Face cache, sorted by name; [] without a cache.

    Of several revisions it lists the one that `main` names, else the newest. A cache that cannot be
    read is one entry with its problem.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from minibert.checkpoint.config import MODEL_TYPES

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
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
                found.append(_described(folder, repository.repo_id))
    return found


def _described(folder: Path, name: str) -> Entry:
    """The entry of a checkpoint folder; its weights are not read."""
    from minibert.checkpoint.config import config_from_hf
    from minibert.checkpoint.headers import read_weights, shapes_of
    from minibert.checkpoint.names import count
    from minibert.errors import CheckpointError

    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        config = config_from_hf(_read(folder))
        stored = read_weights(folder, shapes_of, _pickled)
    except CheckpointError as error:
        return Entry(name, size, problem=str(error))
    if config.task == "none" and config.pooler:
        config = replace(config, pooler=any("pooler." in tensor for tensor in stored))
    return Entry(name, size, config, count(config, stored))


def _pickled(path: Path) -> dict[str, tuple[int, ...]]:
    from minibert.checkpoint.files import read_pickle

    return {name: entry.shape for name, entry in read_pickle(path).items()}


def _read(folder: Path) -> dict[str, object]:
    from minibert.errors import CheckpointError
    from minibert.untrusted import read_json

    try:
        return read_json(folder / "config.json")
    except CheckpointError:
        return {}


def _model_table(title: str, entries: Sequence[Entry], terminal: Terminal) -> list[str]:
    """The name, shape and size of each model, as lines, then why some cannot be loaded."""
    lines = [terminal.paint(title, "bold")]
    rows = [
        [
            visible(entry.name, space=" "),
            entry.config.family,
            entry.config.task,
            f"{entry.config.n_layers} x {entry.config.n_heads}",
            _shortened(entry.parameters, {"B": 10**9, "M": 10**6, "k": 10**3, "": 1}),
            _shortened(entry.size, {"GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}),
        ]
        for entry in entries
        if entry.config is not None
    ]
    header = ["name", "family", "task", "layers x heads", "parameters", "on disk"]
    if rows:
        lines += terminal.table(header, rows, "<<<>>>")
    for entry in (one for one in entries if one.problem):
        lines.append(f"  {visible(entry.name, space=' ')} cannot be loaded: {entry.problem}")
    return lines if entries else [*lines, "  none"]


def _shortened(number: int, units: dict[str, int]) -> str:
    name, size = next(item for item in units.items() if number >= item[1] or item[1] == 1)
    return f"{number / size:.1f} {name}" if size > 1 else f"{number} {name}".strip()
