"""A file that is no whole trace is never read as one, and a failed save harms nothing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import minibert
from minibert.model import Model
from minibert.trace.read import Trace
from tests.families import Sizes, as_tokens, batch, hf_model

ROOT = str(Path(minibert.__file__).parents[1])


def random_model(**changes: Any) -> Model:
    return Model.from_transformers(hf_model("bert", "BertForMaskedLM", Sizes(**changes)))


def rewritten(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], Any]) -> Path:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)
    return path


def described(change: Callable[[Any], Any]) -> Callable[[Any, dict[str, str]], None]:
    def apply(_: Any, metadata: dict[str, str]) -> None:
        about = json.loads(metadata["minibert.trace"])
        change(about)
        metadata["minibert.trace"] = json.dumps(about)

    return apply


def described_as(text: str) -> Callable[[Any, dict[str, str]], None]:
    return lambda _, metadata: metadata.update({"minibert.trace": text})


DAMAGED: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, str]], Any], str]] = {
    "no entry": (lambda _, m: m.clear(), r"not a trace.*minibert\.load"),
    "later": (described(lambda a: a.update(version=1)), r"version 1.*reads version 2"),
    "no JSON": (described_as("{"), "damaged"),
    "a list": (described_as("[3]"), "damaged"),
    "deep": (described_as("[" * 10**5), "damaged"),
    "no config": (described(lambda a: a["model"].pop("config")), "damaged"),
    "odd config": (described(lambda a: a["model"]["config"].update(n_heads=0)), "damaged"),
    "other heads": (described(lambda a: a["model"]["config"].update(n_heads=5)), "has shape"),
    "more layers": (described(lambda a: a["model"]["config"].update(n_layers=4)), "damaged"),
    "no strings": (described(lambda a: a["tokens"].pop("strings")), "damaged"),
    "short strings": (described(lambda a: a["tokens"].update(raw=[])), "damaged"),
    "odd until": (described(lambda a: a.update(until="x")), "damaged"),
    "no ids": (lambda t, _: t.pop("tokens.ids"), "damaged"),
    "no embed": (lambda t, _: t.pop("embed"), "damaged"),
    "other batch": (lambda t, _: t.update(embed=t["embed"][:1].clone()), "embed has shape"),
    "strange": (lambda t, _: t.update(strange=t["embed"].clone()), "damaged"),
}


def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    trace = random_model().trace(as_tokens(batch("bert")))
    for change, said in DAMAGED.values():
        path = trace.save(tmp_path / "a.trace")
        with pytest.raises(minibert.TraceError, match=rf"(?s)a\.trace.*{said}"):
            Trace.load(rewritten(path, change))


def test_a_file_that_was_cut_short_is_an_error_wherever_it_was_cut(tmp_path: Path) -> None:
    path = random_model(layers=1).trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(minibert.TraceError, match=r"a\.trace.*not a complete trace file"):
            Trace.load(path)


def test_what_is_no_file_of_ours_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, this is no safetensors file at all")
    for name, said in (
        ("", "cannot be read"),
        ("none", "No such file"),
        ("text", "not a complete"),
    ):
        with pytest.raises(minibert.TraceError, match=said):
            Trace.load(tmp_path / name)


def test_a_checkpoint_is_no_trace(tmp_path: Path) -> None:
    hf_model("bert", "BertModel").save_pretrained(tmp_path)
    with pytest.raises(minibert.TraceError, match=r"not a trace.*minibert\.load"):
        Trace.load(tmp_path / "model.safetensors")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    trace = random_model().trace(torch.arange(5)[None])
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "a", "there is no folder")):
        with pytest.raises(minibert.TraceError, match=said):
            trace.save(path)


FULL = """
import resource, sys, torch, minibert
trace = minibert.load().trace("leaves fall in autumn")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    trace.save(sys.argv[1])
except minibert.TraceError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit that stands for a full disk")
def test_a_full_disk_is_an_error_and_the_old_file_stays_whole(tmp_path: Path) -> None:
    path = random_model().trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    before = path.read_bytes()
    program = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "could not be saved" in done.stdout, done.stderr
    assert path.read_bytes() == before
    assert [left.name for left in tmp_path.iterdir()] == ["a.trace"]
