"""Legal variations of an honest checkpoint folder: minibert must read every one of them.

Each is something that a program which writes checkpoints may do.
"""

import io
import json
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.siege.material import PICKLE, SAFE

Tensors = dict[str, torch.Tensor]
PREFIXES = ("bert.", "roberta.", "distilbert.", "electra.", "albert.", "transformer.")
ABOUT: dict[str, Any] = {
    "_name_or_path": "./a folder/\u00fc",
    "transformers_version": "4.20.1",
    "torch_dtype": "float32",
    "use_cache": True,
    "output_attentions": False,
    "initializer_range": 0.02,
    "note of our own": {"a": [1, None, "x"]},
    "label2id": {"LABEL_0": 0},
}
SETTINGS: dict[str, Any] = {
    "model_max_length": 10**30,
    "clean_up_tokenization_spaces": True,
    "name_or_path": "x",
    "padding_side": "right",
}
GENERATION: dict[str, Any] = {
    "max_length": 20,
    "transformers_version": "4.20.1",
    "_from_model_config": False,
    "do_sample": False,
}


def vary(folder: Path, random: Random) -> list[str]:
    """Change the folder in one to four ways; their descriptions."""
    found = load_file(folder / SAFE)
    said = [_values(found, random)] if random.random() < 0.7 else []
    said.append(_written(folder, found, random))
    if random.random() < 0.7:
        said.append(_json(folder / "config.json", ABOUT, random))
    if (folder / "tokenizer_config.json").exists() and random.random() < 0.5:
        said.append(_json(folder / "tokenizer_config.json", SETTINGS, random))
    if (path := folder / "generation_config.json").exists() and random.random() < 0.7:
        value = json.loads(path.read_text())
        value["eos_token_id"] = random.choice((0, 5, [0], [3, 1], None))
        path.write_text(json.dumps(value))
        said.append(f"ends {value['eos_token_id']}; {_json(path, GENERATION, random)}")
    if (folder / "vocab.txt").exists() and random.random() < 0.5:
        said.append(_lines(folder / "vocab.txt", random))
    return said


def _values(found: Tensors, random: Random) -> str:
    """Other types, names or tensors nobody needs, in place."""
    kind = random.choice(("half", "bfloat16", "double", "mixed", "bare names", "old names", "ids"))
    dtypes = {"half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}
    for name in list(found):
        if kind in dtypes:
            found[name] = found[name].to(dtypes[kind])
        elif kind == "mixed":
            found[name] = found[name].to(random.choice((torch.float16, torch.float32)))
        elif kind == "bare names":
            prefix = next((one for one in PREFIXES if name.startswith(one)), "")
            found[name.removeprefix(prefix)] = found.pop(name)
        elif kind == "old names" and "LayerNorm" in name:
            old = name.replace(".weight", ".gamma").replace(".bias", ".beta")
            found[old] = found.pop(name)
    if kind == "ids" and any(name.startswith("bert.") for name in found):
        found["bert.embeddings.position_ids"] = torch.arange(16)[None]
    return kind


def _written(folder: Path, found: Tensors, random: Random) -> str:
    names = list(found)
    random.shuffle(names)
    shuffled = {name: found[name].contiguous() for name in names}
    kind = random.choice(("one", "one", "shards", "zip", "old", "deflated", "nested", "pickles"))
    (folder / SAFE).unlink()
    if kind == "one":
        metadata = random.choice((None, {"format": "pt"}, {"format": "pt", "by": "\u00fc"}))
        save_file(shuffled, folder / SAFE, metadata=metadata)
    elif kind in ("shards", "pickles"):
        return _shards(folder, shuffled, SAFE if kind == "shards" else PICKLE, random)
    elif kind == "deflated":
        stored = io.BytesIO()
        torch.save(shuffled, stored)
        with zipfile.ZipFile(stored) as old, zipfile.ZipFile(folder / PICKLE, "w", 8) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
    else:
        state: Any = {"state_dict": shuffled, "epoch": 3} if kind == "nested" else shuffled
        torch.save(state, folder / PICKLE, _use_new_zipfile_serialization=kind != "old")
    return kind


def _shards(folder: Path, tensors: Tensors, kind: str, random: Random) -> str:
    stem, _, ending = kind.partition(".")
    count = random.randint(1, 5)
    files = [f"{stem}-{i:05}-of-{count:05}.{ending}" for i in range(1, count + 1)]
    places = {name: random.choice(files) for name in tensors}
    for file in sorted(set(places.values())):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        write = save_file if ending == "safetensors" else torch.save
        write(part, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{kind}.index.json").write_text(json.dumps(index, indent=random.choice((None, 2))))
    return f"{count} {ending} files"


def _json(path: Path, more: dict[str, Any], random: Random) -> str:
    """The same object in another order and form, with fields that change nothing."""
    value = json.loads(path.read_text())
    for name in random.sample(sorted(more), random.randrange(len(more))):
        value.setdefault(name, more[name])
    names = list(value)
    random.shuffle(names)
    text = json.dumps(
        {name: value[name] for name in names},
        indent=random.choice((None, 0, 2)),
        ensure_ascii=random.random() < 0.5,
    )
    path.write_text(random.choice(("", "\n", "  ")) + text + random.choice(("", "\n\n")), "utf-8")
    return f"{path.name} in another order"


def _lines(path: Path, random: Random) -> str:
    text = path.read_text("utf-8")
    kind = random.choice(("CRLF", "no last line break"))
    text = text.replace("\n", "\r\n") if kind == "CRLF" else text.removesuffix("\n")
    path.write_bytes(text.encode())
    return kind
