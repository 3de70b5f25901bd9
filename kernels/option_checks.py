"""The check of what changes scores and of the order of keys: window, prefix, cap, ALiBi, sinks."""

import sys
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.masks import Window
from minibert.kernels.validation import check_tensor, may_look

__all__ = ["check_prefix", "check_score_options", "check_window"]


def check_window(window: Any) -> Window | None:
    """The keys before and after that a query may see; None where that is all.

    Raises AttentionError unless it is None or a pair, each a whole number from 0 or None.
    """
    if window is None:
        return None
    pair = tuple(window) if isinstance(window, tuple | list) else ()
    if len(pair) != 2 or not all(one is None or _is_count(one) for one in pair):
        raise AttentionError(
            f"window is {window!r:.80}; expected (before, after): how many keys before and after "
            "its own position a query may see, each a whole number from 0, or None for all. "
            "Mistral's sliding_window=4096 is window=(4095, 0)."
        )
    return None if pair == (None, None) else pair


def check_prefix(prefix: Any, query: Tensor, *, causal: bool, sentences: int) -> None:
    """Raises AttentionError unless it is None, or a whole number for each sentence with causal."""
    if prefix is None:
        return
    if isinstance(prefix, int):
        raise AttentionError(
            f"prefix is {prefix}; expected a tensor with a number for each sentence. For the same "
            f"in all: torch.full(({sentences},), {prefix})."
        )
    check_tensor("prefix", prefix, query)
    if prefix.dtype not in (torch.int32, torch.int64) or tuple(prefix.shape) != (sentences,):
        raise AttentionError(
            f"prefix is {prefix.dtype} of shape {tuple(prefix.shape)}; expected torch.int64, "
            f"({sentences},): the number of keys of each sentence that all its queries see."
        )
    if not causal:
        raise AttentionError(
            "prefix comes without causal=True; expected both: without causal order every query "
            "sees all keys as it is."
        )
    if may_look(prefix) and bool((prefix < 0).any()):
        raise AttentionError(f"prefix is {prefix.tolist()!s:.80}; expected numbers from 0.")


def check_score_options(query: Tensor, *, soft_cap: Any, alibi_slopes: Any, sinks: Any) -> None:
    """Raises AttentionError where one of them is not what it should be; gives nothing back."""
    if soft_cap is not None:
        number = isinstance(soft_cap, Real) and not isinstance(soft_cap, bool)
        if not number or not 0 < soft_cap <= sys.float_info.max:
            raise AttentionError(
                f"soft_cap is {soft_cap!r:.80}; expected one finite number above 0, or None for "
                "none."
            )
    B, H = query.shape[:2]
    for name, given, shapes in (
        ("alibi_slopes", alibi_slopes, ((H,), (1, H), (B, H))),
        ("sinks", sinks, ((H,),)),
    ):
        if given is None:
            continue
        check_tensor(name, given, query)
        if not given.is_floating_point() or tuple(given.shape) not in shapes:
            expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise AttentionError(
                f"{name} is {given.dtype} of shape {tuple(given.shape)}; expected floating numbers "
                f"of shape {expected}, one for each query head."
            )
        if may_look(given) and not bool(given.isfinite().all()):
            raise AttentionError(f"{name} holds NaN or an infinity; expected finite numbers.")


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
