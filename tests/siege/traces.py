"""Class "trace": files of traces, honest, damaged, and written by somebody who knows the digest.

An honest one must come back as safetensors' own reader finds it; a changed one must be refused;
one with another content and the right digest is refused or can be read, shown and saved.
"""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import minibert
from minibert.trace.edit import zero
from minibert.trace.file import read_container, write_container
from minibert.trace.read import Trace
from tests.siege import material
from tests.siege.judge import DiffersError, tolerate
from tests.siege.mutations import change_bytes, change_json, change_value, special

NAME = "a.safetensors"
KINDS = ("honest", "honest", "bytes", "bytes", "header", "special", "tensors", "sealed", "sealed")
QUANTITIES = ("query", "key", "value", "scores", "probs", "z", "resid_pre", "resid_post")


def build(folder: Path, random: Random) -> str:
    """A trace file in the folder, and beside it what kind it is."""
    folder.mkdir()
    path, kind = folder / NAME, random.choice(KINDS)
    model = random.choice(("bert", "gpt2"))
    done = _honest(path, model, random) if kind == "honest" else ""
    if kind != "honest":
        shutil.copy(random.choice(material.traces[model]), path)
        (folder / "before").write_bytes(path.read_bytes())
    if kind == "bytes":
        done = change_bytes(path, random)
    elif kind == "header":
        done = change_json(path, random)
    elif kind == "special":
        done = special(path, random)
    elif kind == "tensors":
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        found = load_file(path)
        done = _other_tensors(found, random)
        save_file(found, path, metadata=metadata)
    elif kind == "sealed":
        about, tensors = read_container(path)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        said = [_other_tensors(tensors, random)] if random.random() < 0.4 else []
        said += [change_value(about, random) for _ in range(random.choice((1, 1, 2)))]
        done = "; ".join(said)
        try:
            write_container(path, tensors, about)
        except (UnicodeEncodeError, ValueError):
            # JSON or UTF-8 cannot say it, so no file can.
            kind = "bytes"
    (folder / "kind").write_text(f"{kind} {model}")
    return f"{kind} {model}: {done}"


def _honest(path: Path, model: str, random: Random) -> str:
    text = random.choice((["The quick fox"], ["The fox", "lazy dogs, weren't they?"], ["½ 我 🙂"]))
    options: dict[str, Any] = {}
    if random.random() < 0.3:
        options["until"] = random.randrange(2)
    if random.random() < 0.3 and "until" not in options:
        options["keep"] = random.choice((("probs",), ("scores", "probs")))
    if random.random() < 0.3 and options.get("until") != 0:
        options["edit"] = {("z", 0, random.randrange(2)): zero}
    trace = material.models[model].trace(text, **options)
    trace.save(path)
    kept = {f"layers.{i}.{n}": t for i, one in enumerate(trace.records) for n, t in one.items()}
    torch.save(kept | trace.kept, path.with_name("expected"))
    return f"{text} {sorted(options)}"


def _other_tensors(found: dict[str, torch.Tensor], random: Random) -> str:
    first, second = random.sample(sorted(found), 2)
    kind = random.choice(("swap", "relabel", "drop", "other", "shape", "nan"))
    tensor = found[first]
    if kind == "swap":
        found[first], found[second] = found[second], tensor
    elif kind == "relabel":
        same = {1: (torch.uint8, torch.bool), 2: (torch.float16, torch.bfloat16)}
        same |= {4: (torch.int32, torch.float32), 8: (torch.int64, torch.float64)}
        found[first] = tensor.view(random.choice(same[tensor.element_size()]))
    elif kind == "drop":
        del found[first]
    elif kind == "other":
        found[first] = torch.zeros_like(tensor)
    elif kind == "shape":
        found[first] = tensor.flatten() if random.random() < 0.5 else tensor[:0].clone()
    elif tensor.is_floating_point():
        found[first] = torch.full_like(tensor, float(random.choice(("nan", "inf", "1e30"))))
    return f"{kind} {first} {second}"


def use(folder: Path) -> None:
    """Load it and read everything, compared with what the kind of the file promises."""
    path = folder / NAME
    kind, model = (folder / "kind").read_text().split()
    if kind == "honest":
        _same_as_expected(path, material.models[model])
        return
    alone = Trace.load(path)
    unchanged = path.read_bytes() == (folder / "before").read_bytes()
    if kind != "sealed" and not unchanged:
        raise DiffersError("a changed file is read")
    for trace in (alone, *_with_model(path, material.models[model])):
        _read_everything(trace, folder)


def _with_model(path: Path, model: minibert.Model) -> list[Trace]:
    try:
        return [Trace.load(path, model=model)]
    except minibert.MinibertError as error:
        tolerate(error)
        return []


def _read_everything(trace: Trace, folder: Path) -> None:
    calls = [
        lambda: repr(trace),
        lambda: trace.view(lens=False).html.encode(),
        lambda: trace.text(0).tokens.strings,
        lambda: trace.save(folder / "again"),
        lambda: Trace.load(folder / "again"),
    ]
    calls += [
        lambda name=name, layer=layer: getattr(trace[layer], name).sum()
        for name in QUANTITIES
        for layer in range(min(2, len(trace)))
    ]
    for call in calls:
        try:
            call()
        except minibert.MinibertError as error:
            tolerate(error)


def _same_as_expected(path: Path, model: minibert.Model) -> None:
    expected = torch.load(path.with_name("expected"), weights_only=True)
    stored = load_file(path)
    json.loads(safe_open(path, framework="pt").metadata()["minibert.trace"])
    for trace in (Trace.load(path), Trace.load(path, model=model)):
        records = enumerate(trace.records)
        found = {f"layers.{i}.{n}": t for i, one in records for n, t in one.items()} | trace.kept
        if found.keys() != expected.keys():
            raise DiffersError("other quantities than the trace had")
        for name, tensor in found.items():
            if not (torch.equal(tensor, expected[name]) and torch.equal(tensor, stored[name])):
                raise DiffersError(f"{name} is not what was saved")
        _ = trace.view(lens=False).html
