"""What timed calls come to: median, p20 and p80, and the ratio to a baseline of the same rounds.

Every benchmark of this repository computes its times here, whatever it times: calls, processes,
visits of a browser. Imports nothing heavy.
"""

import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Significant digits of milliseconds in a row.
_DIGITS = 6


def interleaved(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Each name once a round, in a new order each round, so that no busy moment meets one alone."""
    order, shuffler = list(dict.fromkeys(names)), random.Random(0)
    before: list[str] = []
    for _ in range(rounds):
        while True:
            shuffler.shuffle(order)
            if order != before or len(order) < 2:
                break
        before = list(order)
        yield from before


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie, between neighbours in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the single calls of one contender, a turn for each round."""

    turns: Sequence[Sequence[float]]

    @property
    def calls(self) -> list[float]:
        """All calls."""
        return [call for turn in self.turns for call in turn]

    @property
    def median(self) -> float:
        """The median of all calls."""
        return statistics.median(self.calls)

    @property
    def noise(self) -> float:
        """How far the medians of even and odd rounds are apart, as a part of the median.

        Two timings of the same thing: a smaller difference between contenders means nothing.
        """
        halves = [
            statistics.median([call for turn in self.turns[start::2] for call in turn] or [0.0])
            for start in (0, 1)
        ]
        return abs(halves[0] - halves[1]) / max(self.median, 1e-9) if len(self.turns) > 1 else 0.0

    def fields(self) -> dict[str, Any]:
        """The fields of a row: median, p20 and p80 in ms, calls, rounds."""
        calls = self.calls
        return {
            "median_ms": _rounded(self.median),
            "p20_ms": _rounded(quantile(calls, 0.2)),
            "p80_ms": _rounded(quantile(calls, 0.8)),
            "calls": len(calls),
            "rounds": len(self.turns),
        }

    def ratios(self, baseline: "Timing") -> dict[str, float]:
        """The fields of a row: this median in medians of the baseline.

        Its p20 and p80 are over rounds, each turn against the baseline's turn of the same round.
        """
        pairs = zip(self.turns, baseline.turns, strict=True)
        rounds = [statistics.median(mine) / statistics.median(its) for mine, its in pairs]
        return {
            "ratio": round(self.median / baseline.median, 4),
            "ratio_p20": round(quantile(rounds, 0.2), 4),
            "ratio_p80": round(quantile(rounds, 0.8), 4),
        }

    def divided(self, count: int) -> "Timing":
        """The times of single calls, where `count` of them were timed as one."""
        return Timing([[call / count for call in turn] for turn in self.turns])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
