"""Texts with a grammar, and the smallest models that training makes of them."""

import random
from pathlib import Path
from typing import Any

import torch

from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.training import Document, Recipe, train
from minibert.training.texts import clean

SUBJECTS = ("the rabbit", "a queen", "the old king", "my sister", "a small dog", "her friend")
VERBS = ("saw", "followed", "loved", "lost", "found", "carried", "heard")
OBJECTS = ("the river", "a golden key", "the garden", "an apple", "the quiet house", "a letter")
TAILS = ("at night", "in the morning", "without a word", "near the wood", "again and again")


def story(seed: int = 0, paragraphs: int = 40) -> str:
    """A text of paragraphs of one to five sentences, the same for the same seed."""
    draw = random.Random(seed)

    def sentence() -> str:
        words = [draw.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, TAILS)]
        return " ".join(words).capitalize() + draw.choice(".!?")

    counts = [draw.randint(1, 5) for _ in range(paragraphs)]
    return "\n\n".join(" ".join(sentence() for _ in range(count)) for count in counts)


def documents(*seeds: int) -> tuple[Document, ...]:
    return tuple(Document(f"story {seed}", clean(story(seed))) for seed in seeds)


def story_files(folder: Path, *seeds: int) -> list[str]:
    paths = [folder / f"story-{seed}.txt" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        path.write_text(story(seed), encoding="utf-8")
    return [str(path) for path in paths]


TEXTS, UNSEEN = documents(1, 2, 3), documents(11, 12)
SIZES = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_mlp": 64}


# The same for the command line.
SMALL = (
    *("--layers", "2", "--heads", "4", "--width", "32", "--positions", "32"),
    *("--vocabulary", "331", "--batch", "4", "--steps", "6"),
    *("--set", "log_every=3", "--set", "save_every=2", "--set", "warm_up=2"),
)


def llama(**changes: Any) -> Config:
    shape = {"vocab_size": 331, "n_positions": 32, **SIZES, "n_kv_heads": 2, "rotary": Rotary(8)}
    chosen = {"causal": True, "norm_eps": 1e-5, "activation": "silu"}
    return Config(**{"family": "llama", "task": "causal-lm", **shape, **chosen, **changes})


def gpt2(**changes: Any) -> Config:
    shape = {"vocab_size": 331, "n_positions": 32, **SIZES}
    chosen = {"causal": True, "norm_eps": 1e-5, "activation": "gelu_tanh"}
    return Config(**{"family": "gpt2", "task": "causal-lm", **shape, **chosen, **changes})


def bert(task: str = "pre-training", **changes: Any) -> Config:
    shape = {"vocab_size": 307, "n_positions": 32, **SIZES}
    chosen = {"n_segments": 2, "pad_id": 0, "pooler": task == "pre-training"}
    return Config(**{"family": "bert", "task": task, **shape, **chosen, **changes})


# What each further family needs beside the sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "distilbert": {"n_segments": 0},
    "electra": {"n_segments": 2, "d_embed": 16},
    "albert": {"n_segments": 2, "d_embed": 16, "n_layer_groups": 1, "activation": "gelu_tanh"},
}


def masked_lm(family: str) -> Config:
    return bert("masked-lm", family=family, **FAMILIES.get(family, {}))


def recipe(**changes: Any) -> Recipe:
    numbers = {"steps": 6, "batch": 4, "log_every": 3, "save_every": 2, "warm_up": 2}
    return Recipe(**{**numbers, "bfloat16": False, **changes})


def run(folder: Path, **changes: Any) -> Model:
    """A whole small run into the folder."""
    arguments = {"texts": TEXTS, "held_out": UNSEEN, "config": gpt2(), "recipe": recipe()}
    chosen = {**arguments, "note": lambda entry: None, **changes}
    return train(chosen.pop("texts"), chosen.pop("held_out"), folder, **chosen)


def same_weights(one: Model, other: Model) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
