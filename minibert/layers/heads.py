"""Task heads: from the hidden state of the last layer to logits.

Each head is called with (hidden, pooled, ids, mask) and returns its logits; `pooled` is
tanh(W·hidden[0] + b) where the body has a pooler. `build_head` picks the one a Config asks for.
"""

import torch
from torch import nn

from minibert.errors import CheckpointError
from minibert.kernels.eager import soft_capped
from minibert.layers.config import FAMILIES, Config, discriminates
from minibert.layers.dropout import dropped
from minibert.layers.linear import Linear, matrix_of, offset_of
from minibert.layers.norms import norm_of
from minibert.quantities import Float, Hidden, Logits, Pooled, TokenIds, TokenMask

_FIRST_TOKEN_ACTIVATIONS = {
    name: family.first_activation
    for name, family in FAMILIES.items()
    if family.first_activation is not None
}


class TaskHead(nn.Module):
    """What every head has: a forward from the hidden state to logits."""

    dropout = 0.0
    """The share of what the classifier reads that becomes 0 in training."""

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        """What dropout leaves of it; in training alone."""
        return dropped(x, self.dropout) if self.training else x

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """The logits of this head."""
        raise NotImplementedError


class VocabularyHead(TaskHead):
    """One logit a vocabulary entry at each position (masked or causal language model).

    decoder(norm(activation(W·hidden + b))); a model that generates, such as GPT-2, has the decoder
    alone.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        alone, family = config.generates, FAMILIES[config.family]
        width = config.d_embed if family.narrow_head else config.d_model
        self.width, bias = width, config.head_bias
        self.transform = None if alone else Linear(config.d_model, width, bias=bias)
        self.norm = None if alone else norm_of(config, width)
        self.decoder = Linear(
            width,
            config.vocab_size,
            bias=not alone and config.decoder_bias,
            multiplier=1 / config.logits_divisor,
        )
        self.activation = family.head_activation or config.head_activation
        self.soft_cap = config.logit_soft_cap

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, position, vocab)."""
        return soft_capped(self.uncapped(hidden), self.soft_cap)

    def uncapped(self, hidden: Hidden) -> Logits:
        """The logits before the soft cap."""
        return self.decoder(self.decoder_input(hidden))

    @property
    def W_U(self) -> Float[torch.Tensor, "width vocab"]:  # noqa: N802
        """uncapped = decoder_input·W_U + b_U, what the family divides logits by included."""
        return matrix_of(self.decoder, self.width)

    @property
    def b_U(self) -> Float[torch.Tensor, " vocab"] | None:  # noqa: N802
        """None where the decoder has no bias."""
        return offset_of(self.decoder, self.width)

    def decoder_input(self, hidden: Hidden) -> Float[torch.Tensor, "batch position width"]:
        """What the decoder reads."""
        if self.transform is None or self.norm is None:
            return hidden
        return self.norm(self.transform(hidden, activation=self.activation))


class PreTrainingHead(VocabularyHead):
    """BERT's and ALBERT's two heads at once; the second is read from a trace."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        orders = FAMILIES[config.family].orders_sentences
        self.next_sentence = Linear(config.d_model, config.n_labels if orders else 2)


class PooledHead(TaskHead):
    """Logits from the pooled first token: next sentence, or classes of the text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n_out = 2 if config.task == "next-sentence" else config.n_labels
        self.classifier = Linear(config.d_model, n_out)

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label)."""
        if pooled is None:
            raise ValueError("this head reads the pooled first token, and the body has no pooler")
        return self.classifier(self.dropped(pooled))


class FirstTokenHead(TaskHead):
    """Logits from the first token through a layer of its own (RoBERTa, ELECTRA, DistilBERT)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.transform = Linear(config.d_model, config.d_model)
        self.classifier = Linear(config.d_model, config.n_labels)
        self.activation = _FIRST_TOKEN_ACTIVATIONS[config.family]
        # DistilBERT drops once, the others in front of the first matrix too.
        self.twice = config.family != "distilbert"

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label)."""
        first = self.dropped(hidden[:, 0]) if self.twice else hidden[:, 0]
        return self.classifier(self.dropped(self.transform(first, activation=self.activation)))


class LastTokenHead(TaskHead):
    """Logits from the last real token (sequence classification of GPT-2 and its like)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.classifier = Linear(config.d_model, config.n_labels, bias=False)
        self.pad_id = config.pad_id

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label)."""
        # By the padding id as transformers does, and by the mask, which knows better.
        real = mask
        if self.pad_id is not None:
            real = (ids != self.pad_id) if mask is None else (ids != self.pad_id) & mask
        position = torch.arange(ids.shape[1], device=ids.device)
        last = position[None, -1:] if real is None else (position * real).argmax(-1, keepdim=True)
        rows = torch.arange(len(ids), device=ids.device)
        return self.classifier(hidden[rows, last.expand(len(ids), 1)[:, 0]])


class ClassifierHead(TaskHead):
    """What gives classes; ModernBERT has a layer and a norm in front of the classifier."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n_out = 2 if config.task == "question-answering" else config.n_labels
        self.classifier = Linear(config.d_model, n_out)
        self.transform = self.norm = None
        if FAMILIES[config.family].classifier_layer:
            self.transform = Linear(config.d_model, config.d_model, bias=config.head_bias)
            self.norm = norm_of(config, config.d_model)
        self.activation = config.head_activation

    def transformed(self, hidden: Float[torch.Tensor, "*rows d_model"]) -> torch.Tensor:
        """What the classifier reads."""
        if self.transform is None or self.norm is None:
            return hidden
        return self.norm(self.transform(hidden, activation=self.activation))


class TokenHead(ClassifierHead):
    """Logits at each position: classes of a token, or start and end of an answer."""

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, position, label)."""
        return self.classifier(self.dropped(self.transformed(hidden)))


class PooledTextHead(ClassifierHead):
    """ModernBERT's classes of a text: from its first hidden state, or the mean of all of them."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pooling = config.pooling

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label)."""
        if self.pooling == "first":
            chosen = hidden[:, 0]
        elif mask is None:
            chosen = hidden.mean(1)
        else:
            real = mask[..., None].to(hidden.dtype)
            chosen = (hidden * real).sum(1) / real.sum(1)
        return self.classifier(self.dropped(self.transformed(chosen)))


class DiscriminatorHead(TaskHead):
    """ELECTRA's pre-training: one logit a position, positive where a token was replaced."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.transform = Linear(config.d_model, config.d_model)
        self.classifier = Linear(config.d_model, 1)
        self.activation = config.activation

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, position)."""
        return self.classifier(self.transform(hidden, activation=self.activation)).squeeze(-1)


def build_head(config: Config) -> TaskHead | None:
    """The head of config.task; None for a bare body."""
    if config.task == "none":
        return None
    if config.task == "pre-training":
        replaced = discriminates(config.family, config.task)
        return (DiscriminatorHead if replaced else PreTrainingHead)(config)
    if config.task in ("masked-lm", "causal-lm"):
        return VocabularyHead(config)
    if config.task in ("token-classification", "question-answering"):
        return TokenHead(config)
    if config.decodes:
        return LastTokenHead(config)
    if FAMILIES[config.family].classifier_layer:
        return PooledTextHead(config)
    if config.pooler:
        return PooledHead(config)
    if config.family not in _FIRST_TOKEN_ACTIVATIONS:
        raise CheckpointError(
            f"The head of task {config.task!r} reads a pooled first token, and this "
            f"{config.family} has pooler=False; set pooler=True."
        )
    return FirstTokenHead(config)
