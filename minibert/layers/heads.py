"""Task heads: from the hidden state of the last layer to logits.

Each head is called with (hidden, pooled, ids, mask) and returns its logits; `pooled` is
tanh(W·hidden[0] + b) where the body has a pooler. `build_head` picks the one a Config asks for.
"""

import torch
from torch import nn

from minibert.errors import CheckpointError
from minibert.kernels.eager import soft_capped
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.norms import norm_of
from minibert.quantities import Float, Hidden, Logits, TokenIds, TokenMask

__all__ = ["PreTrainingHead", "TaskHead", "build_head"]

Pooled = Float[torch.Tensor, "batch d_model"]

_FIRST_TOKEN_ACTIVATIONS = {"roberta": "tanh", "electra": "gelu", "distilbert": "relu"}


class TaskHead(nn.Module):
    """What every head has: a forward from the hidden state to logits."""

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
        alone = config.generates
        width = config.d_embed if config.family in ("electra", "albert") else config.d_model
        bias = config.head_bias
        self.transform = None if alone else Linear(config.d_model, width, bias=bias)
        self.norm = None if alone else norm_of(config, width)
        self.decoder = Linear(width, config.vocab_size, bias=not alone and config.decoder_bias)
        # RoBERTa and ELECTRA fix gelu here whatever the layers use.
        fixed = config.family in ("roberta", "electra")
        self.activation = "gelu" if fixed else config.head_activation
        self.soft_cap = config.logit_soft_cap

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, position, vocab)."""
        return soft_capped(self.uncapped(hidden), self.soft_cap)

    def uncapped(self, hidden: Hidden) -> Logits:
        """The logits before the soft cap."""
        return self.decoder(self.decoder_input(hidden))

    def decoder_input(self, hidden: Hidden) -> Float[torch.Tensor, "batch position width"]:
        """What the decoder reads."""
        if self.transform is None or self.norm is None:
            return hidden
        return self.norm(self.transform(hidden, activation=self.activation))


class PreTrainingHead(VocabularyHead):
    """BERT's and ALBERT's two heads at once; the second is read from a trace."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # ALBERT's sentence-order head has as many outputs as the config has labels.
        self.next_sentence = Linear(
            config.d_model, config.n_labels if config.family == "albert" else 2
        )


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
        return self.classifier(pooled)


class FirstTokenHead(TaskHead):
    """Logits from the first token through a layer of its own (RoBERTa, ELECTRA, DistilBERT)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.transform = Linear(config.d_model, config.d_model)
        self.classifier = Linear(config.d_model, config.n_labels)
        self.activation = _FIRST_TOKEN_ACTIVATIONS[config.family]

    def forward(
        self, hidden: Hidden, pooled: Pooled | None, ids: TokenIds, mask: TokenMask | None
    ) -> Logits:
        """(batch, label)."""
        return self.classifier(self.transform(hidden[:, 0], activation=self.activation))


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
        if config.family == "modernbert":
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
        return self.classifier(self.transformed(hidden))


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
        return self.classifier(self.transformed(chosen))


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
        return (DiscriminatorHead if config.family == "electra" else PreTrainingHead)(config)
    if config.task in ("masked-lm", "causal-lm"):
        return VocabularyHead(config)
    if config.task in ("token-classification", "question-answering"):
        return TokenHead(config)
    if config.decodes:
        return LastTokenHead(config)
    if config.family == "modernbert":
        return PooledTextHead(config)
    if config.pooler:
        return PooledHead(config)
    if config.family not in _FIRST_TOKEN_ACTIVATIONS:
        raise CheckpointError(
            f"The head of task {config.task!r} reads a pooled first token, and this "
            f"{config.family} has pooler=False; set pooler=True."
        )
    return FirstTokenHead(config)
