"""Class "checkpoint": folders with damage, and legal ones that must be read as the oracles do.

Oracles: safetensors' own reader and torch's for weights, transformers for configurations.
"""

import json
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

import minibert
from minibert.checkpoint.files import WEIGHT_FILES, open_checkpoint
from minibert.model import Model
from tests.siege import legal, material
from tests.siege.judge import DiffersError, tolerate
from tests.siege.mutations import mutate

TEXTS = ["The quick brown fox", "\u202e\x1b[31m ½ 我", "a [MASK] b", " "]


def damaged(folder: Path, random: Random) -> str:
    """Random damage to one of the honest folders."""
    base = random.choice(material.folders)
    shutil.copytree(base, folder)
    done = [mutate(folder, random) for _ in range(random.choice((1, 1, 1, 2)))]
    return f"{base.name}: {', '.join(done)}"


def varied(folder: Path, random: Random) -> str:
    """A legal variation of one of them."""
    base = random.choice([one for one in material.folders if "-" not in one.name])
    shutil.copytree(base, folder)
    return f"{base.name}: {', '.join(legal.vary(folder, random))}"


def use_legal(folder: Path) -> None:
    """As `use`, but nothing may be refused."""
    try:
        use(folder)
    except minibert.MinibertError as error:
        raise DiffersError(f"a legal folder is refused: {error}") from error


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
            tolerate(error)


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
    if model.config.family == "gpt2" and hasattr(theirs, "generation_config"):
        _compare_end_tokens(model, theirs.generation_config.eos_token_id)
    found = model(ids)
    if found.shape != expected.shape or not torch.allclose(
        found.float(), expected, atol=1e-3, rtol=1e-3
    ):
        raise DiffersError("other logits than transformers gives")


def _compare_end_tokens(model: Model, theirs: Any) -> None:
    """The tokens that end a text, where transformers found such as the vocabulary has."""
    theirs = theirs if isinstance(theirs, list) else [] if theirs is None else [theirs]
    whole = all(type(one) is int and 0 <= one < model.config.vocab_size for one in theirs)
    if whole and set(model.config.end_ids) != set(theirs):
        raise DiffersError(f"ends {model.config.end_ids}, and transformers' {theirs}")
