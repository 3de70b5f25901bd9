"""The loss of a language model at each token, in nats.

Of a causal model it is −log p(token | the tokens before it), the surprisal; of a masked one −log of
what it gives the token at the token's own place, with the text as it is given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.analysis.arguments import check_model, vocabulary_head
from minibert.errors import TokenizationError
from minibert.model import Input, Model
from minibert.quantities import Float, TokenIds
from minibert.result import Result, sourced

# What transformers takes for a token that has no loss.
_IGNORED = -100


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenLosses(Result[Tensor]):
    """The loss at each token in nats, (batch, position); nan for padding and for no loss."""

    @property
    def mean(self) -> float:
        """Over all tokens with a loss: transformers' `loss`."""
        return float(self.values.nanmean())

    @property
    def sentences(self) -> Float[Tensor, " batch"]:
        """The mean of each sentence; nan for one without a loss."""
        return self.values.nanmean(1)

    @property
    def perplexity(self) -> float:
        """exp of the mean."""
        return float(self.values.nanmean().exp())


@sourced
def token_losses(model: Model, text: Input, *, targets: object = None) -> TokenLosses:
    """−log softmax(logits)[target] at each position, (batch, position).

    In a causal model the logits are those one position before, so the first token has no loss. The
    targets are the ids of the text, or `targets`: ids of the same shape, with −100 where there is
    no loss, as `labels` of transformers. For a masked model give the text with [MASK] in it and the
    true ids as targets.

    Raises TraceError for a model without a vocabulary head, and TokenizationError for input that
    the model cannot read and targets that do not fit it.
    """
    check_model(model)
    vocabulary_head(model)
    inputs = model.inputs(text)
    tokens = inputs.as_tokens(model.tokenizer)
    chosen = inputs.ids.long() if targets is None else _targets(targets, inputs.ids, model)
    chosen = chosen.masked_fill(~tokens.mask.to(chosen.device), _IGNORED)
    with torch.no_grad():
        logits = model(tokens)
        # Under torch.autocast logits are narrow.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if model.config.causal:
            chosen[:, 0] = _IGNORED
            logits = torch.cat((logits[:, :1], logits[:, :-1]), 1)
        losses = F.cross_entropy(
            logits.flatten(0, 1), chosen.flatten(), ignore_index=_IGNORED, reduction="none"
        )
    values = losses.unflatten(0, chosen.shape).masked_fill(chosen == _IGNORED, torch.nan)
    names, title = "batch position", "Loss"
    return TokenLosses(values, names, title, "nats", tokens=tokens.strings)


def _targets(targets: object, ids: TokenIds, model: Model) -> TokenIds:
    try:
        found = torch.as_tensor(getattr(targets, "ids", targets), device=ids.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TokenizationError(
            f"targets is a {type(targets).__name__}; expected token ids, (batch, position)."
        ) from error
    found = found[None] if found.dim() == 1 else found
    if found.shape != ids.shape or found.dtype not in (torch.int64, torch.int32):
        raise TokenizationError(
            f"targets of shape {tuple(found.shape)} and {found.dtype}; expected token ids of shape "
            f"{tuple(ids.shape)}, as the text."
        )
    size = model.config.vocab_size
    if bool(((found != _IGNORED) & ((found < 0) | (found >= size))).any()):
        raise TokenizationError(
            f"targets: expected token ids from 0 to {size - 1}, or {_IGNORED} for none."
        )
    return found.long().clone()
