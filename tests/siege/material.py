"""Small honest checkpoints, in every kind of file; the siege makes hostile ones of them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import minibert
from minibert.checkpoint.save import save
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from tests.vocabularies import BERT_MARKS, byte_level, sentence_piece, word_piece

SAFE, PICKLE = "model.safetensors", "pytorch_model.bin"
FAMILIES = {
    "bert": ("masked-lm", {"n_segments": 2, "pooler": False}),
    "roberta": ("masked-lm", {"n_segments": 1, "position_offset": 2, "pad_id": 1}),
    "distilbert": ("sequence-classification", {"labels": ("no", "yes")}),
    "electra": ("pre-training", {"n_segments": 2, "d_embed": 4}),
    "albert": ("masked-lm", {"n_segments": 2, "d_embed": 4, "n_layer_groups": 1}),
    "gpt2": ("causal-lm", {"causal": True, "norm_eps": 1e-5, "activation": "gelu_tanh"}),
}


# Filled by `make`, once, before the first case.
folders: list[Path] = []
models: dict[str, Model] = {}
traces: dict[str, list[Path]] = {}
vocabularies: list[Path] = []


def make(root: Path) -> None:
    """Make the material below `root`: folders, models, files of traces, and vocabularies."""
    folders.extend(_folders(root))
    for name in ("bert", "gpt2"):
        models[name] = minibert.load(root / name)
        whole = models[name].trace(["The quick fox", "jumps"])
        early = models[name].trace("The fox", until=1, keep=("probs",))
        traces[name] = [
            trace.save(root / f"{name}-{i}.trace") for i, trace in enumerate((whole, early))
        ]
    for kind in (sentence_piece, word_piece):
        folder = root / kind.__name__
        folder.mkdir()
        vocabularies.append(kind(folder))
    vocabularies.extend(root / name for name in ("bert", "gpt2", "roberta", "electra"))


def _folders(root: Path) -> list[Path]:
    words = root / "words"
    words.mkdir()
    vocabulary = word_piece(words)
    tokenizer = Tokenizer.from_folder(vocabulary)
    found = []
    for family, (task, choices) in FAMILIES.items():
        config = Config(
            family=family,
            task=task,
            vocab_size=tokenizer.vocab_size,
            n_positions=16,
            n_layers=2,
            n_heads=2,
            d_model=6,
            d_mlp=8,
            **choices,
        )
        folder = save(Model.from_config(config, tokenizer=tokenizer), root / family)
        found += [folder, *_in_other_files(folder, root)]
    (found[0] / "tokenizer.json").unlink()
    shutil.copy(vocabulary / "vocab.txt", found[0])
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (found[0] / "tokenizer_config.json").write_text(json.dumps(settings))
    (found[0] / "special_tokens_map.json").write_text(json.dumps({"mask_token": BERT_MARKS[4]}))
    gpt2 = root / "gpt2"
    (gpt2 / "tokenizer.json").unlink()
    byte_level(gpt2, ["<|endoftext|>"])
    about = json.loads((gpt2 / "config.json").read_text())
    count = Tokenizer.from_folder(gpt2).vocab_size
    if count > about["vocab_size"]:
        tensors = load_file(gpt2 / SAFE)
        more = count - about["vocab_size"]
        for name in tensors:
            if name.endswith("wte.weight"):
                tensors[name] = torch.cat((tensors[name], torch.zeros(more, 6)))
        save_file(tensors, gpt2 / SAFE)
        (gpt2 / "config.json").write_text(json.dumps(about | {"vocab_size": count}))
    (gpt2 / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    return found


def _in_other_files(folder: Path, root: Path) -> list[Path]:
    tensors = load_file(folder / SAFE)
    made = []
    for kind in ("zip", "old", "shards", "pickles"):
        copy = root / f"{folder.name}-{kind}"
        shutil.copytree(folder, copy)
        (copy / SAFE).unlink()
        if kind in ("zip", "old"):
            torch.save(tensors, copy / PICKLE, _use_new_zipfile_serialization=kind == "zip")
        else:
            _write_shards(copy, tensors, SAFE if kind == "shards" else PICKLE)
        made.append(copy)
    return made


def _write_shards(folder: Path, tensors: dict[str, torch.Tensor], kind: str) -> None:
    stem, _, ending = kind.partition(".")
    names = [f"{stem}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    parts = list(tensors.items())
    half = len(parts) // 2
    for name, part in zip(names, (dict(parts[:half]), dict(parts[half:])), strict=True):
        write = save_file if ending == "safetensors" else torch.save
        write(part, folder / name)
    index = {"weight_map": {name: names[i >= half] for i, (name, _) in enumerate(parts)}}
    (folder / f"{kind}.index.json").write_text(json.dumps(index))
