"""The lines of a worked number, computed as they stand: what is said to be equal has to be."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

__all__ = ["check_steps"]

_NAMES = {"exp": math.exp, "erf": math.erf, "tanh": math.tanh, "cos": math.cos, "sin": math.sin,
          "max": max, "sqrt": math.sqrt, "pi": math.pi}  # fmt: skip
_SIGNS = {"−": "-", "×": "*", "√": "sqrt", "½": "0.5", "\u202f": "", "π": "pi"}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
# Of double precision, and of ε, which is written with two digits.
_CLOSE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-9}


def check_steps(steps: Sequence[dict[str, Any]]) -> None:
    """Fail where a product, a sum or a line of a step does not come to what stands beside it."""
    for step in steps:
        lines = [_sides(line) for line in step["lines"]]
        for sides in lines:
            for one, other in pairwise(sides):
                assert one == pytest.approx(other, **_CLOSE), step["lines"]
        if step["sum"]:
            terms = step["sum"]["terms"]
            total = math.fsum(term["value"] for term in terms)
            for term in terms:
                assert len(term["factors"]) == len(step["sum"]["factors"])
                if term["factors"]:
                    assert term["value"] == pytest.approx(math.prod(term["factors"]), **_CLOSE)
            # The sum itself, or what the first line goes on from.
            size = max(abs(term["value"]) for term in terms)
            start = step["lines"][0][1] if lines else step["value"]
            assert total == pytest.approx(start, rel=1e-6, abs=1e-9 * (1 + size))
        if lines and step["value"] is not None:
            assert any(
                side == pytest.approx(step["value"], **_CLOSE) for sides in lines for side in sides
            )


def _sides(line: Sequence[str | float]) -> list[float]:
    """The sides of a line that are all numbers; letters stand for some of the others."""
    text = "".join(part if isinstance(part, str) else f"({part!r})" for part in line)
    return [value for side in text.split(" = ") if (value := _computed(side)) is not None]


def _computed(side: str) -> float | None:
    text = re.sub("×\u202f10⁻([⁰-⁹¹²³]+)", lambda found: f"e-{found[1].translate(_RAISED)}", side)
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    text = re.sub(r"^\s*=\s*", "", text).replace("\u202f", "")
    text = re.sub(r"sqrt2\b", "sqrt(2)", text)
    letters = set(re.findall(r"[^\W\d]+", re.sub(r"\d(e[+-]?\d)", r"\1", text))) - {"e"}
    if letters - set(_NAMES) or "_" in text or not re.search(r"\d", text):
        return None
    return float(eval(text, {"__builtins__": {}}, _NAMES))
