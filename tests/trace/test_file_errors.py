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
from minibert.trace.file import read_container, write_container
from minibert.trace.read import Trace
from tests.families import Sizes, as_tokens, batch, hf_model

ROOT = str(Path(minibert.__file__).parents[1])


def random_model(**changes: Any) -> Model:
    return Model.from_transformers(hf_model("bert", "BertForMaskedLM", Sizes(**changes)))


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    about, tensors = read_container(path)
    return {name: tensor.clone() for name, tensor in tensors.items()}, about


def described_as(text: str) -> Callable[[Path], None]:
    return lambda path: save_file(load_file(path), path, metadata={"minibert.trace": text})


NO_TRACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no entry": (lambda path: save_file(load_file(path), path), r"not a trace.*minibert\.load"),
    "earlier": (described_as('{"version": 2}'), r"version 2.*reads version 4"),
    "no digest": (described_as('{"version": 4, "sha256": "0"}'), "no digest"),
    "no JSON": (described_as("{"), "damaged"),
    "a list": (described_as("[3]"), "damaged"),
    "deep": (described_as("[" * 10**5), "damaged"),
    "a header of 64 MB": (described_as(" " * 2**26), "a header of"),
    "20,000 tensors": (
        lambda path: save_file({str(i): torch.ones(0) for i in range(20_000)}, path),
        "20000 tensors",
    ),
}


def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    trace = random_model(layers=1).trace(torch.arange(5)[None])
    for change, said in NO_TRACES.values():
        path = trace.save(tmp_path / "a.trace")
        change(path)
        with pytest.raises(minibert.TraceError, match=rf"(?s)a\.trace.*{said}"):
            Trace.load(path)


def swapped(tensors: dict[str, Tensor], _: Any) -> None:
    query, key = "layers.0.query", "layers.0.key"
    tensors[query], tensors[key] = tensors[key], tensors[query]


def relabelled(tensors: dict[str, Tensor], _: Any) -> None:
    tensors["embed"] = tensors["embed"].view(torch.int32).view(torch.float32).view(torch.int32)


def spans(value: Any) -> Callable[[Any, dict[str, Any]], None]:
    return lambda _, about: about["tokens"]["spans"][0].__setitem__(1, value)


# With the right digest: of somebody who writes such files, or of another program.
DAMAGED: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "no config": (lambda _, a: a["model"].pop("config"), "damaged"),
    "odd config": (lambda _, a: a["model"]["config"].update(n_heads=0), "damaged"),
    "other heads": (lambda _, a: a["model"]["config"].update(n_heads=5, n_kv_heads=5), "has shape"),
    "more layers": (lambda _, a: a["model"]["config"].update(n_layers=4), "damaged"),
    "fewer layers": (lambda _, a: a["model"]["config"].update(n_layers=1), "damaged"),
    "a name that is none": (lambda _, a: a["model"].update(name=["x"]), "damaged"),
    "no strings": (lambda _, a: a["tokens"].pop("strings"), "damaged"),
    "short strings": (lambda _, a: a["tokens"].update(raw=[]), "damaged"),
    "a surrogate": (lambda _, a: a["tokens"]["strings"][0].__setitem__(1, "\ud800"), "damaged"),
    "a number as token": (lambda _, a: a["tokens"]["raw"][0].__setitem__(1, 5), "damaged"),
    "a span of three": (spans([0, 1, 2]), "damaged"),
    "a span behind the text": (spans([0, 10**6]), "damaged"),
    "a span that is a word": (spans("ab"), "damaged"),
    "odd until": (lambda _, a: a.update(until="x"), "damaged"),
    "until behind the end": (lambda _, a: a.update(until=7), "damaged"),
    "no back ends": (lambda _, a: a.update(backends={}), "damaged"),
    "no ids": (lambda t, _: t.pop("tokens.ids"), "damaged"),
    "ids outside": (lambda t, _: t["tokens.ids"].fill_(10**6), "damaged|outside"),
    "no embed": (lambda t, _: t.pop("embed"), "damaged"),
    "no stream": (lambda t, _: t.pop("layers.0.resid_post"), "no layers.0.resid_post"),
    "other batch": (lambda t, _: t.update(embed=t["embed"][:1].clone()), "embed has shape"),
    "whole numbers": (relabelled, "embed holds torch.int32"),
    "strange": (lambda t, _: t.update(strange=t["embed"].clone()), "damaged"),
}


def test_a_trace_whose_contents_do_not_fit_each_other_is_an_error(tmp_path: Path) -> None:
    trace = random_model().trace(as_tokens(batch("bert")))
    for change, said in DAMAGED.values():
        tensors, about = contents(trace.save(tmp_path / "a.trace"))
        change(tensors, about)
        write_container(tmp_path / "a.trace", tensors, about)
        with pytest.raises(minibert.TraceError, match=rf"(?s)a\.trace.*{said}"):
            Trace.load(tmp_path / "a.trace")


@pytest.mark.parametrize("change", [swapped, relabelled, spans([0, 1])])
def test_what_was_changed_after_it_was_saved_is_refused_when_it_is_loaded(
    change: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    path = random_model().trace(as_tokens(batch("bert"))).save(tmp_path / "a.trace")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["minibert.trace"])
    tensors = load_file(path)
    change(tensors, about)
    save_file(tensors, path, metadata={"minibert.trace": json.dumps(about)})
    with pytest.raises(minibert.TraceError, match=r"do not fit its digest"):
        Trace.load(path)


def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = random_model(layers=1).trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    whole = path.read_bytes()
    for place in (*range(8), *range(8, len(whole), 97), len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(minibert.TraceError):
            Trace.load(path)


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
