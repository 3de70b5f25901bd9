"""Small honest checkpoints of every family, written by transformers in every kind of file.

The siege makes hostile ones of them. Which of a family's architectures is taken, the seed says.
"""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from checkpoint import small_families
from families import ARCHITECTURES as OLDER
from families import Sizes
from families import hf_config as older_config
from rotary.classes import ARCHITECTURES as ROTARY
from safetensors.torch import load_file, save_file

import minibert
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from tests.vocabularies import BERT_MARKS, byte_level, sentence_piece, word_piece

SAFE, PICKLE = "model.safetensors", "pytorch_model.bin"
ARCHITECTURES: dict[str, list[str]] = {}
for _family, _name in (*OLDER, *ROTARY):
    ARCHITECTURES.setdefault(_family, []).append(_name)
# What the siege predicts and generates with, and has in all kinds of files.
FIXED = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
# Their logits are one tensor.
HEADS = ("LM", "SequenceClassification", "TokenClassification")

# Filled by `make`, once, before the first case.
folders: list[Path] = []
models: dict[str, Model] = {}
traces: dict[str, list[Path]] = {}
vocabularies: list[Path] = []


def make(root: Path, seed: int) -> None:
    """Make the material below `root`: folders, models, files of traces, and vocabularies."""
    torch.manual_seed(seed % 2**32)
    folders.extend(_folders(root, Random(seed)))
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


def _folders(root: Path, random: Random) -> list[Path]:
    words = root / "words"
    words.mkdir()
    vocabulary = word_piece(words)
    found = []
    for family, names in ARCHITECTURES.items():
        usual = [name for name in names if name.endswith(HEADS)] or names
        folder = root / family.replace("-", "")
        folder.mkdir()
        if family == "gpt2":
            byte_level(folder, ["<|endoftext|>"])
        else:
            json_of_it = Tokenizer.from_folder(vocabulary).to_json()
            (folder / "tokenizer.json").write_text(json_of_it, "utf-8")
        _write(folder, family, FIXED.get(family) or random.choice(usual))
        found += [folder, *(_in_other_files(folder, root) if family in FIXED else [])]
    (root / "bert" / "tokenizer.json").unlink()
    shutil.copy(vocabulary / "vocab.txt", root / "bert")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (root / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
    marks = json.dumps({"mask_token": BERT_MARKS[4]})
    (root / "bert" / "special_tokens_map.json").write_text(marks)
    (root / "gpt2" / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    return found


def _write(folder: Path, family: str, name: str) -> None:
    """A model of that architecture in the folder, as large as the vocabulary that is there."""
    sizes = Sizes(layers=2, heads=2, segments=1 if "rob" in family or "camem" in family else 2)
    if family in small_families.FAMILIES:
        config: Any = small_families.hf_config(family)
    else:
        config = older_config(family, sizes)
    config.vocab_size = Tokenizer.from_folder(folder).vocab_size
    config.is_decoder = name in ("BertLMHeadModel", "RobertaForCausalLM", "ElectraForCausalLM")
    model = getattr(transformers, name)._from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)


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
