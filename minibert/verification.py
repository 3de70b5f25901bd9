"""The numbers of a checkpoint beside those of transformers: `minibert verify`.

The truth is transformers in float64. It computes RMSNorm, rotary angles, softmax and Gemma's factor
on embeddings in float32 all the same; `wide` makes that float64 too. minibert in float64 has to
give the same numbers up to rounding, with padding and packed. In float32, what it errs against the
truth may be twice what transformers errs: the geometric mean over texts, because the rounding of
one text is chance where a quantity has few numbers.
"""

import hashlib
import importlib
import inspect
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert import __version__
from minibert.checkpoint.config import class_name
from minibert.checkpoint.load import Asked, Checkpoint, open_folder
from minibert.checkpoint.weights import fit
from minibert.errors import MinibertError, how_to_install
from minibert.kernels.check.problem import TIMES_EAGER
from minibert.layers.config import Config
from minibert.layers.linear import processor
from minibert.model import Model, load
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace
from minibert.untrusted import Json, guarded, open_regular, read_json

#: The largest error in float64, in parts of the quantity's largest number, or of 1 below it.
LIMIT = 1e-10
# A root mean square of float32's errors below this part of the largest number is luck.
_FLOOR = torch.finfo(torch.float32).eps / 8
_LENGTHS = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
# What a model gives for a text, by the names of a trace, with the layer: "probs 3".
_Values = dict[str, Tensor]
# Of each quantity the largest error, and the root mean squares of the errors of each text.
_Errors = dict[str, tuple[float, Tensor]]


def memory(folder: Path, longest: int) -> int:
    """Bytes that `verify` takes at most, about: float64 weights, and attention of all layers."""
    checkpoint = _opened(folder)
    config = checkpoint.config
    pairs = sum(length**2 for length in _lengths(config, longest))
    weights = sum(torch.Size(entry.shape).numel() for entry in checkpoint.entries.values())
    return 8 * (weights + 2 * config.n_layers * config.n_heads * pairs)


def verify(folder: Path, *, longest: int = 64, seed: int = 0, weights: str | None = None) -> Json:
    """The certificate of a checkpoint folder; docs/command_line.md has its keys.

    With `weights="int8"` it has the errors of `load(weights="int8")` as well, without a verdict.

    Raises MinibertError where transformers is not installed, and for a folder that it or minibert
    cannot load.
    """
    config, transformers = _opened(folder).config, _transformers()
    if config.family == "minibert":
        raise MinibertError(f"{folder}: transformers has no such model to compare it with.")
    usual = class_name(config.model_type, config.family, config.task)
    name = (read_json(folder / "config.json").get("architectures") or [usual])[0]
    with guarded(folder, MinibertError, "transformers cannot read its config.json"):
        kind = getattr(transformers, name)
        padding = kind.config_class.from_pretrained(folder).pad_token_id
    lengths = _lengths(config, longest)
    ids, segments = _drawn(config, lengths, padding, seed)
    texts = [{"input_ids": torch.tensor([row])} for row in ids]
    # GPT-2 has no segments and would add the embedding of a token for each.
    if config.n_segments:
        for text, row in zip(texts, segments, strict=True):
            text["token_type_ids"] = torch.tensor([row])
    tokens = Tokens.from_ids(ids, segments=segments)
    quantities = _compared(folder, kind, tokens, texts, weights)
    beyond = f"positions from {lengths[-1]} to {config.n_positions - 1}, and what begins there"
    return {
        "model": folder.resolve().name,
        "family": config.family,
        "task": config.task,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "minibert": __version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": processor().name,
        },
        "files": _digests(folder),
        "ids": ids,
        "segments": segments,
        "right": all(one["right"] for one in quantities),
        "quantities": quantities,
        "not_covered": [beyond] if lengths[-1] < config.n_positions else [],
    }


def _transformers() -> ModuleType:
    """The library, without bars of progress. Raises MinibertError where it is missing or older."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise MinibertError(
            f"verify compares with transformers, which cannot be imported ({error}): "
            f"{how_to_install('verify')}. See docs/install.md#extras"
        ) from None
    if int(transformers.__version__.split(".")[0]) < 5:
        # Earlier ones leave out rope_parameters, without a word.
        raise MinibertError(
            f"verify needs transformers 5 or later, not {transformers.__version__}: "
            f"{how_to_install('verify')}. See docs/install.md#extras"
        )
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


def _drawn(
    config: Config, lengths: Sequence[int], padding: int | None, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and segments of texts of these lengths, by the seed."""
    # RoBERTa and classifiers of texts ask where the padding is.
    usable = [n for n in range(config.vocab_size) if n != padding] or [0]
    generator = torch.Generator().manual_seed(seed)
    places, segments = (
        [torch.randint(n, (length,), generator=generator).tolist() for length in lengths]
        for n in (len(usable), max(1, config.n_segments))
    )
    return [[usable[n] for n in row] for row in places], segments


def _opened(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise MinibertError(f"{folder} is not a folder; expected a checkpoint, with config.json.")
    found = open_folder(folder, Asked(), name=str(folder))
    with torch.device("meta"):
        named = Model(found.config).named_parameters()
    # transformers says less of what does not fit.
    shapes = {name: tuple(parameter.shape) for name, parameter in named}
    fit(found.config, shapes, found.entries, where=found.where)
    return found


def _lengths(config: Config, longest: int) -> list[int]:
    """The lengths of the texts, the longest last.

    transformers keeps dynamic rotary frequencies of a long text for a shorter one after it.
    """
    longest = min(longest, config.n_positions)
    return [*(min(length, longest) for length in _LENGTHS), longest]


def _digests(folder: Path) -> list[dict[str, str]]:
    """The SHA-256 of config.json and of each file of weights."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".bin") or path.name == "config.json":
            with open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append({"name": path.name, "sha256": digest})
    return found


def _compared(
    folder: Path, kind: object, tokens: Tokens, texts: Sequence[_Values], weights: str | None
) -> list[Json]:
    """How far each quantity is, in the order of the pass."""
    with guarded(folder, MinibertError, "transformers cannot run it"):
        truth = _theirs(folder, kind, texts, torch.float64)
        single = _theirs(folder, kind, texts, torch.float32)
    theirs = _errors([text.__getitem__ for text in single], truth)
    double = _ours(folder, tokens, torch.float64, truth)
    ours = _ours(folder, tokens, torch.float32, truth)
    rounded = _ours(folder, tokens, torch.float32, truth, weights) if weights else []
    found = []
    for name, (their_largest, their_squares) in theirs.items():
        largest = max(text[name].abs().max().item() for text in truth)
        padded, packed = (each[name][0] for each in double)
        floor, allowed = _FLOOR * largest, LIMIT * max(1.0, largest)
        squares = torch.stack([each[name][1] for each in ours]).clamp(floor)
        ratio = (squares / their_squares.clamp(floor)).log().mean(1).exp().max().item()
        # Written so that NaN is not right.
        exact = padded <= allowed and packed <= allowed
        found.append(
            {
                "name": name,
                "largest": largest,
                "padded": padded,
                "packed": packed,
                "float32": max(each[name][0] for each in ours),
                "float32_transformers": their_largest,
                "ratio": ratio,
                "int8": max((each[name][0] for each in rounded), default=None),
                "right": exact and ratio <= TIMES_EAGER,
            }
        )
    return found


def _ours(
    folder: Path,
    tokens: Tokens,
    dtype: torch.dtype,
    truth: Sequence[_Values],
    weights: Any = None,
) -> list[_Errors]:
    """The errors of minibert's model in this type: of the padded batch, and of the packed one."""
    model, found = load(folder, dtype=dtype, weights=weights), []
    for packed in (False, True):
        trace = model.trace(tokens, packed=packed)
        found.append(_errors([_reader(trace.text(n)) for n in range(len(tokens))], truth))
    return found


def _reader(trace: Trace) -> Callable[[str], Tensor]:
    def read(place: str) -> Tensor:
        name, _, layer = place.partition(" ")
        value: Tensor = getattr(trace[int(layer)] if layer else trace, name)
        return value

    return read


def _errors(texts: Sequence[Callable[[str], Tensor]], truth: Sequence[_Values]) -> _Errors:
    found = {}
    for name in truth[0]:
        each = [_error(read(name), true[name]) for read, true in zip(texts, truth, strict=True)]
        squares = torch.stack([error.square().mean().sqrt() for error in each])
        found[name] = torch.stack([error.max() for error in each]).max().item(), squares
    return found


def _error(found: Tensor, true: Tensor) -> Tensor:
    """Infinite where the shapes are not the same."""
    if found.shape != true.shape:
        return torch.full((), torch.inf, dtype=torch.float64)
    return (found.double() - true).abs()


def _theirs(folder: Path, kind: Any, texts: Sequence[_Values], dtype: torch.dtype) -> list[_Values]:
    """What transformers' model gives for each text alone."""
    options = {"attn_implementation": "eager", "local_files_only": True, "dtype": dtype}
    with wide() if dtype == torch.float64 else nullcontext(), torch.no_grad():
        model = kind.from_pretrained(folder, **options).eval()
        return [_named(model, text) for text in texts]


def _named(model: nn.Module, text: _Values) -> _Values:
    taken = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in taken else {}
    last: list[Tensor | tuple[Tensor, ...]] = []
    # Behind a norm, transformers shows what leaves the last layer only after it.
    lists = ((name, one) for name, one in model.named_modules() if isinstance(one, nn.ModuleList))
    layers = next((one for name, one in lists if name.split(".")[-1] in ("h", "layers")), ())
    handles = [layer.register_forward_hook(lambda _, __, out: last.append(out)) for layer in layers]
    out = model(**text, **options, output_attentions=True, output_hidden_states=True)
    for handle in handles:
        handle.remove()
    streams = list(out.hidden_states)
    if last:
        streams[-1] = last[-1] if isinstance(last[-1], Tensor) else last[-1][0]
    found = {"embed": streams[0]}
    for layer, (probs, stream) in enumerate(zip(out.attentions, streams[1:], strict=True)):
        found |= {f"probs {layer}": probs, f"resid_post {layer}": stream}
    second = out.get("seq_relationship_logits", out.get("sop_logits"))
    more = {"pooled": out.get("pooler_output"), "next_sentence_logits": second}
    found |= {name: value for name, value in more.items() if value is not None}
    return found | {"logits": _logits(out)}


def _logits(out: Any) -> Tensor:
    """The logits of the task head; the last hidden state without one."""
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], dim=-1)
    names = ("logits", "prediction_logits", "last_hidden_state")
    logits: Tensor = next(out[name] for name in names if name in out)
    return logits


class _Wide(TorchFunctionMode):
    """Every call of torch that names float32 gets float64 instead."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Json | None = None,
    ) -> object:
        func = Tensor.double if func is Tensor.float else func
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wider, args), **named)


def _wider(value: object) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def wide() -> Iterator[None]:
    """Make models in float64 inside the block, buffers included, and compute in it throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(before)
