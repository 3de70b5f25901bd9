"""Known cases of what is no honest file in the place of one, and of files of traces.

In the place of each file that a checkpoint may have and known.py has not, of a trace, of a text
for training, of --config, of a snapshot and of rows of the bench.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from minibert.bench.result_rows import read_rows
from minibert.errors import TrainingError
from minibert.trace.file import read_container, write_container
from minibert.trace.read import Trace
from minibert.training.snapshot import Snapshot, snapshot_path
from minibert.training.texts import read_texts
from minibert.untrusted import read_json
from minibert.viz.plots.training import read_scores
from tests.siege import checkpoints, fork, material, traces
from tests.siege.material import PICKLE, SAFE
from tests.siege.mutations import replace

_KINDS = ("FIFO", "/dev/zero", "/dev/null", "folder", "loop", "sparse", "/proc/self/mem")
_READERS: dict[str, Callable[[Path], Any]] = {
    "trace": Trace.load,
    "text for training": lambda path: read_texts([path]),
    "--config of train": lambda path: read_json(path, TrainingError),
    "rows of bench": read_rows,
    "log of a training": read_scores,
}
_OTHERS = {
    "gpt2": ("vocab.json", "merges.txt", "generation_config.json"),
    "roberta": ("tokenizer.json",),
    "bert-zip": ("pytorch_model.bin",),
    "bert-shards": (f"{SAFE}.index.json", "model-00001-of-00002.safetensors"),
    "bert-pickles": (f"{PICKLE}.index.json", "pytorch_model-00002-of-00002.bin"),
}
CASES: dict[str, tuple[fork.Build, fork.Use]] = {}


def _put(kind: str, name: str = "file") -> fork.Build:
    def build(folder: Path, random: Random) -> str:
        path = folder / name
        path.parent.mkdir(parents=True)
        path.touch()
        replace(path, kind)
        return kind

    return build


def _opened(read: Callable[[Path], Any]) -> fork.Use:
    return lambda folder: read(folder / "file")


def _sealed(change: Callable[[Any, dict[str, Any]], Any]) -> fork.Build:
    """A trace with another content and the right digest."""

    def build(folder: Path, random: Random) -> str:
        folder.mkdir()
        about, tensors = read_container(material.traces["bert"][0])
        change({name: tensor.clone() for name, tensor in tensors.items()}, about)
        write_container(folder / traces.NAME, tensors, about)
        (folder / "kind").write_text("sealed bert")
        (folder / "before").write_bytes(b"")
        return ""

    return build


def _in_a_folder(base: str, name: str, kind: str) -> fork.Build:
    def build(folder: Path, random: Random) -> str:
        shutil.copytree(next(one for one in material.folders if one.name == base), folder)
        replace(folder / name, kind)
        return kind

    return build


for _kind in _KINDS:
    for _base, _names in _OTHERS.items():
        for _name in _names:
            CASES[f"{_kind} as {_name}"] = (_in_a_folder(_base, _name, _kind), checkpoints.use)
    for _name, _read in _READERS.items():
        CASES[f"{_kind} as {_name}"] = (_put(_kind), _opened(_read))
    CASES[f"{_kind} as snapshot"] = (_put(_kind, str(snapshot_path(Path()))), Snapshot.load)

for _name, _change in {
    "span behind the text": lambda _, about: about["tokens"]["spans"][0].__setitem__(1, [0, 10**6]),
    "surrogate in a token": lambda _, a: a["tokens"]["strings"][0].__setitem__(1, "\ud800"),
    "a million layers": lambda _, about: about["model"]["config"].update(n_layers=10**6),
}.items():
    CASES[f"trace with {_name}"] = (_sealed(_change), traces.use)
