"""Text and tokens of a hooked model: to tokens and back, losses, predictions, generation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import TokenizationError, TraceError, check_flag
from minibert.model import Model
from minibert.quantities import Float, Int, TokenIds
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import padded
from minibert.transformer_lens.cache import residual_directions, single_token
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hooks import HookPoint

Logits = Float[Tensor, "*batch position vocab"]


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


def sample_logits(
    final_logits: Float[Tensor, "batch vocab"],
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    freq_penalty: float = 0.0,
    tokens: Int[Tensor, "batch position"] | None = None,
) -> Int[Tensor, " batch"]:
    """One token a row, drawn with torch's random numbers from softmax(logits / temperature).

    temperature   0 takes the largest logit
    freq_penalty  taken from a token's logit for each time it stands in `tokens` already
    top_k         only the k largest logits; top_p: the fewest tokens whose probabilities reach it

    Raises TraceError for values that leave nothing to draw from.
    """
    if temperature == 0:
        return final_logits.argmax(-1)
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise TraceError(f"temperature={temperature}, top_k={top_k}; expected positive numbers.")
    if top_p is not None and not 0 < top_p <= 1:
        raise TraceError(f"top_p={top_p}; expected a number above 0 and up to 1.")
    logits = final_logits / temperature
    if freq_penalty:
        if tokens is None:
            raise TraceError("freq_penalty counts tokens; pass tokens=.")
        counts = torch.zeros_like(logits)
        counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=logits.dtype))
        logits = logits - freq_penalty * counts
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    elif top_p is not None:
        ordered, places = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        gone = (before >= top_p).scatter(1, places, before >= top_p)
        logits = logits.masked_fill(gone, float("-inf"))
    return torch.distributions.Categorical(logits=logits).sample()


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


class Generating(TextMethods):
    """`generate` of a hooked model."""

    hook_dict: dict[str, HookPoint]
    cfg: HookedTransformerConfig

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """A pass; nn.Module has it."""
        return super().__call__(*inputs, **options)  # type: ignore[misc]

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
        freq_penalty: float = 0.0,
        use_past_kv_cache: bool = True,
        prepend_bos: bool | None = USE_DEFAULT_VALUE,
        padding_side: str | None = USE_DEFAULT_VALUE,
        return_type: str | None = "input",
        verbose: bool = True,
    ) -> Any:
        """The text, or the ids, with up to max_new_tokens more tokens.

        Drawn with torch's own random numbers; do_sample=False takes the largest logit.

        return_type        "str", "tokens", or "input": what was given
        stop_at_eos        stop behind eos_token_id, by default the tokenizer's end-of-text token;
                           of several ids of (batch, position), when all have it
        use_past_kv_cache  changes no number here, where every step computes the whole text. Hooks
                           would see the new token alone in TransformerLens, so with hooks it has to
                           be False: TraceError
        verbose            changes nothing: there is no progress bar

        Raises TraceError for texts of several lengths in one call, and for a text that grows past
        the model's positions.
        """
        if use_past_kv_cache and any(point.has_hooks() for point in self.hook_dict.values()):
            raise TraceError(
                "generate with hooks computes the whole text at every step, and hooks see all of "
                "it; pass use_past_kv_cache=False to say that they may."
            )
        if return_type not in ("input", "str", "tokens"):
            raise TraceError(f"return_type={return_type!r:.80}: expected input, str or tokens.")
        text = isinstance(input, str | list) and not isinstance(input, Tensor)
        if isinstance(input, list) and len({len(self.to_str_tokens(each)) for each in input}) > 1:
            raise TraceError("The texts have several lengths in tokens; generate them one by one.")
        ids = self.to_tokens(input, prepend_bos, padding_side) if text else as_ids(input)
        ids = ids.to(self.cfg.device)
        if ids.shape[1] + max_new_tokens > self.cfg.n_ctx:
            raise TraceError(
                f"{ids.shape[1]} tokens and {max_new_tokens} new ones; the model has "
                f"{self.cfg.n_ctx} positions."
            )
        end = self._end(eos_token_id) if stop_at_eos else None
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for _ in range(max_new_tokens):
            last = self(ids)[:, -1]
            new = last.argmax(-1)
            if do_sample:
                new = sample_logits(last, top_k, top_p, temperature, freq_penalty, ids)
            if end is not None:
                new = torch.where(ended, end, new)
                ended |= new == end
            ids = torch.cat([ids, new[:, None]], 1)
            if end is not None and bool(ended.all()):
                break
        if return_type == "tokens" or (return_type == "input" and not text):
            return ids
        texts = [self._tokenizer().decode(row, skip_special=True) for row in ids]
        return texts if isinstance(input, list) or len(texts) > 1 else texts[0]

    def _end(self, asked: int | None) -> int:
        known = None if self.tokenizer is None else self.tokenizer.eos_token_id
        end = known if asked is None else asked
        if end is None:
            raise TraceError("stop_at_eos=True without an end-of-text token; pass eos_token_id.")
        return end
