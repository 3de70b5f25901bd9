"""Task heads: from the hidden state of the last layer to logits.

Each head is called with (hidden, pooled, ids, mask) and returns its logits; `pooled` is
tanh(W·hidden[0] + b) where the body has a pooler. `build_head` picks the one a Config asks for.
"""

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError
from minibert.kernels.eager import soft_capped
from minibert.layers.config import FAMILIES, Config, discriminates
from minibert.layers.dropout import dropped
from minibert.layers.linear import Linear, matrix_of, offset_of
from minibert.layers.norms import Norm
from minibert.quantities import Float, Hidden, Logits, Pooled, TokenIds, TokenMask


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

    def __init__(self, config: Config) -> None:
        super().__init__()
        alone, family = config.generates, FAMILIES[config.family]
        width = config.d_embed if family.narrow_head else config.d_model
        self.width, bias = width, config.head_bias
        self.transform = None if alone else Linear(config.d_model, width, bias=bias)
        self.norm = None if alone else Norm(config, width)
        self.decoder = Linear(
            width,
            config.vocab_size,
            bias=not alone and config.decoder_bias,
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
