"""Rotary positions: each pair of dimensions of a query or key is turned by position x frequency.

Su et al. 2021 (RoFormer), equation 34. A score then depends on how far apart two tokens are, and
not on where they stand. turns.py turns the vectors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from minibert.errors import CheckpointError

Frequencies = tuple[float, ...]
"""Radians a position, one a pair of dimensions."""


@dataclass(frozen=True)
class Rotary:
    """Which dimensions are turned, and how fast.

    dims        the first dimensions of a head, which are turned; an even number
    base        dimension pair i is turned by base^(−2i/dims) radians a position
    scaling     how frequencies are changed for longer texts, one of `SCALINGS`
    factor      how much longer these texts may be
    n_original  positions that the model was trained on before
    low, high   llama3: a pair that turns fewer than `low` times in n_original positions is slowed
                by `factor`, one that turns more than `high` times is not; yarn: the same
                (its beta_slow and beta_fast)
    truncate    yarn: the two bounds are rounded to whole pairs
    amplitude   what cosine and sine are multiplied by
    short_factors, long_factors   longrope: what each pair's frequency is divided by, in texts of up
                to n_original tokens and in longer ones
    """

    dims: int
    base: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    n_original: int = 0
    low: float = 1.0
    high: float = 4.0
    truncate: bool = True
    amplitude: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def depends_on_length(self) -> bool:
        """True where a longer text has other frequencies."""
        return self.scaling in ("dynamic", "longrope")

    def frequencies(self, n_tokens: int) -> Frequencies:
        """Radians a position of each pair, in a text of that many tokens."""
        return SCALINGS[self.scaling](self, n_tokens)


def _powers(rotary: Rotary, base: float) -> Frequencies:
    return tuple([base ** -(first / rotary.dims) for first in range(0, rotary.dims, 2)])


def _default(rotary: Rotary, n_tokens: int) -> Frequencies:
    return _powers(rotary, rotary.base)


def _linear(rotary: Rotary, n_tokens: int) -> Frequencies:
    """Positions are divided by the factor (Chen et al. 2023, equation 4)."""
    return tuple([one / rotary.factor for one in _powers(rotary, rotary.base)])


def _dynamic(rotary: Rotary, n_tokens: int) -> Frequencies:
    """The base grows with the text's length ("NTK-aware", Peng et al. 2023, section 3.1)."""
    longer = max(n_tokens, rotary.n_original) / rotary.n_original
    stretched = rotary.factor * longer - (rotary.factor - 1)
    return _powers(rotary, rotary.base * stretched ** (rotary.dims / (rotary.dims - 2)))


def _slowed(one: float, share: float, rotary: Rotary) -> float:
    """A frequency of which this share is divided by the factor."""
    share = min(max(share, 0.0), 1.0)
    return one * (1 - share + share / rotary.factor)


def _llama3(rotary: Rotary, n_tokens: int) -> Frequencies:
    """Slow pairs are slowed, fast ones are not, those between in part (Llama 3.1's code)."""
    turned = rotary.n_original / (2 * math.pi)
    width = rotary.high - rotary.low
    return tuple(
        [
            _slowed(one, (rotary.high - turned * one) / width, rotary)
            for one in _powers(rotary, rotary.base)
        ]
    )


def _yarn(rotary: Rotary, n_tokens: int) -> Frequencies:
    """As llama3, with a ramp over the number of the pair (Peng et al. 2023, section 3.2)."""

    def pair(rounds: float) -> float:
        """The pair that turns so often in n_original positions."""
        wave = rotary.n_original / (rounds * 2 * math.pi)
        return rotary.dims * math.log(wave) / (2 * math.log(rotary.base))

    first, last = pair(rotary.high), pair(rotary.low)
    if rotary.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary.dims - 1)
    # transformers widens an empty ramp by this much.
    width = last - first or 0.001
    frequencies = enumerate(_powers(rotary, rotary.base))
    return tuple([_slowed(one, (n - first) / width, rotary) for n, one in frequencies])


def _longrope(rotary: Rotary, n_tokens: int) -> Frequencies:
    """Each pair has a factor of its own, another one in long texts (Ding et al. 2024)."""
    factors = rotary.long_factors if n_tokens > rotary.n_original else rotary.short_factors
    pairs = zip(_powers(rotary, rotary.base), factors, strict=True)
    return tuple([one / factor for one, factor in pairs])


SCALINGS: dict[str, Callable[[Rotary, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _check(rotary: Rotary) -> None:
    def refuse(field: str, expected: str) -> None:
        shown = f"{getattr(rotary, field)!r:.200}"
        raise CheckpointError(f"config: rotary {field} is {shown}; expected {expected}.")

    numbers = ("dims", "base", "factor", "n_original", "low", "high", "amplitude")
    for field in (*numbers, "short_factors", "long_factors"):
        value = getattr(rotary, field)
        for each in value if isinstance(value, tuple) else (value,):
            number = isinstance(each, int | float) and not isinstance(each, bool)
            if not number or not math.isfinite(each) or each < 0:
                refuse(field, "a number of at least 0")
    if rotary.scaling not in SCALINGS:
        refuse("scaling", f"one of {', '.join(SCALINGS)}")
    if not isinstance(rotary.dims, int) or rotary.dims < 2 or rotary.dims % 2:
        refuse("dims", "an even number of dimensions, at least 2")
    if rotary.base <= 1:
        refuse("base", "a number above 1")
    if rotary.factor < 1 and rotary.scaling != "default":
        refuse("factor", "a number of at least 1")
    if rotary.scaling not in ("default", "linear") and rotary.n_original < 1:
        refuse("n_original", f"a positive number, which {rotary.scaling} needs")
    if rotary.scaling == "llama3" and rotary.high <= rotary.low:
        refuse("high", "a number above low")
    if rotary.scaling == "dynamic" and rotary.dims == 2:
        refuse("dims", "more than 2, which dynamic needs")
    if rotary.scaling == "longrope":
        for field in ("short_factors", "long_factors"):
            factors = getattr(rotary, field)
            if len(factors) != rotary.dims // 2 or 0 in factors:
                refuse(field, f"{rotary.dims // 2} positive numbers, one a pair")
