"""What minibert makes of a folder: refused in good form, equal to the oracle, or a failure.

Oracles: safetensors' own reader and torch's for weights, transformers for configurations.
"""

import json
import resource
import traceback
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import minibert
from minibert.checkpoint.files import open_checkpoint
from minibert.checkpoint.weight_files import WEIGHT_FILES
from minibert.model import Model

TEXTS = ["The quick brown fox", "\u202e\x1b[31m ½ 我", "a [MASK] b", " "]
CLASSES = {"bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2"}


class DiffersError(Exception):
    """minibert accepted what the oracle reads otherwise."""


def judge(folder: Path) -> tuple[str, str, str]:
    """What happened (refused, equal, failure), the kind of failure, and a word about it."""
    try:
        try:
            use(folder)
        finally:
            # To say what happened takes memory as well.
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    except minibert.MinibertError as error:
        return _form(error)
    except DiffersError as error:
        return "failure", "differs", str(error)[:500]
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "/minibert/" in f.filename or "/siege/" in f.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
        return "failure", f"{type(error).__name__} at {place}", ascii(str(error))[:500]
    return "equal", "", ""


def _form(error: minibert.MinibertError) -> tuple[str, str, str]:
    """Whether the message may be shown: short, and harmless to a terminal, causes included."""
    message = str(error)
    shown = "".join(traceback.format_exception(error))
    if len(message.encode()) >= 2048:
        return "failure", f"{type(error).__name__} too long", ascii(message[:200])
    if not all(c.isprintable() or c == "\n" for c in message + shown):
        return "failure", f"{type(error).__name__} not printable", ascii(message[:300])
    if len(shown) > 20_000:
        return "failure", f"{type(error).__name__} with a long cause", ascii(shown[-300:])
    return "refused", type(error).__name__, message[:200]


def use(folder: Path) -> None:
    """Everything a user does with a checkpoint, compared with the oracles."""
    _compare_weights(folder)
    model = minibert.load(folder)
    _compare_model(model, folder)
    if model.tokenizer is None:
        return
    for text in TEXTS:
        try:
            tokens = model.tokenize(text)
            if not bool(model(tokens).isfinite().all()):
                raise DiffersError("the model answers with NaN or infinity")
            tokens.strings, model.tokenizer.decode(tokens.ids[0])
        except minibert.MinibertError as error:
            if (form := _form(error))[0] == "failure":
                raise DiffersError(f"{form[1]}: {form[2]}") from error


def _compare_weights(folder: Path) -> None:
    ours = {name: entry.load() for name, entry in open_checkpoint(folder).items()}
    present = next(name for name in WEIGHT_FILES if (folder / name).exists())
    paths = [folder / present]
    if present.endswith(".index.json"):
        names = json.loads((folder / present).read_text())["weight_map"].values()
        paths = [folder / name for name in sorted(set(names))]
    theirs: dict[str, Any] = {}
    for path in paths:
        try:
            theirs |= (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, weights_only=True)
            )
        except Exception as error:
            raise DiffersError(f"{path.name} is read, and not by its own reader: {error}") from None
    if isinstance(theirs.get("state_dict"), dict):
        theirs = theirs["state_dict"]
    if ours.keys() != theirs.keys():
        raise DiffersError(f"{path.name}: other names than its own reader finds")
    for name, tensor in ours.items():
        same = tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape
        if not same or not torch.equal(tensor.nan_to_num(), theirs[name].nan_to_num()):
            raise DiffersError(f"{path.name}: {name} has other values than its own reader finds")


def _is_deflated(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(entry.compress_type for entry in archive.infolist())


def _compare_model(model: Model, folder: Path) -> None:
    """Logits against transformers, where it can load the folder at all."""
    import transformers

    about = json.loads((folder / "config.json").read_text())
    names = about.get("architectures") or [None]
    if any(_is_deflated(path) for path in folder.glob("*.bin")):
        # torch maps such a file and takes the compressed bytes for numbers.
        return
    kind = getattr(transformers, str(names[0]), None)
    if kind is None:
        return
    try:
        theirs, report = kind.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        theirs.eval()
        ids = torch.tensor([[5, 9, 14, 22, 7]]) % model.config.vocab_size
        with torch.no_grad():
            expected = theirs(ids).logits
    except Exception:
        # transformers refuses more than minibert has to: types of fields that change nothing.
        return
    if report["missing_keys"] or report["mismatched_keys"]:
        return
    found = model(ids)
    if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-3, rtol=1e-3):
        raise DiffersError("other logits than transformers gives")
