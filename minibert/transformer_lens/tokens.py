"""Text and tokens of a hooked model: to tokens and back, and generation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, tensor

from minibert.answers.generate import Sampling
from minibert.errors import TokenizationError, TraceError, check_flag
from minibert.model import Model
from minibert.quantities import Float, TokenIds
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import padded
from minibert.transformer_lens.cache import residual_directions, single_token
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hook_points import HookedRootModule


class Encoded(dict[str, Any]):
    """The ids of texts and where real tokens are, as entries and as attributes."""

    __getattr__ = dict.__getitem__


class Vocabulary:
    """encode, decode and the special tokens of a tokenizer, as numbers and as strings.

    As in TransformerLens, the end-of-text token stands in for a BOS or padding token that is
    missing; None where there is none.
    """

    padding_side = "right"

    def __init__(self, own: Tokenizer, name: str) -> None:
        self.own, self.name_or_path = own, name
        self.vocab_size = own.vocab_size
        """The largest id plus one."""
        self.eos_token_id = own.eos_id
        self.bos_token_id = own.eos_id if own.bos_id is None else own.bos_id
        self.pad_token_id = own.eos_id if own.pad_id is None else own.pad_id
        ids = (self.bos_token_id, self.eos_token_id, self.pad_token_id)
        strings = (None if each is None else own.raw(each) for each in ids)
        self.bos_token, self.eos_token, self.pad_token = strings

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab(self) -> dict[str, int]:
        """The ids by the vocabulary's own strings."""
        return {self.own.raw(each): each for each in range(self.vocab_size)}

    def __call__(
        self,
        text: str | list[str],
        add_special_tokens: bool = False,
        padding: bool = False,
        return_tensors: str | None = None,
    ) -> "Encoded":
        """The ids of a text, or of each text, without special tokens, which are not offered."""
        alone = isinstance(text, str) and return_tensors is None
        rows = [*map(self.encode, [text] if isinstance(text, str) else text)]
        longest = max(map(len, rows)) if padding else 0
        found = Encoded(
            input_ids=[row + [self.pad_token_id] * (longest - len(row)) for row in rows],
            attention_mask=[[1] * len(row) + [0] * (longest - len(row)) for row in rows],
        )
        for name, each in found.items():
            found[name] = each[0] if alone else each if return_tensors is None else tensor(each)
        return found

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text as the vocabulary's own strings."""
        return self.convert_ids_to_tokens(self.encode(text))

    def encode(self, text: str, return_tensors: str | None = None) -> Any:
        """The ids of a text, without special tokens; with return_tensors="pt" (1, position)."""
        ids = self.own.encode(text)
        return ids if return_tensors is None else tensor([ids])

    def decode(self, token_ids: object, skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        ids = torch.as_tensor(token_ids).reshape(-1)
        return self.own.decode(ids, skip_special=skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(each, skip_special_tokens) for each in sequences]

    def convert_ids_to_tokens(self, ids: Tensor | list[int]) -> list[str]:
        """The vocabulary's own strings."""
        return [self.own.raw(int(each)) for each in ids]


def right_side(padding_side: str | None) -> None:
    """Raise TokenizationError for another side than the right, where padding changes nothing."""
    if padding_side not in (None, "right"):
        raise TokenizationError(
            f'padding_side={padding_side!r:.80}: expected "right". In a causal model padding on '
            "the right changes no token; on the left it would move positions."
        )


def as_ids(tokens: object) -> Tensor:
    """Ids given as a tensor, an array or a list of numbers, with the axis of sentences."""
    ids = torch.as_tensor(np.asarray(tokens) if not isinstance(tokens, Tensor) else tokens)
    return ids[None] if ids.dim() == 1 else ids


class WithTokens(HookedRootModule):
    """Methods of a hooked model about text and tokens."""

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
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
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
        vocabulary, first = self._vocabulary(), list[int]()
        if prepend_bos is not None:
            check_flag("prepend_bos", prepend_bos, TokenizationError)
        if self.cfg.default_prepend_bos if prepend_bos is None else prepend_bos:
            if vocabulary.bos_token_id is None:
                raise TokenizationError(
                    f"{self.model.name} has neither a BOS nor an end-of-text token; pass "
                    "prepend_bos=False."
                )
            first = [vocabulary.bos_token_id]
        texts = [input] if isinstance(input, str) else list(input)
        rows = [[*first, *vocabulary.encode(text)] for text in texts]
        ids = padded([row[: self.cfg.n_ctx if truncate else None] for row in rows],
                     vocabulary.pad_token_id or 0)  # fmt: skip
        return ids.to(self.cfg.device) if move_to_device else ids

    def to_string(self, tokens: object) -> Any:
        """The text of ids of shape (position) or (), or the texts of ids of (batch, position)."""
        ids = torch.as_tensor(tokens)
        if ids.dim() > 2:
            raise TokenizationError(f"ids of shape {tuple(ids.shape)}; expected one or two axes.")
        return self._vocabulary().decode(ids) if ids.dim() < 2 else [*map(self.to_string, ids)]

    def to_str_tokens(
        self, input: Any, prepend_bos: bool | None = None, padding_side: str | None = None
    ) -> Any:
        """Each token of a text, or of ids of shape (position) or (1, position), as a string.

        Of a list of texts it is a list of lists.
        """
        if isinstance(input, list):
            return [self.to_str_tokens(each, prepend_bos, padding_side) for each in input]
        text = isinstance(input, str)
        ids = self.to_tokens(input, prepend_bos, padding_side) if text else torch.as_tensor(input)
        return [self.to_string(each) for each in ids.reshape(-1)]

    def to_single_token(self, string: str) -> int:
        """The id of a string that is one token. Raises TokenizationError where it is not."""
        return single_token(self.model.tokenizer, string)

    def to_single_str_token(self, int_token: int) -> str:
        """The string of one id."""
        return self.to_str_tokens(torch.tensor([int_token]))[0]

    def get_token_position(
        self,
        single_token: str | int,
        input: Any,
        mode: str = "first",
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> int:
        """Where a token stands in a text, or in ids of one: the first or the last such place.

        Raises TokenizationError where it is not there.
        """
        if mode not in ("first", "last"):
            raise TokenizationError(f"mode={mode!r:.80}: expected first or last.")
        text = isinstance(input, str)
        ids = self.to_tokens(input, prepend_bos, padding_side) if text else as_ids(input)
        found = single_token
        token = self.to_single_token(found) if isinstance(found, str) else int(found)
        places = (ids.reshape(-1) == token).nonzero()
        if len(ids) > 1 or not len(places):
            raise TokenizationError(f"{single_token!r:.80} is not in the text; expected one text.")
        return int(places[0 if mode == "first" else -1])

    def tokens_to_residual_directions(self, tokens: object) -> Float[Tensor, "*place d_model"]:
        """The columns of W_U of a token (a string or an id), or of ids of any shape.

        It is (d_model) for one token, and else the axes of the ids before d_model.
        """
        return residual_directions(self.model, tokens)

    @torch.no_grad()
    def generate(
        self,
        input: Any = "",
        max_new_tokens: int = 10,
        stop_at_eos: bool = True,
        eos_token_id: int | None = None,
        do_sample: bool = True,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        use_past_kv_cache: bool = True,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        return_type: str | None = "input",
        verbose: bool = True,
    ) -> Any:
        """The text, or the ids, with up to max_new_tokens more tokens.

        Drawn with torch's own random numbers; do_sample=False takes the largest logit.

        return_type        "str", "tokens", or "input": what was given
        stop_at_eos        stop after eos_token_id, by default the tokenizer's end-of-text token;
                           of several ids of (batch, position), when all have it
        use_past_kv_cache  changes no number here, where every step computes the whole text. Hooks
                           would see the new token alone in TransformerLens, so with hooks it has to
                           be False: TraceError
        verbose            changes nothing: there is no progress bar

        Raises TraceError for texts of several lengths in one call, and for a text that grows past
        the model's positions.
        """
        if use_past_kv_cache and any(point.has_hooks() for point in self.hook_points()):
            raise TraceError(
                "generate with hooks computes the whole text at every step, and hooks see all of "
                "it; pass use_past_kv_cache=False to say that they may."
            )
        if return_type not in ("input", "str", "tokens"):
            raise TraceError(f"return_type={return_type!r:.80}: expected input, str or tokens.")
        text = isinstance(input, str | list)
        if isinstance(input, list) and len({len(self.to_str_tokens(each)) for each in input}) > 1:
            raise TraceError("The texts have several lengths in tokens; generate them one by one.")
        ids = self.to_tokens(input, prepend_bos, padding_side) if text else as_ids(input)
        if ids.shape[1] + max_new_tokens > self.cfg.n_ctx:
            raise TraceError(
                f"{ids.shape[1]} tokens and {max_new_tokens} new ones; the model has "
                f"{self.cfg.n_ctx} positions."
            )
        end = self._end(eos_token_id) if stop_at_eos else None
        sampling = Sampling(temperature if do_sample else 0, top_k, top_p)
        ids = ids.to(self.cfg.device)
        ended = torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
        for _ in range(max_new_tokens):
            new = torch.multinomial(sampling.probs(self(ids)[:, -1]), 1).to(ids.device)
            if end is not None:
                new = torch.where(ended, end, new)
                ended |= new == end
            ids = torch.cat([ids, new], 1)
            if bool(ended.all()):
                break
        if return_type == "tokens" or (return_type == "input" and not text):
            return ids
        texts = self._vocabulary().batch_decode(ids, skip_special_tokens=True)
        return texts if isinstance(input, list) or len(texts) > 1 else texts[0]

    def _end(self, asked: int | None) -> int:
        known = None if self.tokenizer is None else self.tokenizer.eos_token_id
        end = known if asked is None else asked
        if end is None:
            raise TraceError("stop_at_eos=True without an end-of-text token; pass eos_token_id.")
        return end

    def _vocabulary(self) -> Vocabulary:
        if self.tokenizer is None:
            raise TokenizationError(
                f"{self.model.name} has no tokenizer; give token ids, not text."
            )
        return self.tokenizer
