"""What the scripts are given, in the numbers that minibert draws; not counted as lines.

The first argument of a script is the folder of the model, the second a folder that
benchmarks/examples.py fills: pairs.json has the sentences, and second/ the other checkpoint of two.
"""

import json
import math
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

LIST = " river window summer horse garden letter morning river window summer"
OTHER_LIST = " river window garden horse summer letter morning river window summer"


def model_folder() -> str:
    """Where the model lies."""
    return sys.argv[1]


def second_folder() -> str:
    """Where the other checkpoint of the model lies."""
    return f"{sys.argv[2]}/second"


def pairs() -> list[tuple[str, str]]:
    """Pairs of sentences."""
    return [(one, other) for one, other in json.loads(Path(sys.argv[2], "pairs.json").read_text())]


def treebank(part: str) -> Path:
    """A file of English EWT."""
    folder = Path(os.environ["MINIBERT_TEST_DATA"], "text", "ud-english-ewt")
    return folder / f"en_ewt-ud-{part}.conllu"


def repeats(length: int, draws: int) -> Tensor:
    """The sequences of minibert's draws_for: different random tokens, and the same again."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(f"{model_folder()}/tokenizer.json")
    added = words.get_added_tokens_decoder()
    usable = torch.tensor([i for i in range(words.get_vocab_size()) if i not in added])
    generator = torch.Generator().manual_seed(0)
    half = torch.stack(
        [usable[torch.randperm(len(usable), generator=generator)[:length]] for _ in range(draws)]
    )
    return torch.cat((half, half), 1)


def noises(samples: int, *shape: int) -> Tensor:
    """Normal numbers (sample, ...), those of minibert's noise(0), noise(1), ... on `embed`."""
    drawn = []
    for seed in range(samples):
        letters = enumerate("embed None None")
        mixed = seed * 1_000_003 + sum(ord(letter) * 31**n for n, letter in letters)
        generator = torch.Generator().manual_seed(mixed % 2**63)
        size, angle = torch.rand((*shape, 2), generator=generator, dtype=torch.float64).unbind(-1)
        drawn.append((-2 * torch.log1p(-size)).sqrt() * (2 * math.pi * angle).cos())
    return torch.stack(drawn).float()


def head_weights(labels: int, width: int) -> Tensor:
    """The first weights (label, width) of a classifier, those of load(..., head_seed=0)."""
    generator = torch.Generator().manual_seed(0)
    return torch.zeros(labels, width).normal_(0.0, 0.02, generator=generator)
