"""A batch as a model reads it, and the check that it can."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import Float, TokenIds, TokenMask
from minibert.text.id_range import in_range
from minibert.text.tokens import Tokens, Vocabulary

__all__ = ["NO_ID", "Inputs"]

#: In the place of an id, where embeddings were given and there is none.
NO_ID = -1


@dataclass(frozen=True)
class Inputs:
    """A batch as the body reads it. `tokens` is there when somebody made them.

    `embeds` stand in the place of the rows of the word embeddings; every id is NO_ID then.
    """

    ids: TokenIds
    mask: TokenMask | None
    segments: TokenIds | None
    tokens: Tokens | None = None
    embeds: Float[Tensor, "batch position d_embed"] | None = None

    @classmethod
    def of(cls, given: Tokens | TokenIds) -> "Inputs":
        """The batch of tokens, or of ids without padding."""
        if isinstance(given, Tokens):
            return cls(given.ids, given.mask, given.segments, given)
        return cls(given, None, None)

    def as_tokens(self, tokenizer: Vocabulary | None) -> Tokens:
        """The same with strings for people. Embeddings have no tokens, and their strings say so."""
        if self.tokens is not None:
            return self.tokens
        if self.embeds is not None:
            return self._without_strings()
        return Tokens.from_ids(
            self.ids, mask=self.mask, segments=self.segments, tokenizer=tokenizer
        )

    def _without_strings(self) -> Tokens:
        zeros = torch.zeros_like(self.ids)
        numbered = Tokens.from_ids(zeros, mask=self.mask, segments=self.segments)
        names = tuple(
            tuple(f"embedding {position}" for position in range(length))
            for length in numbered.lengths
        )
        return replace(numbered, ids=self.ids, raw=names, strings=names)

    def packed(self, config: Config) -> AllowedKeys:
        """Which keys a query may attend to where the sentences share one row, without padding."""
        batch, position = self.ids.shape
        lengths = (position,) * batch if self.mask is None else tuple(self.mask.sum(1).tolist())
        return AllowedKeys(1, sum(lengths), self.ids.device, config.causal, packed=lengths)

    def checked(self, config: Config, name: str) -> "Inputs":
        """The same inputs, which the model of that name and config can read.

        Raises TokenizationError where it cannot.
        """
        ids, limit = self.ids, config.n_positions
        if ids.numel() == 0:
            raise TokenizationError("There are no token ids; expected at least one a sentence.")
        if ids.shape[1] > limit:
            raise TokenizationError(
                f"{ids.shape[1]} tokens are more than the {limit} positions of {name}; "
                "shorten the text, or tokenize it with truncate=True."
            )
        if self.embeds is None:
            ids = in_range(ids, config.vocab_size, "Token id", f"the vocabulary of {name}")
        segments, count = self.segments, config.n_segments
        if segments is not None and count:
            segments = in_range(segments, count, "Segment", f"the {count} of {name}")
        return Inputs(ids, self.mask, segments, self.tokens, self.embeds)
