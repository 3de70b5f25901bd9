"""From a name to an open checkpoint: its Config, its tokenizer, and the weights for a model.

A name is an embedded model, a folder, a Hub id, or a live transformers model. A task head that no
checkpoint gave gets first values here.
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.dropout import dropout_of
from minibert.checkpoint.families.form import end_ids
from minibert.checkpoint.files import Entry, open_checkpoint, open_state_dict
from minibert.checkpoint.values import DTYPES, default_dtype, parameters
from minibert.checkpoint.weights import check_names, fit, has_own_decoder
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.text.tokenizer import Tokenizer
from minibert.untrusted import present, read_json

DEFAULT = "tiny-bert"
_EMBEDDED = Path(__file__).parents[1] / "embedded"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose Config and names are checked and whose weights are not read yet."""

    config: Config
    tokenizer: Tokenizer | None
    name: str
    where: str
    """How error messages name it."""
    entries: Mapping[str, Entry]
    dtype: torch.dtype | None = None
    """Of the model; None for `default_dtype`."""
    allow_unexpected: bool = False
    dropout: Dropout = field(default_factory=Dropout)
    head_seed: int | None = None
    """Of a fresh task head, in place of the checkpoint's; None: the checkpoint's."""

    def fresh(self, wanted: Iterable[str]) -> list[str]:
        """Those of our parameters that the checkpoint does not give: a fresh head's."""
        return [] if self.head_seed is None else fresh_names(wanted, self.entries)

    def fill(self, model: nn.Module, device: torch.device | None = None) -> None:
        """Put the weights into a model made of `config` on the meta device.

        They go to `device`, or stay where they are, in memory or in their file.

        A parameter that has several names in the model stays one. Raises CheckpointError listing
        everything that does not fit.
        """
        places: dict[int, list[str]] = {}
        for place, parameter in model.named_parameters(remove_duplicate=False):
            places.setdefault(id(parameter), []).append(place)
        by_name = dict(model.named_parameters())
        wanted = {ours: tuple(parameter.shape) for ours, parameter in by_name.items()}
        fresh = {ours: wanted.pop(ours) for ours in self.fresh(list(wanted))}
        found = fit(
            self.config,
            wanted,
            self.entries,
            where=self.where,
            allow_unexpected=self.allow_unexpected,
        )
        dtype = self.dtype or default_dtype(found)
        made = [
            (ours, nn.Parameter(values.to(device, dtype), requires_grad=False))
            for ours, values in first_values(fresh, int(self.head_seed or 0)).items()
        ]
        for ours, parameter in chain(parameters(found, dtype, device, self.where), made):
            for place in places[id(by_name[ours])]:
                owner, _, leaf = place.rpartition(".")
                setattr(model.get_submodule(owner), leaf, parameter)


def open_folder(
    folder: Path,
    *,
    name: str,
    task: str | None = None,
    dtype: torch.dtype | None = None,
    allow_unexpected: bool = False,
    labels: Sequence[str] | None = None,
    head_seed: int | None = None,
) -> Checkpoint:
    """The checkpoint of a folder; with a fresh task head, and other labels, where asked for.

    Raises CheckpointError for what cannot be read, and where config, weights and tokenizer do
    not belong together.
    """
    if not present(folder / "config.json"):
        raise CheckpointError(f"{folder} has no config.json; expected a checkpoint folder.")
    about = read_json(folder / "config.json")
    config = with_labels(config_from_hf(about, task), labels, head_seed)
    if present(folder / "generation_config.json") and config.generates:
        said = read_json(folder / "generation_config.json").get("eos_token_id", config.end_ids)
        config = replace(config, end_ids=end_ids(said, f"{folder}/generation_config.json"))
    entries = open_checkpoint(folder)
    has_tokenizer = any(present(folder / file) for file in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    # Gemma 3's tokenizer has a token of images behind the rows of its smaller models: what is
    # special comes into no text by itself, and is refused where somebody gives it.
    if tokenizer is not None and tokenizer.text_ids_from(config.vocab_size):
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} entries and the embeddings have "
            f"{config.vocab_size} rows; the tokenizer belongs to another model, or tokens were "
            "added without resizing the embeddings."
        )
    where = str(folder)
    config = _as_stored(config, entries, where=where)
    dropout = dropout_of(about, config)
    return Checkpoint(
        config, tokenizer, name, where, entries, dtype, allow_unexpected, dropout, head_seed
    )


def open_live(
    model: Any,
    *,
    task: str | None = None,
    dtype: torch.dtype | None = None,
    allow_unexpected: bool = False,
    labels: Sequence[str] | None = None,
    head_seed: int | None = None,
) -> Checkpoint:
    """The checkpoint that a transformers model object is; its weights are shared, not copied.

    Raises CheckpointError for a family or head minibert does not know.
    """
    config_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if config_dict is None:
        raise CheckpointError(
            f"{type(model).__name__} has no Hugging Face config; expected a transformers model."
        )
    about = dict(config_dict())
    about["architectures"] = [type(model).__name__]
    where = f"the {type(model).__name__} object"
    entries = open_state_dict(model.state_dict())
    config = with_labels(config_from_hf(about, task), labels, head_seed)
    config = _as_stored(config, entries, where=where)
    kept = next(model.parameters()).dtype if dtype is None else dtype
    dropout = dropout_of(about, config)
    return Checkpoint(
        config, None, where, where, entries, kept, allow_unexpected, dropout, head_seed
    )


def check_dtype(dtype: object) -> None:
    """Raise CheckpointError for what weights cannot have as their type."""
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in DTYPES):
        known = ", ".join(map(str, DTYPES))
        raise CheckpointError(
            f"dtype={dtype!r} is not a type for weights; expected one of {known}."
        )


def embedded_names() -> list[str]:
    """The models that come with minibert."""
    return sorted(path.parent.name for path in _EMBEDDED.glob("*/config.json"))


def find(
    name: object,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> Path:
    """The folder of an embedded model, of a path, or of a Hub id, which is fetched first.

    Raises CheckpointError for a name that leads nowhere.
    """
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


def _as_folder(name: object) -> Path | None:
    """The path a name may stand for; None where no file system could have such a path."""
    if not isinstance(name, str | Path) or not str(name).strip():
        return None
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def _as_stored(config: Config, entries: Mapping[str, Entry], *, where: str) -> Config:
    """The Config with what the names of the stored weights say about pooler and output embedding.

    Raises CheckpointError for names that cannot be this model's.
    """
    check_names(config, entries, where=where)
    if config.task == "none" and config.pooler:
        # Bodies are saved with and without their pooler; it is optional, not half of it.
        config = replace(config, pooler=any("pooler." in entry for entry in entries))
    if config.tied and has_own_decoder(config, entries):
        config = replace(config, tied=False)
    return config


_CLASSES = ("sequence-classification", "token-classification")


def fresh_names(wanted: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Our names of the parameters of a fresh head: all of the head, and a pooler no file has."""
    has_pooler = any("pooler." in name for name in stored)
    parts = ("head.",) if has_pooler else ("head.", "body.pooler.")
    return [name for name in wanted if name.startswith(parts)]


def first_values(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Normal numbers of standard deviation 0.02, biases 0, norms 1, as `Model.from_config`."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        values = torch.zeros(shape)
        if not name.endswith("bias"):
            if "norm" in name:
                values.fill_(1.0)
            else:
                values.normal_(0.0, 0.02, generator=generator)
        made[name] = values
    return made


def with_labels(config: Config, labels: object, head_seed: object) -> Config:
    """The Config with these labels, None for its own.

    Raises CheckpointError for what are not names, for a task without classes, and for a seed of a
    head that cannot start anew.
    """
    if head_seed is not None:
        _check_seed(config, head_seed)
    if labels is None:
        return config
    names = labels if isinstance(labels, list | tuple) else ()
    named = len(names) > 0 and all(isinstance(name, str) and name for name in names)
    if config.task not in _CLASSES or not named or len(set(names)) < len(names):
        raise CheckpointError(
            f"labels={labels!r:.80} with task {config.task!r}: expected a list of different names, "
            'as task="sequence-classification", labels=["negative", "positive"].'
        )
    return replace(config, labels=tuple(names))


def _check_seed(config: Config, seed: Any) -> None:
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise CheckpointError(f"head_seed={seed!r:.80}: expected a whole number from 0 on.")
    if config.task not in (*_CLASSES, "question-answering"):
        raise CheckpointError(
            f"head_seed={seed}: task {config.task!r} has no head that starts anew; expected "
            f"task={', '.join(_CLASSES)} or question-answering."
        )
