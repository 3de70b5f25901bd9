"""Three pairs of sentences of three lengths, their answers, and a random model that reads them."""

import torch

from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens

LAYERS, HEADS, VOCABULARY = 3, 2, 41
# Sentences of three lengths, each with a partner of its own length.
CLEAN = [[3, 17, 5, 22, 9], [11, 4, 30], [7, 8, 2, 40, 1, 6, 12]]
CORRUPT = [[3, 18, 5, 21, 9], [12, 4, 31], [7, 9, 2, 39, 1, 6, 13]]
RIGHT, WRONG = [5, 11, 23], [7, 2, 19]


def model() -> Model:
    config = Config(
        family="gpt2",
        task="causal-lm",
        vocab_size=VOCABULARY,
        n_positions=7,
        n_layers=LAYERS,
        n_heads=HEADS,
        d_model=10,
        d_mlp=13,
        causal=True,
    )
    made = Model.from_config(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in made.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return made.double()


def batch(sentences: list[list[int]]) -> Tokens:
    """Sentences of several lengths, filled up with padding."""
    longest = max(map(len, sentences))
    ids = [sentence + [0] * (longest - len(sentence)) for sentence in sentences]
    mask = [[n < len(sentence) for n in range(longest)] for sentence in sentences]
    return Tokens.from_ids(ids, mask=mask)
