"""Texts that a hooked model writes: hooks see every step."""

from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hook_point import HookPoint
from minibert.transformer_lens.sampling import sample_logits
from minibert.transformer_lens.text import USE_DEFAULT_VALUE, TextMethods, as_ids

__all__ = ["Generating"]


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
