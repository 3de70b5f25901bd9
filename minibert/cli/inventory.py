"""What `minibert models` shows: models on this machine, linear back ends, fields of config.json."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from minibert.checkpoint.config import CONTRACT, MODEL_TYPES, config_from_hf
from minibert.checkpoint.files import open_checkpoint
from minibert.checkpoint.load import embedded_names
from minibert.errors import CheckpointError
from minibert.layers import linear_backends as backends
from minibert.layers.config import Config
from minibert.model import Model
from minibert.terminal import Terminal, visible
from minibert.untrusted import read_json

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

    @property
    def packed(self) -> bool:
        """Whether the weight gets a packed copy."""
        return self.held.name == "onednn-packed"


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


def _read(folder: Path) -> dict[str, object]:
    try:
        return read_json(folder / "config.json")
    except CheckpointError:
        return {}


def document(*, backends: bool, fields: bool) -> dict[str, object]:
    """The models as plain values, and on request the linear back ends and the fields."""
    found: dict[str, object] = {
        "embedded": [_plain(entry) for entry in embedded()],
        "cached": [_plain(entry) for entry in cached()],
    }
    if backends:
        found["linear_backends"] = _plain_backends()
    if fields:
        found["fields"] = [
            {"family": family, "field": name, "verdict": one.verdict, "reason": one.reason}
            for family, held in CONTRACT.items()
            for name, one in held.items()
        ]
    return found


def _plain(entry: Entry) -> dict[str, object]:
    """The model; what a config says is null where it cannot be read."""
    config = entry.config
    return {
        "name": entry.name,
        "family": config and config.family,
        "task": config and config.task,
        "layers": config and config.n_layers,
        "heads": config and config.n_heads,
        "parameters": config and entry.parameters,
        "bytes": entry.size,
        "problem": entry.problem or None,
    }


def _plain_backends() -> dict[str, object]:
    return {
        "processor": backends.processor().name,
        "named": backends.named(),
        "weights": [
            {
                "dtype": row.dtype,
                "weight": row.weight,
                "packed_at_load": row.packed,
                "rule": row.held.rule,
                "calls": [
                    {"rows": rows, "backend": name}
                    for rows, name in zip(ROWS, row.calls, strict=True)
                ],
            }
            for row in linear_backends()
        ],
    }


def model_table(title: str, entries: Sequence["Entry"], terminal: Terminal) -> list[str]:
    """The name, shape and size of each model, as lines, then why some cannot be loaded."""
    lines = [terminal.paint(title, "bold")]
    rows = [
        [
            visible(entry.name, space=" "),
            entry.config.family,
            entry.config.task,
            f"{entry.config.n_layers} x {entry.config.n_heads}",
            _count(entry.parameters),
            _bytes(entry.size),
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


def backend_table(rows: Sequence[BackendRow], terminal: Terminal) -> list[str]:
    """The back end of each type and shape, and the rule that chose it, as lines."""
    unnamed = "none (MINIBERT_LINEAR is not set), so the rule decides"
    lines = [
        terminal.paint("linear back ends", "bold"),
        f"  processor  {visible(backends.processor().name, space=' ')}",
        f"  named      {backends.named() or unnamed}",
        "",
    ]
    header = ["type", "weight", *(f"{n} row" + "s" * (n > 1) for n in ROWS), "at load", "rule"]
    cells = [
        [row.dtype, row.weight, *row.calls, "packed" if row.packed else "-", row.held.rule]
        for row in rows
    ]
    return [*lines, *terminal.table(header, cells, "<" * len(header))]


def field_tables(terminal: Terminal) -> list[str]:
    """What becomes of the fields of config.json, as lines: how many, then each that is not read."""
    verdicts = ("read", "irrelevant", "refused")
    counts = {
        family: Counter(judged.verdict for judged in fields.values())
        for family, fields in CONTRACT.items()
    }
    header = ["family", *verdicts, "fields"]
    rows = [
        [family, *(str(count[verdict]) for verdict in verdicts), str(count.total())]
        for family, count in counts.items()
    ]
    lines = [terminal.paint("fields of config.json", "bold")]
    lines += terminal.table(header, rows, "<>>>>")
    for verdict in verdicts[1:]:
        families: dict[tuple[str, str], list[str]] = {}
        for family, fields in CONTRACT.items():
            for name, judged in fields.items():
                if judged.verdict == verdict:
                    families.setdefault((name, judged.reason), []).append(family)
        cells = [
            [name, "every family" if len(held) == len(CONTRACT) else ", ".join(held), reason]
            for (name, reason), held in families.items()
        ]
        lines += ["", terminal.paint(verdict, "bold")]
        lines += terminal.table(["field", "of", "why"], cells, "<<<")
    return lines


def _count(number_of: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number_of >= size:
            return f"{number_of / size:.1f} {unit}"
    return str(number_of)


def _bytes(size: int) -> str:
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{size} B"
