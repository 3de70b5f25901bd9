"""From a name to an open checkpoint (its Config, its tokenizer, the weights), and back to a folder.

A name is an embedded model, a folder, a Hub id, or a live transformers model. A task head that no
checkpoint gave gets first values here.

A weight that keeps its type stays a view of its file. Large ones that are converted lie in huge
pages, which the processor looks up 512 times less often than usual ones: a product of few rows
reads each weight once and waits for those lookups (docs/speed.md).
https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

import contextlib
import json
import math
import mmap
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from minibert.checkpoint.config import config_from_hf, config_to_hf, dropout_of, dropout_to_hf
from minibert.checkpoint.families.form import end_ids
from minibert.checkpoint.files import DTYPES, Entry, open_checkpoint, open_state_dict
from minibert.checkpoint.headers import EMBEDDED, embedded_names
from minibert.checkpoint.names import Source
from minibert.checkpoint.weights import check_names, fit, has_own_decoder, to_checkpoint, view
from minibert.errors import CheckpointError, check_flag, did_you_mean, whole_number
from minibert.layers.config import Config, Dropout
from minibert.layers.linear import Processor, int8_by, processor, put
from minibert.text.tokenizer import Tokenizer
from minibert.untrusted import Json, present, read_json
from minibert.writing import as_path, replacing

DEFAULT = "tiny-bert"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class Asked:
    """What `minibert.load` is asked for beside a name; it says there what each option does."""

    task: str | None = None
    labels: Sequence[str] | None = None
    head_seed: int | None = None
    dtype: torch.dtype | str | None = None
    allow_unexpected: bool = False
    weights: str | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.dtype, torch.dtype) and self.dtype in DTYPES
        if self.dtype not in (None, "auto") and not known:
            raise CheckpointError(
                f'dtype={self.dtype!r} is not a type for weights; expected "auto" or one of '
                f"{', '.join(map(str, DTYPES))}."
            )
        check_flag("allow_unexpected", self.allow_unexpected, CheckpointError)
        if self.weights is not None:
            self._check_weights()

    def _check_weights(self) -> None:
        if self.weights != "int8":
            raise CheckpointError(f'weights={self.weights!r:.80}: expected "int8", or none given.')
        if self.dtype not in (None, torch.float32):
            raise CheckpointError(
                f'weights="int8" with dtype={self.dtype}: everything but the weights is float32 '
                "then. Leave one of the two out."
            )
        if not int8_by(processor()):
            raise CheckpointError(
                f'weights="int8" needs a processor with avx512_vnni or amx_int8 and a torch with '
                f"oneDNN, which multiply them faster than float32; here is {processor().name}, "
                f"torch {torch.__version__}. Leave weights= out."
            )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose Config and names are checked and whose weights are not read yet."""

    config: Config
    tokenizer: Tokenizer | None
    name: str
    where: str
    """How error messages name it."""
    entries: Mapping[str, Entry]
    dropout: Dropout
    asked: Asked

    @classmethod
    def of(
        cls,
        about: Json,
        asked: Asked,
        entries: Mapping[str, Entry],
        where: str,
        name: str,
        tokenizer: Tokenizer | None = None,
    ) -> "Checkpoint":
        """The checkpoint of a config.json and these weights."""
        config = with_labels(config_from_hf(about, asked.task), asked.labels, asked.head_seed)
        config = _as_stored(config, entries, where=where)
        return cls(config, tokenizer, name, where, entries, dropout_of(about, config), asked)

    def fresh(self, wanted: Iterable[str]) -> list[str]:
        """The parameters of the model that the checkpoint does not give.

        These are all parameters of a fresh head, and a pooler that no file has.
        """
        if self.asked.head_seed is None:
            return []
        has_pooler = any("pooler." in name for name in self.entries)
        parts = ("head.",) if has_pooler else ("head.", "body.pooler.")
        return [name for name in wanted if name.startswith(parts)]

    def _dtype(self, found: "Found", device: torch.device | None) -> torch.dtype:
        """The type of the model: the one that was asked for, or that a rule names."""
        if isinstance(self.asked.dtype, torch.dtype):
            return self.asked.dtype
        if self.asked.weights is not None:
            return torch.float32
        if self.asked.dtype is None:
            return default_dtype(found)
        on_cpu = device is None or device.type == "cpu"
        fast = bfloat16_by(processor() if on_cpu else None, self.config.d_model)
        stored = stored_dtype(found)
        return stored if fast and stored == torch.bfloat16 else torch.float32

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
            allow_unexpected=self.asked.allow_unexpected,
        )
        dtype = self._dtype(found, device)
        made = [
            (ours, nn.Parameter(values.to(device, dtype), requires_grad=False))
            for ours, values in first_values(fresh, int(self.asked.head_seed or 0))
        ]
        for ours, parameter in chain(parameters(found, dtype, device, self.where), made):
            for place in places[id(by_name[ours])]:
                put(model, place, parameter, rounded=self.asked.weights is not None)


def open_folder(folder: Path, asked: Asked, *, name: str) -> Checkpoint:
    """The checkpoint of a folder.

    Raises CheckpointError for what cannot be read, and where config, weights and tokenizer do
    not belong together.
    """
    if not present(folder / "config.json"):
        raise CheckpointError(f"{folder} has no config.json; expected a checkpoint folder.")
    about = read_json(folder / "config.json")
    # Which model it is comes first: its weights and its tokenizer may take long to read.
    config_from_hf(about, asked.task)
    entries = open_checkpoint(folder)
    has_tokenizer = any(present(folder / file) for file in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    found = Checkpoint.of(about, asked, entries, str(folder), name, tokenizer)
    config = found.config
    # Gemma 3's tokenizer has a token of images after the rows of its smaller models: what is
    # special comes into no text by itself, and is refused where somebody gives it.
    if tokenizer is not None and tokenizer.text_ids_from(config.vocab_size):
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} entries and the embeddings have "
            f"{config.vocab_size} rows; the tokenizer belongs to another model, or tokens were "
            "added without resizing the embeddings."
        )
    if not config.generates or not present(folder / "generation_config.json"):
        return found
    said = read_json(folder / "generation_config.json").get("eos_token_id", config.end_ids)
    ends = end_ids(said, f"{folder}/generation_config.json")
    return replace(found, config=replace(config, end_ids=ends))


def open_live(model: Any, asked: Asked) -> Checkpoint:
    """The checkpoint that a transformers model object is; its weights are shared, not copied.

    Raises CheckpointError for a family or head minibert does not know.
    """
    config_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if asked.weights is not None:
        raise CheckpointError(
            f'weights="int8" of a {type(model).__name__}: a model that shares its weights is not '
            "rounded. Save it with save_pretrained and load the folder."
        )
    if config_dict is None:
        raise CheckpointError(
            f"{type(model).__name__} has no Hugging Face config; expected a transformers model."
        )
    about = dict(config_dict()) | {"architectures": [type(model).__name__]}
    where = f"the {type(model).__name__} object"
    if asked.dtype in (None, "auto"):
        asked = replace(asked, dtype=next(model.parameters()).dtype)
    return Checkpoint.of(about, asked, open_state_dict(model.state_dict()), where, where)


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
        return EMBEDDED / (DEFAULT if name is None else str(name))
    folder = _as_folder(name)
    if folder is not None and folder.is_dir():
        return folder
    if folder is not None and folder.is_file():
        raise CheckpointError(f"{folder} is a file; give the folder with its config.json.")
    guess = did_you_mean(name, embedded_names())
    if not isinstance(name, str) or not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{str(name)[:200]!r} is neither a folder nor a Hub id (owner/name){guess}; "
            f"embedded models are {', '.join(embedded_names()) or 'none'}."
        )
    from minibert.checkpoint.hub import fetch

    try:
        return fetch(name, revision=revision, cache_dir=cache_dir, offline=offline)
    except CheckpointError as error:
        if guess:
            raise CheckpointError(f"{name}{guess}: {error}") from error
        raise


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


def first_values(
    shapes: Mapping[str, tuple[int, ...]], seed: int, *, norms: float = 1.0
) -> Iterator[tuple[str, Tensor]]:
    """Normal numbers of standard deviation 0.02, biases 0, and weights of norms."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        if name.endswith("bias") or "norm" in name:
            yield name, torch.full(shape, 0.0 if name.endswith("bias") else norms)
        else:
            yield name, torch.empty(shape).normal_(0.0, 0.02, generator=generator)


def with_labels(config: Config, labels: object, head_seed: object) -> Config:
    """The Config with these labels, None for its own.

    Raises CheckpointError for what are not names, for a task without classes, and for a seed of a
    head that cannot be made fresh.
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


def _check_seed(config: Config, seed: object) -> None:
    whole_number("head_seed", seed, CheckpointError, least=0, most=2**63 - 1)
    if config.task not in (*_CLASSES, "question-answering"):
        raise CheckpointError(
            f"head_seed={seed}: task {config.task!r} has no head that can be made fresh; expected "
            f"task={', '.join(_CLASSES)} or question-answering."
        )


MOST_IN_FLOAT32 = 10**9
"""As many weights are float32 unless something else is asked for; more keep their type."""

Found = Mapping[str, tuple[Source, Entry]]


def default_dtype(found: Found) -> torch.dtype:
    """The type of a model for which none is asked.

    float64 where all weights have it; float32 for up to `MOST_IN_FLOAT32` weights; else the type
    that most weights of the file have. One for the whole model, because its tensors are multiplied
    with each other.
    """
    counts = _counts(found)
    if set(counts) == {torch.float64}:
        return torch.float64
    return stored_dtype(found) if counts.total() > MOST_IN_FLOAT32 else torch.float32


def stored_dtype(found: Found) -> torch.dtype:
    """The type that most weights of the file have."""
    kept = [dtype for dtype, _ in _counts(found).most_common() if dtype in DTYPES]
    return kept[0] if kept else torch.float32


def _counts(found: Found) -> Counter[torch.dtype]:
    """How many weights have each type."""
    entries = {id(entry): entry for _, entry in found.values()}
    counts: Counter[torch.dtype] = Counter()
    for entry in entries.values():
        counts[entry.dtype] += math.prod(entry.shape)
    return counts


WIDE_ENOUGH = 2048
"""From this d_model on products of one row, too, are faster in bfloat16: 1.2 x with AMX."""


def bfloat16_by(processor: Processor | None, d_model: int) -> str:
    """What multiplies bfloat16 faster than float32 at this width: of a processor, or a GPU (None).

    "" where nothing does.
    """
    if processor is None:
        return "a GPU"
    features = ("amx_bf16", "avx512_bf16") if d_model >= WIDE_ENOUGH else ()
    return next((name for name in features if name in processor.features), "")


def parameters(
    found: Found, dtype: torch.dtype, device: torch.device | None, where: str
) -> Iterator[tuple[str, nn.Parameter]]:
    """Our name and the parameter: a view of its file where it keeps its type, else converted.

    One tensor of the file at a time is held beside what is made of it. Raises CheckpointError for
    values that are NaN, infinite, no floating-point numbers or too large for `dtype`, and where the
    device has no room.
    """
    uses = Counter(id(entry) for _, entry in found.values())
    left, stored = Counter(uses), dict[int, tuple[Tensor, float]]()
    for ours, (source, entry) in found.items():
        one, what = id(entry), f"{source.names[0]} of {where}"
        if one not in stored:
            tensor = entry.load()
            stored[one] = tensor, _largest(tensor, what)
        left[one] -= 1
        # Several parameters may be parts of it; it is read once.
        tensor, largest = stored[one] if left[one] else stored.pop(one)
        part, region = view(source, tensor), entry.region
        if part.dtype == dtype and device in (None, part.device):
            parameter = nn.Parameter(part, requires_grad=False)
            shared = part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            if region is not None and shared:
                region.parts = uses[one]
                parameter.mapped, region = region, None  # type: ignore[attr-defined]
        else:
            converted = _room(part, dtype, device, what).copy_(part)
            if largest > torch.finfo(dtype).max and not converted.is_meta:
                _check_fits(converted, what)
            parameter = nn.Parameter(converted, requires_grad=False)
        if region is not None:
            region.release()
        yield ours, parameter


def _largest(stored: Tensor, what: str) -> float:
    """The largest absolute value. Raises CheckpointError where one is not a finite number."""
    if not stored.is_floating_point():
        raise CheckpointError(
            f"{what} is {stored.dtype}; expected floating-point numbers: quantised checkpoints are "
            "not read."
        )
    if stored.is_meta or not stored.numel():
        return 0.0
    # One pass without a second tensor, through which NaN goes.
    low, high = (float(bound) for bound in torch.aminmax(stored.detach()))
    if math.isfinite(low) and math.isfinite(high):
        return max(-low, high)
    bad = int((~stored.isfinite()).sum())
    raise CheckpointError(
        f"{what} holds {bad} values that are NaN or infinite: it is damaged, or its training "
        "diverged."
    )


def _check_fits(converted: Tensor, what: str) -> None:
    """Raise CheckpointError where a finite value became infinite."""
    if bad := int((~converted.isfinite()).sum()):
        most = torch.finfo(converted.dtype).max
        wider = [str(dtype) for dtype in DTYPES if torch.finfo(dtype).max > most]
        raise CheckpointError(
            f"{bad} values of {what} are too large for {converted.dtype}, whose largest is "
            f"{most:.4g}. Load it with a dtype of a wider range: {', '.join(wider)}."
        )


def _room(view: Tensor, dtype: torch.dtype, device: torch.device | None, what: str) -> Tensor:
    try:
        if (device or view.device).type == "cpu":
            return empty_like(view, dtype)
        return torch.empty_like(view, dtype=dtype, device=device)
    # Torch says so in its own words, and CUDA in a class of its own.
    except (RuntimeError, TypeError, OSError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{what}: no room on {device or view.device} for {view.numel()} numbers of {dtype} "
            f"({said:.300}). Load it with a smaller dtype or on another device."
        ) from None


_HUGE_PAGE = 2**21
# Of a smaller tensor too little lies in whole huge pages.
_SMALLEST = 2 * _HUGE_PAGE


def empty_like(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Uninitialised memory of the CPU in the layout of `like`; large ones in huge pages.

    Where the system has none, in usual ones. Raises RuntimeError or OSError without room.
    """
    layout = torch.empty_like(like, dtype=dtype, device="meta")
    if layout.nbytes < _SMALLEST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty_like(like, dtype=dtype, device="cpu")
    # With room to begin where a huge page does; what is not written to takes no memory.
    memory = mmap.mmap(-1, layout.nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    # A kernel without huge pages refuses.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, start, layout.nbytes // _HUGE_PAGE * _HUGE_PAGE)
    flat = torch.frombuffer(memory, dtype=dtype, count=layout.numel(), offset=start)
    return flat.as_strided(layout.shape, layout.stride())


def save(
    folder: str | Path,
    config: Config,
    parameters: Mapping[str, Tensor],
    *,
    dropout: Dropout,
    tokenizer: Tokenizer | None,
    dtype: torch.dtype | None = None,
) -> Path:
    """The folder, with everything transformers and minibert need to load the model again.

    `dtype` converts the weights on the way (float16 halves the file). All files are written
    beside their places and then renamed, so a save that fails leaves the old ones whole.

    Raises CheckpointError when the folder cannot be written or a value does not fit the dtype.
    """
    folder = as_path(folder, CheckpointError)
    stored = to_checkpoint(config, parameters)
    tensors = {name: _converted(name, tensor, dtype) for name, tensor in stored.items()}
    about = config_to_hf(config) | dropout_to_hf(dropout, config)
    about |= {name: mark for name, mark in _text_marks(tokenizer).items() if not about.get(name)}
    about["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            beside = Path(name)
            (beside / "config.json").write_text(json.dumps(about, indent=2) + "\n")
            if tokenizer is not None:
                (beside / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
            save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
            for path in sorted(beside.iterdir()):
                with replacing(folder / path.name) as unfinished:
                    path.replace(unfinished)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model could not be saved ({error}).") from error
    return folder


def _converted(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor as it is written. Raises CheckpointError for values that do not fit the dtype."""
    kind = dtype or tensor.dtype
    if kind not in DTYPES:
        raise CheckpointError(f"{name}: dtype={kind}; expected {', '.join(map(str, DTYPES))}.")
    converted = tensor.to("cpu", kind).contiguous()
    # Both are NaN where one number is; isfinite would take the tensor's size again.
    if converted.numel() and not all(end.isfinite() for end in converted.aminmax()):
        raise CheckpointError(
            f"{name} has values that are NaN or too large for {converted.dtype}; nothing was "
            "saved. Save as float32 or bfloat16."
        )
    return converted


def _text_marks(tokenizer: Tokenizer | None) -> dict[str, int]:
    """The ids that begin and end a text, where the tokenizer has them.

    Without them transformers takes GPT-2's 50256, whatever the vocabulary.
    """
    if tokenizer is None:
        return {}
    marks = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return {name: mark for name, mark in marks.items() if mark is not None}
