"""`minibert models`: what is on this machine, and how it multiplies."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.options import say_json, spread
from minibert.terminal import Terminal, say, visible

if TYPE_CHECKING:
    from minibert.layers.config import Config

_EMBEDDED = Path(__file__).parents[1] / "embedded"
#: Rows of a call without a packed copy, and shapes of weights that are common.
_SHAPES = ((128, 128), (384, 384), (768, 768), (768, 3072), (3072, 768))


@spread()
def models(backends: bool = False, as_json: bool = False) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache.

    Options:
        backends [--backends]: Also show how linear layers multiply on this machine.
    """
    if as_json:
        say_json(document(backends=backends))
        return
    terminal = Terminal.of(sys.stdout)
    say(*_model_table("embedded", embedded(), terminal))
    say("", *_model_table("in the Hugging Face cache", cached(), terminal))
    if backends:
        say("", *_backend_table(terminal))


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
    from minibert.checkpoint.load import embedded_names

    return [_described(_EMBEDDED / name, name) for name in embedded_names()]


def cached() -> list[Entry]:
    """The models of a known family in the Hugging Face cache, sorted by name; [] without a cache.

    Of several revisions it lists the one that `main` names, else the newest. A cache that cannot be
    read is one entry with its problem.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from minibert.checkpoint.config import MODEL_TYPES

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
                found.append(_described(folder, repository.repo_id))
    return found


def _described(folder: Path, name: str) -> Entry:
    """The entry of a checkpoint folder; its weights are not read."""
    import torch

    from minibert.checkpoint.config import config_from_hf
    from minibert.checkpoint.files import open_checkpoint
    from minibert.errors import CheckpointError
    from minibert.model import Model

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


def _read(folder: Path) -> dict[str, object]:
    from minibert.errors import CheckpointError
    from minibert.untrusted import read_json

    try:
        return read_json(folder / "config.json")
    except CheckpointError:
        return {}


def document(*, backends: bool) -> dict[str, object]:
    """The models as plain values, and on request the linear back ends."""
    found: dict[str, object] = {
        "embedded": [entry.plain() for entry in embedded()],
        "cached": [entry.plain() for entry in cached()],
    }
    if backends:
        from minibert.layers import linear_backends

        name, named = linear_backends.processor().name, linear_backends.named()
        found["linear_backends"] = {"processor": name, "named": named, "weights": linear_choices()}
    return found


def linear_choices() -> list[dict[str, str]]:
    """The back ends that the rule chooses on this machine, by data type and shape of the weight."""
    import torch

    from minibert.layers.linear_backends import chosen

    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for d_in, d_out in _SHAPES:
            name, weight = str(dtype).removeprefix("torch."), f"{d_in} -> {d_out}"
            choice = chosen(dtype, d_in, d_out)
            found.append({"dtype": name, "weight": weight, **choice._asdict()})
    return found


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


def _backend_table(terminal: Terminal) -> list[str]:
    """The back end of each type and shape, and the rule that chose it, as lines."""
    from minibert.layers import linear_backends

    unnamed = "none (MINIBERT_LINEAR is not set), so the rule decides"
    lines = [
        terminal.paint("linear back ends", "bold"),
        f"  processor  {visible(linear_backends.processor().name, space=' ')}",
        f"  named      {linear_backends.named() or unnamed}",
        "",
    ]
    cells = [list(row.values()) for row in linear_choices()]
    return [*lines, *terminal.table(["type", "weight", "back end", "rule"], cells, "<<<<")]
