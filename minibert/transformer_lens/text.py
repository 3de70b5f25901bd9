"""Text to tokens and back, as TransformerLens does it: a BOS token in front by default."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.errors import TokenizationError, check_flag
from minibert.model import Model
from minibert.quantities import Float, TokenIds
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import padded
from minibert.trace.lens_logits import residual_directions, single_token
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.vocabulary import Vocabulary

__all__ = ["USE_DEFAULT_VALUE", "TextMethods", "right_side"]

# What TransformerLens' arguments have where nothing is given.
USE_DEFAULT_VALUE: Any = None


class TextMethods:
    """Methods of a hooked model about tokens."""

    model: Model
    cfg: HookedTransformerConfig

    @property
    def tokenizer(self) -> Vocabulary | None:
        """The tokenizer, by the names that notebooks use of transformers' one."""
        own = self.model.tokenizer
        return None if own is None else Vocabulary(own, self.model.name)

    def to_tokens(
        self,
        input: str | Sequence[str],
        prepend_bos: bool | None = USE_DEFAULT_VALUE,
        padding_side: str | None = USE_DEFAULT_VALUE,
        move_to_device: bool = True,
        truncate: bool = True,
    ) -> TokenIds:
        """The ids of a text or of several, (batch, position), padded on the right.

        prepend_bos  a BOS token in front (the end-of-text token where there is none); by default as
                     `cfg.default_prepend_bos` says, which is True
        truncate     cut to the model's positions; otherwise a longer text is left, and the model
                     refuses it

        Raises TokenizationError for a model without a tokenizer or BOS token, and for left padding.
        """
        right_side(padding_side)
        tokenizer = self._tokenizer()
        first = [self._bos(tokenizer)] if self._prepends(prepend_bos) else []
        texts = [input] if isinstance(input, str) else list(input)
        rows = [[*first, *tokenizer.encode(text)] for text in texts]
        if truncate:
            rows = [row[: self.cfg.n_ctx] for row in rows]
        if len({len(row) for row in rows}) > 1:
            ids = padded(rows, Vocabulary(tokenizer, self.model.name).pad_token_id or 0)
        else:
            ids = torch.tensor(rows, dtype=torch.int64)
        return ids.to(self.cfg.device) if move_to_device else ids

    def to_string(self, tokens: Any) -> Any:
        """The text of ids of shape (position) or (), or the texts of ids of (batch, position)."""
        ids = torch.as_tensor(tokens)
        if ids.dim() > 2:
            raise TokenizationError(f"ids of shape {tuple(ids.shape)}; expected one or two axes.")
        if ids.dim() == 2:
            return [self.to_string(row) for row in ids]
        return self._tokenizer().decode(ids.reshape(-1), skip_special=False)

    def to_str_tokens(
        self,
        input: Any,
        prepend_bos: bool | None = USE_DEFAULT_VALUE,
        padding_side: str | None = USE_DEFAULT_VALUE,
    ) -> Any:
        """Each token of a text, or of ids of shape (position) or (1, position), as a string.

        Of a list of texts it is a list of lists.
        """
        if isinstance(input, list):
            return [self.to_str_tokens(each, prepend_bos, padding_side) for each in input]
        if isinstance(input, str):
            ids = self.to_tokens(input, prepend_bos, padding_side)[0]
        else:
            ids = torch.as_tensor(input).squeeze().reshape(-1)
        tokenizer = self._tokenizer()
        return [tokenizer.decode([each], skip_special=False) for each in ids.tolist()]

    def to_single_token(self, string: str) -> int:
        """The id of a string that is one token. Raises TokenizationError where it is not."""
        return single_token(self.model.tokenizer, string)

    def to_single_str_token(self, int_token: int) -> str:
        """The string of one id."""
        return self.to_str_tokens(torch.tensor([int_token]))[0]

    def get_token_position(
        self,
        single_token: str | int | Tensor,
        input: Any,
        mode: str = "first",
        prepend_bos: bool | None = USE_DEFAULT_VALUE,
        padding_side: str | None = USE_DEFAULT_VALUE,
    ) -> int:
        """Where a token stands in a text or in ids: the first place, or with mode="last" the last.

        Raises TokenizationError where it does not occur.
        """
        if mode not in ("first", "last"):
            raise TokenizationError(f'mode={mode!r:.80}: expected "first" or "last".')
        text = isinstance(input, str)
        ids = self.to_tokens(input, prepend_bos, padding_side) if text else torch.as_tensor(input)
        if ids.dim() == 2 and len(ids) != 1:
            raise TokenizationError(f"input holds {len(ids)} sentences; expected one.")
        wanted = single_token
        wanted = self.to_single_token(wanted) if isinstance(wanted, str) else int(wanted)
        places = (ids.reshape(-1) == wanted).nonzero().flatten().tolist()
        if not places:
            raise TokenizationError(f"The token {single_token!r:.80} does not occur in the input.")
        return places[0 if mode == "first" else -1]

    def tokens_to_residual_directions(self, tokens: Any) -> Float[Tensor, "*place d_model"]:
        """The columns of W_U of a token (a string or an id), or of ids of any shape.

        It is (d_model) for one token, and else the axes of the ids before d_model.
        """
        return residual_directions(self.model, tokens)

    def _prepends(self, asked: bool | None) -> bool:
        if asked is None:
            return self.cfg.default_prepend_bos
        check_flag("prepend_bos", asked, TokenizationError)
        return asked

    def _bos(self, tokenizer: Tokenizer) -> int:
        found = Vocabulary(tokenizer, self.model.name).bos_token_id
        if found is None:
            raise TokenizationError(
                f"{self.model.name} has neither a BOS nor an end-of-text token; pass "
                "prepend_bos=False."
            )
        return found

    def _tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise TokenizationError(
                f"{self.model.name} has no tokenizer; give token ids, not text."
            )
        return self.model.tokenizer


def right_side(padding_side: str | None) -> None:
    """Raise TokenizationError for another side than the right, where padding changes nothing."""
    if padding_side not in (None, "right"):
        raise TokenizationError(
            f'padding_side={padding_side!r:.80}: expected "right". In a causal model padding on '
            "the right changes no token; on the left it would move positions."
        )


def as_ids(tokens: Any) -> Tensor:
    """Ids given as a tensor, an array or a list of numbers, with the axis of sentences."""
    ids = torch.as_tensor(np.asarray(tokens) if not isinstance(tokens, Tensor) else tokens)
    return ids[None] if ids.dim() == 1 else ids
