"""The log that training writes (scores.jsonl), read and checked, as columns to draw."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import MinibertError
from minibert.untrusted import read_text

Real = npt.NDArray[np.float64]
EXPECTED = (
    "expected an object with tokens, loss and heads, and in heads for each pattern one list of "
    "scores a layer, or null"
)

# A run that measures a thousand times writes some MB.
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class ScoresLog:
    """A log of training, a row for each moment of measuring; NaN where nothing was measured.

    heads   (moment, layer, head) for each pattern that was measured at all
    """

    tokens: Real
    loss: Real
    held_out_loss: Real
    heads: Mapping[str, Real]


@dataclass(frozen=True)
class Row:
    """One line; scores are (layer, head), and the line's place is for messages."""

    tokens: float
    loss: float
    held_out_loss: float
    heads: Mapping[str, Real]
    where: str


def read_scores(path: Path) -> ScoresLog:
    """The log at this path.

    Raises MinibertError for a file that cannot be read or is empty, and with the number of the
    line for one that is no measurement, that does not fit the lines above it, or goes back.
    """
    rows = list(_rows(path))
    if not rows:
        raise MinibertError(f"{path}: there is no line in it; expected one a measurement.")
    shape = _one_shape(rows)
    names = dict.fromkeys(name for row in rows for name in row.heads)
    nothing = np.full(shape, math.nan)
    heads = {name: np.stack([row.heads.get(name, nothing) for row in rows]) for name in names}
    return ScoresLog(
        tokens=np.array([row.tokens for row in rows]),
        loss=np.array([row.loss for row in rows]),
        held_out_loss=np.array([row.held_out_loss for row in rows]),
        heads={name: scores for name, scores in heads.items() if np.isfinite(scores).any()},
    )


def _rows(path: Path) -> Iterator[Row]:
    lines = read_text(path, MinibertError, most=_MOST_BYTES).splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _row(line, f"{path}, line {number}")


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
        measured = {name: scores for name, scores in row["heads"].items() if scores is not None}
        return Row(
            tokens=float(row["tokens"]),
            loss=_number(row["loss"]),
            held_out_loss=_number(row.get("held_out_loss")),
            heads={name: _scores(scores) for name, scores in measured.items()},
            where=where,
        )
    except KeyError as error:
        raise MinibertError(f"{where}: there is no {error} in it; {EXPECTED}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise MinibertError(f"{where}: no measurement ({error}); {EXPECTED}.") from error


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _scores(value: Any) -> Real:
    scores = np.array(value, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores of shape {scores.shape}")
    return scores


def _one_shape(rows: Sequence[Row]) -> tuple[int, ...]:
    """Layers and heads, the same in every line; checks that tokens grow from line to line."""
    shape: tuple[int, ...] | None = None
    seen = -math.inf
    for row in rows:
        for scores in row.heads.values():
            shape = scores.shape if shape is None else shape
            if scores.shape != shape:
                raise MinibertError(
                    f"{row.where}: scores of {_times(scores.shape)} layers x heads after scores of "
                    f"{_times(shape)}; expected those of one model."
                )
        if not row.tokens > seen:
            raise MinibertError(
                f"{row.where}: {row.tokens:.0f} tokens after {seen:.0f}; expected more with each "
                "line. Are there two runs in one file?"
            )
        seen = row.tokens
    return shape or (0, 0)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
