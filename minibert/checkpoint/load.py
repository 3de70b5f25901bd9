"""From a name to a Model: hub id, local folder, embedded name, or a live transformers model."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checkpoint.files import Entry, MappedWeight, open_checkpoint, open_state_dict
from minibert.checkpoint.weights import Source, check_names, fit, has_own_decoder
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.linear import pack
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer

__all__ = ["embedded_names", "from_transformers", "load"]

DEFAULT = "tiny-bert"
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_EMBEDDED = Path(__file__).parents[1] / "embedded"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


def load(
    name: Any = None,
    *,
    task: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    allow_unexpected: bool = False,
) -> Model:
    """The model of that name, ready to run.

    `name` is an embedded model (none given: tiny-bert), a folder with a Hugging Face checkpoint,
    a Hub id such as "bert-base-uncased", or a transformers model object, whose weights are
    shared and not copied. An embedded name wins over a folder of that name, which is "./name";
    a folder wins over a Hub id.

    task       a task head other than the one its config.json names; "none" for the body alone
    dtype      float64, float32, bfloat16 or float16; when not given float32, or float64 where
               all weights of the file are
    device     the CPU when not given, or where the transformers object has its weights
    revision, cache_dir, offline: of the Hub; offline uses the cache alone
    allow_unexpected: leave out tensors that belong to no known part of the family

    Weights of a file are packed where the rule of the linear back ends says so (`model.unpack()`
    undoes it) and mapped into memory, not read into it: while the model lives, replace
    the file (write another and rename it, as `save` does), and never write into it or cut it.
    Raises CheckpointError when something cannot be found, fetched, read, or does not fit;
    nothing is half loaded.
    """
    _check_dtype(dtype)
    chosen = None if device is None else _device(device)
    options: dict[str, Any] = {"task": task, "dtype": dtype, "allow_unexpected": allow_unexpected}
    from_file = not isinstance(name, nn.Module)
    if not from_file:
        model = from_transformers(name, **options)
    else:
        folder = _find(name, revision=revision, cache_dir=cache_dir, offline=offline)
        model = _load_folder(folder, DEFAULT if name is None else str(name), **options)
    if chosen is not None and any(p.device != chosen for p in model.parameters()):
        return model.to(chosen)
    if from_file:
        pack(model, from_file=True)
    return model


def _check_dtype(dtype: Any) -> None:
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in _DTYPES):
        known = ", ".join(map(str, _DTYPES))
        raise CheckpointError(f"dtype={dtype!r} is no type for weights; expected one of {known}.")


def _device(device: Any) -> torch.device:
    """The device, once a tensor could be put there."""
    try:
        return torch.empty(0, device=torch.device(device)).device
    # Each kind of device refuses in its own way, CUDA with an AssertionError.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"device={device!r} cannot be used ({reason}); expected a device of this machine, "
            'such as "cpu" or "cuda:0".'
        ) from error


def embedded_names() -> list[str]:
    """The models that come with minibert."""
    return sorted(path.parent.name for path in _EMBEDDED.glob("*/config.json"))


def from_transformers(
    model: Any, *, task: str | None = None, dtype: torch.dtype | None = None, **options: Any
) -> Model:
    """The same model in minibert; it shares the weights of the transformers model.

    Raises CheckpointError for a family or head minibert does not know.
    """
    _check_dtype(dtype)
    config_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if config_dict is None:
        raise CheckpointError(
            f"{type(model).__name__} has no Hugging Face config; expected a transformers model."
        )
    about = dict(config_dict())
    about["architectures"] = [type(model).__name__]
    where = f"the {type(model).__name__} object"
    config = Config.from_hf(about, task=task)
    entries = open_state_dict(model.state_dict())
    kept = next(model.parameters()).dtype if dtype is None else dtype
    return _assemble(config, entries, where=where, name=where, dtype=kept, **options)


def _find(name: Any, *, revision: str | None, cache_dir: str | Path | None, offline: bool) -> Path:
    if name is None or str(name) in embedded_names():
        return _EMBEDDED / (DEFAULT if name is None else str(name))
    folder = _as_folder(name)
    if folder is not None and folder.is_dir():
        return folder
    if folder is not None and folder.is_file():
        raise CheckpointError(
            f"{folder} is a file; give the folder that holds it together with its config.json."
        )
    if not isinstance(name, str) or not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{str(name)[:200]!r} is neither a folder nor a Hub id (owner/name); "
            f"embedded models are {', '.join(embedded_names()) or 'none'}."
        )
    from minibert.checkpoint.hub import fetch

    return fetch(str(name), revision=revision, cache_dir=cache_dir, offline=offline)


def _as_folder(name: Any) -> Path | None:
    """The path a name may stand for; None where no file system could have such a path."""
    if not isinstance(name, str | Path) or not str(name).strip():
        return None
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def _load_folder(
    folder: Path,
    name: str,
    *,
    task: str | None,
    dtype: torch.dtype | None,
    allow_unexpected: bool,
) -> Model:
    config = Config.from_hf(_read_config(folder), task=task)
    entries = open_checkpoint(folder)
    has_tokenizer = any((folder / file).exists() for file in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} entries and the embeddings have "
            f"{config.vocab_size} rows; the tokenizer belongs to another model, or tokens were "
            "added without resizing the embeddings."
        )
    return _assemble(
        config,
        entries,
        where=str(folder),
        name=name,
        tokenizer=tokenizer,
        dtype=dtype,
        allow_unexpected=allow_unexpected,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} has no config.json; expected a checkpoint folder."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(config).__name__}.")
    return config


def _assemble(
    config: Config,
    entries: Mapping[str, Entry],
    *,
    where: str,
    name: str,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype | None = None,
    allow_unexpected: bool = False,
) -> Model:
    check_names(config, entries, where=where)
    if config.task == "none" and config.pooler:
        # Bodies are saved with and without their pooler; it is optional, not half of it.
        config = replace(config, pooler=any("pooler." in entry for entry in entries))
    if config.tied and has_own_decoder(config, entries):
        config = replace(config, tied=False)
    # Without values: each parameter is put in as it is read, and never allocated twice.
    with torch.device("meta"):
        model = Model(config, tokenizer=tokenizer, name=name)
    wanted = {ours: tuple(parameter.shape) for ours, parameter in model.named_parameters()}
    found = fit(config, wanted, entries, where=where, allow_unexpected=allow_unexpected)
    for ours, parameter in _parameters(found, dtype, where):
        owner, _, leaf = ours.rpartition(".")
        setattr(model.get_submodule(owner), leaf, parameter)
    model.tie()
    return model


def _parameters(
    found: Mapping[str, tuple[Source, Entry]], dtype: torch.dtype | None, where: str
) -> Iterator[tuple[str, nn.Parameter]]:
    checked: set[int] = set()
    dtype = dtype or _common_dtype(entry.dtype for _, entry in found.values())
    for ours, (source, entry) in found.items():
        stored = entry.load()
        if id(entry) not in checked:
            _check_values(stored, source.names[0], where)
            checked.add(id(entry))
        converted = source.view(stored).to(dtype)
        _check_range(converted, stored.dtype, source.names[0], where)
        parameter = nn.Parameter(converted, requires_grad=False)
        if entry.region is not None:
            if parameter.dtype == entry.dtype:
                parts = 1 if source.part is None else source.part[1]
                mapped = MappedWeight(entry, source.view, parts)
                parameter.mapped = mapped  # type: ignore[attr-defined]
            else:
                entry.region.release()
        yield ours, parameter


def _common_dtype(stored: Iterable[torch.dtype]) -> torch.dtype:
    # One for the whole model: its tensors are multiplied with each other.
    return torch.float64 if set(stored) == {torch.float64} else torch.float32


def _check_range(converted: Tensor, stored: torch.dtype, name: str, where: str) -> None:
    """Raise CheckpointError where numbers of the file are too large for the type asked for."""
    largest = torch.finfo(converted.dtype).max
    if converted.is_meta or largest >= torch.finfo(stored).max:
        return
    if bad := int((~converted.isfinite()).sum()):
        wider = ", ".join(str(d) for d in _DTYPES if torch.finfo(d).max > largest)
        raise CheckpointError(
            f"{where}: {bad} values of {name} are too large for {converted.dtype}, whose largest "
            f"is {largest:.4g}. Load it with a dtype of a wider range: {wider}."
        )


def _check_values(tensor: Tensor, name: str, where: str) -> None:
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{where}: {name} holds {tensor.dtype}; expected floating-point numbers. "
            "Quantised checkpoints are not read."
        )
    # The sum is one pass without a second tensor; only a suspicious one is looked at closely.
    if tensor.is_meta or bool(tensor.sum(dtype=torch.float32).isfinite()):
        return
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise CheckpointError(
            f"{where}: {name} holds {bad} values that are NaN or infinite. "
            "The checkpoint is damaged or its training diverged."
        )
