"""A batch as a model reads it, and the check that it can."""

from dataclasses import dataclass

import torch

from minibert.errors import TokenizationError
from minibert.layers.config import Config
from minibert.quantities import TokenIds, TokenMask
from minibert.text.tokens import Tokens, Vocabulary

__all__ = ["Inputs"]


@dataclass(frozen=True)
class Inputs:
    """A batch as the body reads it. `tokens` is there when somebody made them."""

    ids: TokenIds
    mask: TokenMask | None
    segments: TokenIds | None
    tokens: Tokens | None = None

    def as_tokens(self, tokenizer: Vocabulary | None) -> Tokens:
        """The same with strings for people."""
        if self.tokens is not None:
            return self.tokens
        return Tokens.from_ids(
            self.ids, mask=self.mask, segments=self.segments, tokenizer=tokenizer
        )

    def check(self, config: Config, name: str) -> None:
        """Raise TokenizationError for what the model of that name and config cannot read."""
        ids, limit = self.ids, config.n_positions
        if ids.numel() == 0:
            raise TokenizationError("There are no token ids; expected at least one a sentence.")
        if ids.shape[1] > limit:
            raise TokenizationError(
                f"{ids.shape[1]} tokens are more than the {limit} positions of {name}; "
                "shorten the text, or tokenize it with truncate=True."
            )
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= config.vocab_size:
            raise TokenizationError(
                f"Token id {low if low < 0 else high} is outside the vocabulary of {name}: "
                f"expected 0 to {config.vocab_size - 1}."
            )
        segments = self.segments
        if segments is not None and config.n_segments:
            last = int(segments.max())
            if last >= config.n_segments:
                raise TokenizationError(
                    f"Segment {last} does not exist in {name}, which has "
                    f"{config.n_segments} (0 to {config.n_segments - 1})."
                )
