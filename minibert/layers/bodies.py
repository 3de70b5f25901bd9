"""A model around its layers: embeddings, where there is one a last norm, and the task heads.

Each head is called with (hidden, pooled, ids, mask) and returns its logits; `pooled` is
tanh(W·hidden[0] + b) where the body has a pooler. `build_head` picks the one a Config asks for.

What differs between families is in the Config: a table of positions or rotation, segments, norms,
a projection after the embeddings, layers that share their weights. Sources: Devlin et al. 2019;
Liu et al. 2019 (RoBERTa); Sanh et al. 2019 (DistilBERT); Clark et al. 2020 (ELECTRA); Lan et al.
2020 (ALBERT); Radford et al. 2019 (GPT-2); Black et al. 2022 (GPT-NeoX); Touvron et al. 2023
(Llama); Jiang et al. 2023 (Mistral); Gemma Team 2024; Warner et al. 2024 (ModernBERT).

`StackedWeights` has the weights of all layers of one kind in one tensor, by the names of the
literature, in the convention of Elhage et al. 2021: the stream is a row x and weights act on it
from the right, query = x·W_Q + b_Q. The axes:

    W_Q W_K W_V     layer head d_model d_head         b_Q b_K b_V    layer head d_head
    W_O             layer head d_head d_model         b_O            layer d_model
    W_in W_gate     layer d_model d_mlp               b_in b_gate    layer d_mlp
    W_out           layer d_mlp d_model               b_out          layer d_model
    W_E             vocab d_model                     W_pos          position d_model
    W_U             d_model vocab                     b_U            vocab

What a family multiplies in is in them: W_E is scaled in Gemma and Granite, W_O, W_out, b_O and
b_out are by Granite's residual_multiplier, and W_U is divided by its logits_scaling. W_K and W_V
have the key-value heads. In a model whose embeddings are narrower than its stream, W_E has their
width. W_pos begins with the rows that RoBERTa reserves.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError
from minibert.kernels.eager import soft_capped
from minibert.layers.config import FAMILIES, Config, discriminates
from minibert.layers.dropout import dropped
from minibert.layers.finite import check_stream
from minibert.layers.linear import (
    Embedding,
    Linear,
    dtype_of,
    held,
    matrix_of,
    offset_of,
    read_only,
)
from minibert.layers.parts import Divisors, Layer, Norm, normed
from minibert.quantities import Float, Hidden, Int, Logits, Pooled, TokenIds, TokenMask

Positions = Int[torch.Tensor, "#batch position"]


class Body(nn.Module):
    """Embeddings and layers of a Config, the weights without values yet."""

    dropout = 0.0
    """The share of the embeddings that becomes 0 in training."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.d_embed
        rows = config.n_positions + config.position_offset
        self.word = Embedding(config.vocab_size, width)
        has_table = config.positions in ("learned", "shortformer")
        self.position = Embedding(rows, width) if has_table else None
        self.segment = Embedding(config.n_segments, width) if config.n_segments else None
        self.embed_norm = Norm(config, width) if config.embed_norm else None
        projects = width != config.d_model or config.family == "albert"
        self.embed_project = Linear(width, config.d_model) if projects else None
        self.groups = nn.ModuleList(Layer(config, n) for n in range(config.n_layer_groups))
        if config.positions == "shortformer":
            for layer in self.groups:
                cast(Layer, layer).attention.position_table = partial(getattr, self, "position")
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None
        self.final_norm = Norm(config, config.d_model) if config.final_norm else None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; ALBERT names the same one several times."""
        groups = tuple(self.groups)
        share = self.config.n_layers / len(groups)
        return tuple([groups[int(n / share)] for n in range(self.config.n_layers)])  # type: ignore[misc]

    def embed(
        self, ids: TokenIds, segments: TokenIds | None, positions: Positions | None = None
    ) -> Hidden:
        """What enters layer 0: word (+ segment) (+ position), a norm and a projection if there are.

        `positions` are rows of the position table.
        """
        summed = self.word(ids)
        if self.config.embed_scaled:
            # Rounded to the weights' type first, as Gemma was trained.
            summed = summed * torch.tensor(self.config.d_model**0.5, dtype=summed.dtype)
        if self.config.embed_multiplier != 1.0:
            summed = summed * self.config.embed_multiplier
        if self.segment is not None:
            chosen = self.segment.weight[0] if segments is None else self.segment(segments)
            summed = summed + chosen
        if self.added_positions is not None:
            rows = self.positions(ids) if positions is None else positions
            summed = summed + self.added_positions(rows)
        if self.embed_norm is not None:
            if not self.training:
                check_stream(summed, what="sum of embeddings")
            summed = self.embed_norm(summed)
        summed = dropped(summed, self.dropout) if self.training else summed
        return summed if self.embed_project is None else self.embed_project(summed)

    @property
    def added_positions(self) -> Embedding | None:
        """The table of positions where its rows are added to the embeddings."""
        return self.position if self.config.positions == "learned" else None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return dtype_of(self.word)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(held(self.word)).device

    @property
    def word_scale(self) -> float:
        """What the rows of `word` are multiplied by, as `embed` rounds it."""
        if not self.config.embed_scaled:
            return self.config.embed_multiplier
        scale = torch.tensor(self.config.d_model**0.5, dtype=self.dtype)
        return scale.item() * self.config.embed_multiplier

    @property
    def W_E(self) -> Float[torch.Tensor, "vocab d_embed"]:  # noqa: N802
        """What each word adds to the embedding, the scale of a family that has one included."""
        scale = self.word_scale
        weight = self.word.table if isinstance(self.word, Embedding) else self.word.weight
        return weight if scale == 1.0 else read_only(weight * scale, f"W_E, a weight * {scale:g}")

    @property
    def W_pos(self) -> Float[torch.Tensor, "position d_embed"] | None:  # noqa: N802
        """What each position adds to it; None without a table of positions."""
        return None if self.position is None else self.position.weight

    def positions(self, ids: TokenIds) -> Positions:
        """The row of the position table that each token has."""
        if not self.config.position_offset:
            return torch.arange(ids.shape[1], device=ids.device)[None]
        # RoBERTa counts real tokens only; padding keeps the reserved row padding_idx.
        padding = self.config.position_offset - 1
        real = (ids != padding).long()
        return real.cumsum(1) * real + padding

    def final(self, hidden: Hidden, divisors: Divisors | None = None) -> Hidden:
        """The hidden state that the task head reads: the stream, or the last norm of it.

        `divisors` are those of the norm, where they are not its own.
        """
        return normed(self.final_norm, hidden, divisors)


class AbsentWeightError(CheckpointError, KeyError):
    """A weight that a model does not have; a KeyError too, so that `in` and `get` work."""

    # That of KeyError shows the quotes and escapes of a key.
    __str__ = Exception.__str__


class StackedWeights(Mapping[str, Tensor]):
    """`model.weights["W_Q"]`: the weights of all layers as they are when they are read.

    A stack over layers is a copy, made each time, which cannot be written: CheckpointError. W_E,
    W_pos, W_U and b_U are views of the model's memory, which can, where nothing is multiplied in.
    Nothing here has a gradient.
    """

    def __init__(self, body: Body, head: nn.Module | None) -> None:
        self._body, self._head = body, head

    def __getitem__(self, name: str) -> Tensor:
        """The weights of that name; AbsentWeightError, which is a KeyError, without one."""
        weights = self._weights()
        if name not in weights:
            raise AbsentWeightError(f"no weight {name!r:.80}; there are {', '.join(weights)}.")
        return weights[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights())

    def __len__(self) -> int:
        return len(self._weights())

    def __repr__(self) -> str:
        return f"<weights {', '.join(self)}>"

    def _weights(self) -> dict[str, Callable[[], Tensor]]:
        """How each weight of this model is made, by name."""
        body, head = self._body, self._head
        found: dict[str, Callable[[], Tensor]] = {}
        for part, names in _OF_LAYERS.items():
            for name in names:
                if getattr(getattr(body.layers[0], part), name, None) is not None:
                    found[name] = partial(self._stack, part, name)
        for holder, names in ((body, ("W_E", "W_pos")), (head, ("W_U", "b_U"))):
            for name in names:
                if getattr(holder, name, None) is not None:
                    found[name] = getattr(holder, name).detach
        return found

    def _stack(self, part: str, name: str) -> Tensor:
        """One weight of every layer; of layers that share it, as often as it is used."""
        each = [getattr(getattr(layer, part), name).detach() for layer in self._body.layers]
        return read_only(torch.stack(each), f"{name} of all layers")


_OF_LAYERS = {
    "attention": ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O"),
    "mlp": ("W_in", "b_in", "W_gate", "b_gate", "W_out", "b_out"),
}


class TaskHead(nn.Module):
    """What every head has: a forward from the hidden state to logits."""

    reads = "each"
    """Which hidden states it reads, `each` by itself; see `_read_by_classifier`."""
    dropout = 0.0
    """The share of what the classifier reads that becomes 0 in training."""

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """The logits of this head."""
        raise NotImplementedError


class VocabularyHead(TaskHead):
    """One logit a vocabulary entry at each position (masked or causal language model).

    decoder(norm(activation(W·hidden + b))); a model that generates, such as GPT-2, has the decoder
    alone. In BERT's and ALBERT's pre-training there is a second head, of sentences.
    """

    large = ("decoder",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        family = FAMILIES[config.family]
        alone = config.generates or family.plain_head
        width = config.d_embed if family.narrow_head else config.d_model
        self.width, bias = width, config.head_bias
        self.transform = None if alone else Linear(config.d_model, width, bias=bias)
        self.norm = None if alone else Norm(config, width)
        self.decoder = Linear(
            width,
            config.n_logits,
            bias=config.decoder_bias and (family.plain_head or not alone),
            multiplier=1 / config.logits_divisor,
        )
        self.activation = family.head_activation or config.head_activation
        self.soft_cap = config.logit_soft_cap
        n_orders = config.n_labels if family.orders_sentences else 2
        pairs = config.task == "pre-training"
        self.next_sentence = Linear(config.d_model, n_orders) if pairs else None

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, position, vocab)."""
        return soft_capped(self.uncapped(hidden), self.soft_cap)

    def uncapped(self, hidden: Hidden) -> Logits:
        """The logits before the soft cap."""
        return self.decoder(self.decoder_input(hidden))

    @property
    def W_U(self) -> Float[Tensor, "width vocab"]:  # noqa: N802
        """uncapped = decoder_input·W_U + b_U, what the family divides logits by included."""
        return matrix_of(self.decoder, self.width)

    @property
    def b_U(self) -> Float[Tensor, " vocab"] | None:  # noqa: N802
        """None where the decoder has no bias."""
        return offset_of(self.decoder, self.width)

    def decoder_input(self, hidden: Hidden) -> Float[Tensor, "batch position width"]:
        """What the decoder reads."""
        if self.transform is None or self.norm is None:
            return hidden
        return self.norm(self.transform(hidden, activation=self.activation))


class ClassifierHead(TaskHead):
    """Classes of a text or token, start and end of an answer, or whether a token was replaced.

    classifier(norm(activation(W·x + b))) of the hidden states x that it reads. RoBERTa, ELECTRA and
    DistilBERT have no norm there, most others read x itself.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        family, width = FAMILIES[config.family], config.d_model
        replaced = discriminates(config.family, config.task)
        layer, self.reads = family.classifier_layer, _read_by_classifier(config)
        of_first = self.reads == "first" and not layer
        self.transform = self.norm = None
        if layer or of_first or replaced:
            self.transform = Linear(width, width, bias=config.head_bias)
        if layer:
            self.norm = Norm(config, width)
        self.activation = config.activation if replaced else config.head_activation
        if of_first and family.first_activation is not None:
            self.activation = family.first_activation
        n_out = 2 if config.task in ("next-sentence", "question-answering") else config.n_labels
        self.classifier = Linear(width, 1 if replaced else n_out, bias=self.reads != "last")
        self.pad_id, self.replaced = config.pad_id, replaced
        self.drops = not replaced and self.reads != "last"
        # DistilBERT drops once, the others in front of the first matrix too.
        self.drops_twice = of_first and config.family != "distilbert"

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label) of a text; of tokens (batch, position, label), or (batch, position)."""
        x = pooled if self.reads == "pooled" else self._read(hidden, ids, mask)
        if x is None:
            raise ValueError("this head reads the pooled first token, and the body has no pooler")
        x = self._dropped(x) if self.drops_twice else x
        x = x if self.transform is None else self.transform(x, activation=self.activation)
        x = x if self.norm is None else self.norm(x)
        logits = self.classifier(self._dropped(x) if self.drops else x)
        return logits.squeeze(-1) if self.replaced else logits

    def _dropped(self, x: Tensor) -> Tensor:
        return dropped(x, self.dropout) if self.training else x

    def _read(
        self, hidden: Hidden, ids: TokenIds, mask: TokenMask | None
    ) -> Float[Tensor, "batch *position d_model"]:
        if self.reads == "each":
            return hidden
        if self.reads == "first":
            return hidden[:, 0]
        if self.reads == "mean":
            if mask is None:
                return hidden.mean(1)
            weights = mask[..., None].to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1)
        # The last by the padding id, as in transformers, and by the mask, which knows better.
        real = mask
        if self.pad_id is not None:
            real = (ids != self.pad_id) if mask is None else (ids != self.pad_id) & mask
        position = torch.arange(ids.shape[1], device=ids.device)
        last = position[None, -1:] if real is None else (position * real).argmax(-1, keepdim=True)
        rows = torch.arange(len(ids), device=ids.device)
        return hidden[rows, last.expand(len(ids), 1)[:, 0]]


def _read_by_classifier(config: Config) -> str:
    """each | last (of the real tokens) | first | mean | pooled (the pooler's output)."""
    family, task = FAMILIES[config.family], config.task
    if task in ("pre-training", "token-classification", "question-answering"):
        return "each"
    if config.decodes:
        return "last"
    if family.classifier_layer:
        return config.pooling
    if config.pooler:
        return "pooled"
    if family.first_activation is None:
        raise CheckpointError(
            f"The head of task {task!r} reads a pooled first token, and this {config.family} has "
            "pooler=False; set pooler=True."
        )
    return "first"


def build_head(config: Config) -> TaskHead | None:
    """The head of config.task; None for a bare body."""
    if config.task == "none":
        return None
    of_words = config.task in ("masked-lm", "causal-lm", "pre-training")
    if of_words and not discriminates(config.family, config.task):
        return VocabularyHead(config)
    return ClassifierHead(config)
