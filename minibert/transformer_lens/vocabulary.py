"""The tokenizer of a hooked model by the names that notebooks use of transformers' tokenizers."""

from typing import Any

import torch
from torch import Tensor

from minibert.text.tokenizer import Tokenizer

__all__ = ["Vocabulary"]


class Vocabulary:
    """encode, decode and the special tokens of a tokenizer.

    As in TransformerLens, the end-of-text token stands in for a BOS or padding token that is
    missing.
    """

    padding_side = "right"

    def __init__(self, own: Tokenizer, name: str) -> None:
        self.own = own
        self.name_or_path = name

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self.own.eos_id

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self.eos_token_id if self.own.bos_id is None else self.own.bos_id

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills a batch up."""
        return self.eos_token_id if self.own.pad_id is None else self.own.pad_id

    @property
    def bos_token(self) -> str | None:
        """As a string."""
        return None if self.bos_token_id is None else self.own.raw(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """As a string."""
        return None if self.eos_token_id is None else self.own.raw(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        """As a string."""
        return None if self.pad_token_id is None else self.own.raw(self.pad_token_id)

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self.own.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.own.encode(text)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        return self.own.decode(
            torch.as_tensor(token_ids).reshape(-1), skip_special=skip_special_tokens
        )

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(each, skip_special_tokens) for each in sequences]

    def convert_ids_to_tokens(self, ids: Tensor | list[int]) -> list[str]:
        """The vocabulary's own strings."""
        return [self.own.raw(int(each)) for each in ids]
