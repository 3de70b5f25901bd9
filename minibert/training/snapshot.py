"""Snapshots: all that an interrupted run needs to resume with identical results.

A snapshot is written to another file in its folder, which is then renamed. So a kill at any moment
leaves a complete file: the old snapshot or the new one. A run resumes only from a snapshot of the
same run.
"""

import itertools
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO

import torch

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.trace.identity import weights_digest
from minibert.training.recipe import Recipe
from minibert.training.texts import Document
from minibert.untrusted import open_regular, present
from minibert.writing import replacing

_FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """The state after `step` steps."""

    step: int
    about: dict[str, object]
    """The arguments of the run; it resumes only with the same ones."""
    tokenizer: str
    model: dict[str, torch.Tensor]
    optimizer: list[dict[str, object]]
    log: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds spent on training so far."""

    def save(self, folder: Path) -> None:
        """Replace the snapshot of this folder."""
        path = snapshot_path(folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside, beside.open("wb") as file:
                torch.save({"format": _FORMAT, **vars(self)}, file)
                file.flush()
                os.fsync(file.fileno())
        # torch says that the disk is full with a RuntimeError.
        except (OSError, RuntimeError) as error:
            raise TrainingError(
                f"{path}: the snapshot could not be written ({_reason(error)}). "
                "The previous snapshot is kept."
            ) from error

    @classmethod
    def load(cls, folder: Path) -> "Snapshot | None":
        """The snapshot of this folder; None where there is none.

        Raises TrainingError for a file that is damaged or of another version.
        """
        path = snapshot_path(folder)
        if not present(path):
            return None
        try:
            with open_regular(path, TrainingError) as file:
                _check_sums(file)
                # weights_only: a file may hold tensors and plain Python values, and no code.
                content = torch.load(file, map_location="cpu", weights_only=True)
        except TrainingError as error:
            raise TrainingError(f"{error} Delete it to start again.") from error
        # A damaged file can raise any exception, from IndexError to struct.error.
        except Exception as error:
            # torch's message is long, and advises to load the file without this protection.
            plain = isinstance(error, OSError | zipfile.BadZipFile)
            reason = str(error) if plain else type(error).__name__
            raise TrainingError(
                f"{path}: the snapshot cannot be read ({reason}). Delete it to start again."
            ) from error
        wanted = {"format", *(each.name for each in fields(cls))}
        if (
            not isinstance(content, dict)
            or content.get("format") != _FORMAT
            or set(content) != wanted
        ):
            raise TrainingError(
                f"{path}: not a snapshot of this version of minibert. Delete it to start again."
            )
        del content["format"]
        return cls(**content)


def _check_sums(file: IO[bytes]) -> None:
    # torch loads a damaged tensor without an error, although the file has checksums.
    with zipfile.ZipFile(file) as archive:
        if name := archive.testzip():
            raise zipfile.BadZipFile(f"{name} is damaged")
    file.seek(0)


def _reason(error: BaseException) -> str:
    """What the disk said, also where torch raised an error of its own after that."""
    found: BaseException | None = error
    while found is not None and not getattr(found, "strerror", None):
        found = found.__context__
    return getattr(found, "strerror", None) or str(error).partition("\n")[0]


def snapshot_path(folder: Path) -> Path:
    """The path of the snapshot of a run in this folder."""
    return folder / ".training" / "snapshot.pt"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is never left half-written."""
    try:
        with replacing(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"{path}: could not be written ({_reason(error)}). Once it can be, give the same "
            "command again to resume."
        ) from error


def check_writable(folder: Path) -> None:
    """Make the folder. Raises TrainingError where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written to ({_reason(error)}).") from error


def about_run(
    texts: Sequence[Document],
    held_out: Sequence[Document],
    config: Config,
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    whole: Sequence[str],
    device: torch.device,
    start: Model | None,
) -> dict[str, object]:
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


def fitting_snapshot(folder: Path, about: dict[str, object]) -> Snapshot | None:
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


def _same(one: object, other: object) -> bool:
    # The order of dictionaries counts: the same texts in another order are another run.
    both = isinstance(one, dict) and isinstance(other, dict)
    return one == other and (not both or list(one) == list(other))  # type: ignore[call-overload]


def _digests(documents: Sequence[Document]) -> dict[str, str]:
    """The digests by name; a number is added to a name that several texts have."""
    found: dict[str, str] = {}
    for document in documents:
        names = (f"{document.name} ({n})" if n > 1 else document.name for n in itertools.count(1))
        found[next(name for name in names if name not in found)] = document.digest
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
