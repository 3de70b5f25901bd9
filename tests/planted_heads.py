"""Models whose weights are set by hand, so that it is known what each head does.

The stream is made of one-hot slots: which token, at which position, and (GPT-2) which token came
before. Every vector has the same number of ones, so LayerNorm is the same affine map everywhere,
and what it adds to a row of scores is one constant. Where heads are scaled or taken away (language
models), a ballast much longer than everything else keeps LayerNorm from noticing.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from minibert.layers.config import Config
from minibert.model import Model

TOKENS, POSITIONS = 61, 103
# Far above what 103 keys at a score of 0 weigh together.
SHARPNESS = 30.0
DELIMITER = 2


# Where in the stream each one-hot stands.
TOKEN = slice(0, TOKENS)
POSITION = slice(TOKENS, TOKENS + POSITIONS)
BEFORE = slice(TOKENS + POSITIONS, 2 * TOKENS + POSITIONS)
NEXT = slice(BEFORE.stop, BEFORE.stop + TOKENS)
# What the heads of a language model write that nobody reads.
MARK = slice(NEXT.stop, NEXT.stop + TOKENS)
SEEN = slice(MARK.stop, MARK.stop + TOKENS)
EARLIER = slice(SEEN.stop, SEEN.stop + POSITIONS)
BALLAST = slice(EARLIER.stop, EARLIER.stop + 2)
WEIGHT = 30.0


def blank(config: Config) -> Model:
    """Every weight 0 but the embeddings and the norms: each head looks everywhere alike."""
    model = Model.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    body: nn.Module = model.body
    body.word.weight[:, TOKEN] = torch.eye(TOKENS)
    body.position.weight[:, POSITION] = torch.eye(POSITIONS)
    return model


def spread(config: Config, ones: int, ballast: float = 0.0) -> float:
    """The standard deviation of a stream with so many ones, which LayerNorm divides by."""
    share = ones / config.d_model
    return (share - share**2 + 2 * ballast**2 / config.d_model) ** 0.5


class Planter:
    """Sets the weights of one head. Slots of its query and key meet where they have one index."""

    def __init__(
        self, model: Model, layer: int, head: int, *, ones: int, ballast: float = 0.0
    ) -> None:
        config = model.config
        self.attention = model.body.layers[layer].attention
        self.rows = slice(head * config.d_head, (head + 1) * config.d_head)
        plain = config.pre_norm or layer == 0
        self.norm = spread(config, ones, ballast) if plain else 1.0
        self.sharpness = SHARPNESS / config.attention_scale(layer)
        self.model = model

    def query(self, first: int, reads: slice, pattern: Tensor, *, sign: float = 1.0) -> None:
        """Slots of the query from `first` on: sharpness · sign · pattern · stream[reads]."""
        end = self.rows.start + first + len(pattern)
        block = sign * self.sharpness * self.norm * pattern
        self.attention.query.weight[self.rows.start + first : end, reads] = block

    def constant_query(self, slot: int) -> None:
        """A slot of the query that is `sharpness` in every row."""
        self.attention.query.bias[self.rows.start + slot] = self.sharpness

    def key(self, first: int, reads: slice, pattern: Tensor) -> None:
        """Slots of the key from `first` on: pattern · stream[reads]."""
        end = self.rows.start + first + len(pattern)
        self.attention.key.weight[self.rows.start + first : end, reads] = self.norm * pattern

    def copy(self, reads: slice, writes: slice) -> None:
        """The head writes what it reads at the key into other slots of the stream."""
        size = reads.stop - reads.start
        columns = slice(self.rows.start, self.rows.start + size)
        self.attention.value.weight[columns, reads] = self.norm * torch.eye(size)
        self.attention.output.weight[writes, columns] = torch.eye(size)

    def offset(self, by: int) -> None:
        """Position i looks at i + by."""
        # Row j of the query is 1 where the position is j - by.
        self.query(0, POSITION, torch.eye(POSITIONS).roll(by, 0) * _edge(by))
        self.key(0, POSITION, torch.eye(POSITIONS))

    def delimiter(self) -> None:
        """Every position looks at the delimiters."""
        self.constant_query(0)
        self.key(0, TOKEN, torch.eye(TOKENS)[DELIMITER, None])

    def duplicate(self) -> None:
        """A token looks at itself, earlier; its own position counts against it."""
        self.query(0, TOKEN, torch.eye(TOKENS))
        self.key(0, TOKEN, torch.eye(TOKENS))
        self.query(TOKENS, POSITION, torch.eye(POSITIONS), sign=-1)
        self.key(TOKENS, POSITION, torch.eye(POSITIONS))

    def induction(self) -> None:
        """A token looks behind itself, earlier: where it is the token before."""
        self.query(0, TOKEN, torch.eye(TOKENS))
        self.key(0, BEFORE, torch.eye(TOKENS))
        # Position 0 has nothing before it and copied itself.
        self.constant_query(TOKENS)
        self.key(TOKENS, POSITION, -torch.eye(POSITIONS)[:1])


def _edge(by: int) -> Tensor:
    """0 in the rows that `roll` filled from the other end."""
    rows = torch.arange(POSITIONS) - by
    return ((rows >= 0) & (rows < POSITIONS)).float()[:, None]


def planted_gpt2() -> Model:
    """0-0 previous token, 0-1 delimiter, 1-0 duplicate token, 1-1 induction."""
    n_heads, d_head = 2, TOKENS + POSITIONS
    model = blank(
        Config(
            family="gpt2",
            task="none",
            vocab_size=TOKENS,
            n_positions=POSITIONS,
            n_layers=2,
            n_heads=n_heads,
            d_model=n_heads * d_head,
            d_mlp=3,
            causal=True,
        )
    )
    previous = Planter(model, 0, 0, ones=2)
    previous.offset(-1)
    previous.copy(TOKEN, BEFORE)
    Planter(model, 0, 1, ones=2).delimiter()
    Planter(model, 1, 0, ones=3).duplicate()
    Planter(model, 1, 1, ones=3).induction()
    return model


def planted_language_model() -> Model:
    """Says what came after this token the last time; every head writes, and who reads it is known.

    0-0 previous token, 0-1 delimiter, 0-2 everywhere alike; 1-0 duplicate token, 1-1 induction.
    The others are blank.
    """
    model = _language_model(n_heads=4)
    previous, delimiter, everywhere, _ = _planters(model, 0)
    previous.offset(-1)
    previous.copy(TOKEN, BEFORE)
    delimiter.delimiter()
    delimiter.copy(TOKEN, MARK)
    everywhere.copy(TOKEN, SEEN)
    duplicate, induction, *_ = _planters(model, 1)
    duplicate.duplicate()
    duplicate.copy(POSITION, EARLIER)
    induction.induction()
    induction.copy(TOKEN, NEXT)
    return model


def planted_chain() -> Model:
    """The same with one head a layer: 0-0 previous token, 1-0 induction."""
    model = _language_model(n_heads=1)
    [previous], [induction] = _planters(model, 0), _planters(model, 1)
    previous.offset(-1)
    previous.copy(TOKEN, BEFORE)
    induction.induction()
    induction.copy(TOKEN, NEXT)
    return model


def without_head(model: Model, layer: int, head: int) -> Model:
    """The model, that head blank."""
    attention = model.body.layers[layer].attention
    rows = slice(head * model.config.d_head, (head + 1) * model.config.d_head)
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[rows] = 0
        linear.bias[rows] = 0
    attention.output.weight[:, rows] = 0
    return model


def _language_model(n_heads: int) -> Model:
    d_model = 4 * (TOKENS + POSITIONS)
    shape = {"n_layers": 2, "n_heads": n_heads, "d_model": d_model, "d_mlp": 3}
    config = Config("gpt2", "causal-lm", TOKENS, POSITIONS, **shape, causal=True)
    model = blank(replace(config, tied=False))
    model.body.position.weight[:, BALLAST] = torch.tensor([WEIGHT, -WEIGHT])
    model.head.decoder.weight[:, NEXT] = SHARPNESS * torch.eye(TOKENS)
    return model


def _planters(model: Model, layer: int) -> list[Planter]:
    heads = range(model.config.n_heads)
    return [Planter(model, layer, head, ones=2 + layer, ballast=WEIGHT) for head in heads]


def planted_bert() -> Model:
    """One layer: 0-0 previous token, 0-1 next token, 0-2 delimiter, 0-3 everywhere alike."""
    n_heads = 4
    model = blank(
        Config(
            family="bert",
            task="none",
            vocab_size=TOKENS,
            n_positions=POSITIONS,
            n_layers=1,
            n_heads=n_heads,
            d_model=n_heads * POSITIONS,
            d_mlp=3,
        )
    )
    Planter(model, 0, 0, ones=2).offset(-1)
    Planter(model, 0, 1, ones=2).offset(1)
    Planter(model, 0, 2, ones=2).delimiter()
    return model
