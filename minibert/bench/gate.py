"""The one gate: is what a contender computes right? It is asked before any clock runs.

The truth and how far each value may be off are declared. A contender that is wrong, or that cannot
run here, is a row with the reason and no time. Imports nothing heavy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minibert.bench.result_rows import Row, version
from minibert.errors import MinibertError

#: What a contender gives: tensors by name. A name is a kind and its place, "hidden 3".
Outputs = Mapping[str, Any]


class GateError(MinibertError):
    """A contender cannot be measured here."""


class WrongError(GateError):
    """What a contender gives is not right."""


@dataclass(frozen=True)
class Truth:
    """What is right, by name, and how far a value may be off.

    A difference may be at most `absolute`, at most `relative` of the largest true value, and at
    most what `limits` says of its kind; what is None does not limit. With `complete` every name
    of the truth must be given; otherwise at least one.
    """

    values: Outputs
    absolute: float | None = None
    relative: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    complete: bool = False

    def check(self, found: Outputs) -> Row:
        """Fields of a row: the largest difference, and that of each kind.

        Raises WrongError for a difference above what is allowed, for NaN, and for missing,
        unknown or differently shaped results.
        """
        if not found:
            raise WrongError("nothing was captured")
        if self.complete and (missing := self.values.keys() - found.keys()):
            raise WrongError(f"gave no {', '.join(sorted(missing))}")
        errors: dict[str, float] = {}
        for name, value in found.items():
            expected = self.values.get(name)
            if expected is None or tuple(value.shape) != tuple(expected.shape):
                shape = "nothing" if expected is None else tuple(expected.shape)
                raise WrongError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
            expected, kind = expected.double(), name.split()[0]
            error = float((value.double() - expected).abs().max())
            within(name, error, self._allowed(kind, expected))
            errors[kind] = max(errors.get(kind, 0.0), error)
        return {"max_error": max(errors.values()), "errors": errors, "compared": len(found)}

    def _allowed(self, kind: str, expected: Any) -> float:
        largest = float(expected.abs().max())
        known = (
            self.absolute,
            None if self.relative is None else self.relative * largest,
            self.limits.get(kind),
        )
        limits = [one for one in known if one is not None]
        if not limits:
            raise ValueError(f"no tolerance was declared for {kind}")
        return min(limits)


def within(name: str, error: float, allowed: float, of: str = "") -> float:
    """The error. Raises WrongError when it is above what is allowed, or NaN."""
    # Written so that NaN fails.
    if not error <= allowed:
        raise WrongError(f"{name} differs by {error:.2e}{of}, allowed {allowed:.2e}")
    return error


def require(package: str) -> None:
    """Raise GateError where `package` is not installed."""
    if version(package) is None:
        raise GateError("not installed")


def failure(error: BaseException) -> Row:
    """The fields of a row without a result: `wrong` where it gave a wrong one."""
    return {"ok": False, "wrong": isinstance(error, WrongError), "reason": reason(error)}


def reason(error: BaseException) -> str:
    """Why something failed, in one line without the folders of this machine."""
    text = " ".join(str(error).split("\n\n")[0].split())[:300]
    text = re.sub(r"(?<![\w.])~?(/[\w.+-]+){2,}/?", "<path>", text)
    return text if isinstance(error, MinibertError) else f"{type(error).__name__}: {text}"
