"""Direct logit attribution by TransformerLens' cache: what each part of a stack does to a logit."""

from typing import Any

import torch
from torch import Tensor

from minibert.errors import TokenizationError, TraceError
from minibert.layers.heads import VocabularyHead
from minibert.quantities import Float
from minibert.text.tokenizer import Tokenizer
from minibert.trace.lens_components import LensComponents
from minibert.trace.lens_stream import Stack
from minibert.trace.run import TracedModel

__all__ = ["LensLogits", "residual_directions", "single_token"]

Directions = Float[Tensor, "*place d_model"]


class LensLogits(LensComponents):
    """A mapping by TransformerLens' names with all that its cache does."""

    def logit_attrs(
        self,
        residual_stack: Stack,
        tokens: Any,
        incorrect_tokens: Any = None,
        pos_slice: Any = None,
        batch_slice: Any = None,
        has_batch_dim: bool = True,
    ) -> Float[Tensor, "component *others"]:
        """What each part of a stack adds to the logit of a token, before its mean and bias.

        The part, divided as the last norm divided the whole stream, times the token's column of
        W_U; with `incorrect_tokens` times the difference of the two columns. The weight of the last
        norm is left out, as in TransformerLens: it is in W_U where the model was folded
        (`fold_ln`); of other models use `minibert.analysis.logit_attribution`.

        tokens      a token as a string or a number, or numbers of shape (batch) or
                    (batch, position), which have to go with the places of the stack
        pos_slice, batch_slice   as in `apply_ln_to_stack`

        Raises TraceError for two kinds of tokens of different shapes, TokenizationError for a
        string that is not one token or an id outside the vocabulary.
        """
        directions = residual_directions(self._of, tokens)
        if incorrect_tokens is not None:
            others = residual_directions(self._of, incorrect_tokens)
            if others.shape != directions.shape:
                raise TraceError(
                    f"tokens of shape {tuple(directions.shape[:-1])} and incorrect_tokens of shape "
                    f"{tuple(others.shape[:-1])}; expected the same shape."
                )
            directions = directions - others
        scaled = self.apply_ln_to_stack(
            residual_stack,
            pos_slice=pos_slice,
            batch_slice=batch_slice,
            has_batch_dim=has_batch_dim,
        )
        return (scaled * directions.to(scaled.device)).sum(-1)


def residual_directions(model: TracedModel, tokens: Any) -> Directions:
    """The columns of W_U of these tokens: (d_model) of one, else the axes of `tokens` before it."""
    head = model.head
    if not isinstance(head, VocabularyHead) or not model.config.generates:
        raise TraceError(f"{model.name} does not predict a next token, so it has no W_U.")
    ids = single_token(model.tokenizer, tokens) if isinstance(tokens, str) else tokens
    ids = torch.as_tensor(ids)
    if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64):
        raise TokenizationError(f"Tokens are {ids.dtype}; expected whole numbers or a string.")
    unembed = head.W_U
    size = unembed.shape[1]
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise TokenizationError(f"A token is outside the vocabulary; expected 0 to {size - 1}.")
    found = unembed.mT[ids.to(unembed.device)]
    # As in TransformerLens: a tensor of one token is that token.
    return found.flatten(0, -2)[0] if ids.dim() and ids.numel() == 1 else found


def single_token(tokenizer: Tokenizer | None, text: str) -> int:
    """The id of a text that is one token. Raises TokenizationError where it is not."""
    if tokenizer is None:
        raise TokenizationError(f"{text!r:.80}: the model has no tokenizer; give the token's id.")
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        parts = [tokenizer.string(each) for each in ids]
        raise TokenizationError(f"{text!r:.80} is not a single token; it is {parts!r:.200}.")
    return ids[0]
