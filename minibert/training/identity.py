"""Compares two runs, so that a run resumes only from a snapshot of the same run."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training.recipe import Recipe
from minibert.training.snapshot import Snapshot
from minibert.training.texts import Document

__all__ = ["about_run", "check_apart", "check_no_stranger", "fitting_snapshot"]


def about_run(
    texts: Sequence[Document],
    held_out: Sequence[Document],
    config: Config,
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    whole: Sequence[str],
    device: torch.device,
    start: Model | None,
) -> dict[str, Any]:
    """Everything that must be equal for a run to resume from the snapshot of another."""
    return {
        "texts": _digests(texts),
        "held_out": _digests(held_out),
        "config": {key: _plain(value) for key, value in asdict(config).items()},
        "recipe": recipe.to_dict(),
        "own_tokenizer": None if tokenizer is None else tokenizer.to_json(),
        "whole": list(whole) or None,
        "start": None if start is None else weights_digest(start),
        "device": device.type,
        "torch": str(torch.__version__),
    }


def check_apart(texts: Sequence[Document], held_out: Sequence[Document]) -> None:
    """Raise TrainingError for a text that is both trained on and held out."""
    names = {document.digest: document.name for document in texts}
    for document in held_out:
        if document.digest in names:
            raise TrainingError(
                f"{document.name} is held out, and trained on as {names[document.digest]}. "
                "Held-out text must be new to the model: remove it from one of the two."
            )


def check_no_stranger(folder: Path) -> None:
    """Raise TrainingError for a folder that holds a model but no snapshot of its training."""
    found = [name for name in ("config.json", "model.safetensors") if (folder / name).exists()]
    if found:
        raise TrainingError(
            f"{folder} already holds a model ({', '.join(found)}) but no snapshot of its training; "
            "give another folder, or restart=True to replace the model."
        )


def fitting_snapshot(folder: Path, about: dict[str, Any]) -> Snapshot | None:
    """The snapshot of this folder; None where there is none.

    Raises TrainingError for the snapshot of another run, and says what differs.
    """
    snapshot = Snapshot.load(folder)
    if snapshot is None:
        return None
    changed = [key for key, value in about.items() if not _same(snapshot.about.get(key), value)]
    if changed:
        raise TrainingError(
            f"{folder} holds a run with other {', '.join(changed)} (step {snapshot.step}). Give "
            "the same arguments to resume it, another folder, or restart=True to start from step 0."
        )
    return snapshot


def _same(one: Any, other: Any) -> bool:
    # The order of dictionaries counts: the same texts in another order are another run.
    return one == other and (not isinstance(one, dict) or list(one) == list(other))


def weights_digest(model: Model) -> str:
    """The SHA-256 of the weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _digests(documents: Sequence[Document]) -> dict[str, str]:
    """The digests by name; a number is added to a name that several texts have."""
    found: dict[str, str] = {}
    for document in documents:
        names = (f"{document.name} ({n})" if n > 1 else document.name for n in itertools.count(1))
        found[next(name for name in names if name not in found)] = document.digest
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
