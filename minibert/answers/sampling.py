"""From the logits of a language model to its next token: temperature, top-k, top-p, a draw.

Everything here is computed on the CPU. So equal logits and an equal seed give the same text,
whatever device the logits come from. Which tokens are left is decided in float32, in the steps and
the order of transformers, so that it leaves the same ones where logits are equal; logits of float64
stay float64. Probabilities are float64.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.quantities import Float, Int

__all__ = ["Sampling", "draw", "keep_top_k", "keep_top_p", "whole_number"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits.

    temperature   logits are divided by it: below 1 the likely tokens become likelier, above 1
                  less likely; 0 takes the most probable token each time
    top_k         only the k most probable tokens can be drawn (Fan et al. 2018); None: all
    top_p         only the most probable tokens that together have probability p can be drawn
                  (Holtzman et al. 2020, nucleus sampling); None: all

    They apply in this order. Raises MinibertError for a number outside its range.

    >>> Sampling(top_k=2).probs(torch.tensor([0.0, 1.0, 1.0])).tolist()
    [0.0, 0.5, 0.5]
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None

    def __post_init__(self) -> None:
        if not 0 <= _number(self.temperature) < math.inf:
            raise MinibertError(
                f"temperature={self.temperature!r:.80}: expected a number from 0 up; "
                "0 takes the most probable token each time."
            )
        if self.top_k is not None:
            whole_number("top_k", self.top_k, least=1)
        if self.top_p is not None and not 0 < _number(self.top_p) <= 1:
            raise MinibertError(
                f"top_p={self.top_p!r:.80}: expected a probability above 0 and up to 1; "
                "leave it out to draw from all tokens."
            )

    def probs(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """The probabilities that the next token is drawn with, float64, on the CPU.

        softmax(logits / temperature) over the tokens that top_k and top_p leave, 0 elsewhere.
        With temperature 0 they are 1 for the most probable token. Raises MinibertError for
        logits with NaN or infinity.
        """
        logits = logits.detach().cpu()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        largest, best = _largest(logits)
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, best, 1.0)
        cooled = logits / float(self.temperature)
        if not cooled.isfinite().all():
            # The largest becomes 0, so that a tiny temperature gives -inf and not inf.
            cooled = (logits - largest).double() / float(self.temperature)
        if self.top_k is not None:
            cooled = keep_top_k(cooled, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            cooled = keep_top_p(cooled, self.top_p)
        return cooled.double().softmax(dim=-1)

    def choose(
        self, logits: Float[Tensor, "batch vocab"], generators: Sequence[torch.Generator]
    ) -> list[int]:
        """The next token id of each text, drawn with the generator of that text."""
        if self.temperature == 0:
            return _largest(logits)[1][:, 0].tolist()
        return draw(self.probs(logits), generators).tolist()


def keep_top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """The k largest logits, and -inf in place of the others.

    Logits equal to the k-th largest stay too. A k above the number of logits keeps them all.
    Source: Fan, Lewis and Dauphin 2018, section 5.4.
    """
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def keep_top_p(
    logits: Float[Tensor, "*batch vocab"], p: float | int
) -> Float[Tensor, "*batch vocab"]:
    """The fewest largest logits whose probabilities sum to p or more; -inf for the others.

    Of equal logits at the border it keeps the ones that transformers' TopPLogitsWarper keeps.
    Source: Holtzman et al. 2020, section 3.1, equation 2.
    """
    # From the smallest up, as transformers does: the order of equal logits, and how the sum is
    # rounded, decide which of them are left.
    ordered, order = logits.sort(dim=-1)
    left_out = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    left_out[..., -1] = False
    return logits.masked_fill(torch.empty_like(left_out).scatter(-1, order, left_out), -math.inf)


def draw(
    probs: Float[Tensor, "batch vocab"], generators: Sequence[torch.Generator]
) -> Int[Tensor, " batch"]:
    """One id for each row, drawn with its probability: the first whose cumulative sum exceeds u.

    u is uniform in [0, total), one number from the generator of the row; an id of probability 0
    is never drawn.
    """
    cumulative = probs.cumsum(dim=-1)
    uniform = [torch.rand(1, generator=each, dtype=probs.dtype) for each in generators]
    wanted = torch.stack(uniform) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0]


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and its id."""
    largest, best = logits.max(dim=-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise MinibertError(
            "The logits have NaN or infinity, so no next token can be chosen: the weights are "
            "broken, or too large for the number type; try float32."
        )
    return largest, best


def whole_number(name: str, value: Any, *, least: int) -> int:
    """The value as an int. Raises MinibertError for other types and for less than `least`."""
    try:
        # Python counts True as 1, but nobody who passes True means one token.
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise MinibertError(f"{name}={value!r:.80}: expected a whole number from {least} up.")
    return number


def _number(value: Any) -> float:
    """The value as a float; NaN, which every range check refuses, for anything else."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
