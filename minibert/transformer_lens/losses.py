"""Loss and accuracy of next tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.quantities import Float

__all__ = ["lm_accuracy", "lm_cross_entropy_loss"]

Logits = Float[Tensor, "*batch position vocab"]


def lm_cross_entropy_loss(
    logits: Logits,
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    per_token: bool = False,
) -> Tensor:
    """The mean of −ln p of each next token in nats; with per_token (batch, position − 1).

    With a mask, which is 1 where a real token is, pairs of two real tokens alone count; the others
    are 0 in what per_token gives.
    """
    targets = tokens[..., 1:, None].to(logits.device)
    losses = -F.log_softmax(logits, -1)[..., :-1, :].gather(-1, targets)[..., 0]
    if attention_mask is None:
        return losses if per_token else losses.mean()
    real = torch.as_tensor(attention_mask, device=logits.device).bool()
    both = real[..., :-1] & real[..., 1:]
    losses = losses * both
    return losses if per_token else losses.sum() / both.sum()


def lm_accuracy(logits: Logits, tokens: Tensor, per_token: bool = False) -> Tensor:
    """The share of next tokens that have the largest logit; with per_token True where one has."""
    right = logits[..., :-1, :].argmax(-1) == tokens[..., 1:].to(logits.device)
    return right if per_token else right.sum() / right.numel()
