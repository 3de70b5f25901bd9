"""What the scores of the embedded models have in common: texts, and a finding beside its target."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minibert.analysis import HeadScores
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.errors import MinibertError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training.texts import Document, read_texts

__all__ = ["Measurements", "Texts", "best_head", "finding", "known_tokenizer", "share"]

# What is measured and how, each on its own: one that fails does not stop the others.
Measurements = dict[str, Callable[[], Row]]


@dataclass(frozen=True)
class Texts:
    """What a model never saw, and what it was trained on."""

    held_out: tuple[Document, ...]
    training: tuple[Document, ...]

    @classmethod
    def read(cls, held_out: Sequence[Path], training: Sequence[Path]) -> "Texts":
        """The texts of these files. Raises MinibertError where one is on both sides."""
        texts = cls(read_texts(held_out), read_texts(training))
        seen = {document.digest: document.name for document in texts.training}
        for document in texts.held_out:
            if document.digest in seen:
                raise MinibertError(
                    f"{document.name} is held out and in training as {seen[document.digest]}; "
                    "expected texts that the models never saw."
                )
        return texts


def known_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer. Raises GateError for a model without one."""
    if model.tokenizer is None:
        raise GateError("the model has no tokenizer")
    return model.tokenizer


def finding(
    value: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    **details: Any,
) -> Row:
    """Fields of a row: the value, the target and whether it is met, and details."""
    row: Row = {"ok": True, "value": round(value, 4)}
    targets = ((">=", at_least), ("<=", at_most), ("<", below))
    for sign, target in targets:
        if target is not None:
            met = {">=": value >= target, "<=": value <= target, "<": value < target}[sign]
            row |= {"target": f"{sign} {target:.4g}", "met": bool(met)}
    return {**row, **details}


def share(right: Tensor) -> dict[str, float]:
    """How many of the answers there are, and half the width of the share's 95 % interval.

    Normal approximation, as if answers were independent: 1.96 · sqrt(p (1 - p) / n).
    """
    p, count = float(right.double().mean()), right.numel()
    return {"count": count, "error_95": round(1.96 * math.sqrt(p * (1 - p) / count), 4)}


def best_head(scores: HeadScores, pattern: str, *, at_least: float) -> Row:
    """The best score of a pattern, whose it is, and those of all heads by layer."""
    layer, head, score = scores.best(pattern)
    return finding(
        score,
        at_least=at_least,
        head=f"{layer}-{head}",
        scores=scores.to_dict()[pattern],
    )
