"""What a check found: each output of each case beside its tolerance, and the verdict."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Finding:
    """One output of one case: its error, what was allowed, and why it failed.

    The error is the largest of all values, and of "z, mean" their root mean square.
    """

    case: str
    dtype: torch.dtype
    output: str
    error: float
    tolerance: float
    cause: str = ""

    @property
    def ok(self) -> bool:
        """True when the error is within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        line = f"{short(self.dtype)} {self.output}: error {self.error:.2e}, allowed "
        return f"{line}{self.tolerance:.2e} ({self.case}){': ' if self.cause else ''}{self.cause}"


@dataclass(frozen=True)
class ParityReport:
    """What `check` found; `ok` when something was checked and everything is within tolerance.

    skipped  kinds of calls that the function takes no argument for
    refused  options that it refuses by an error, and the error
    """

    name: str
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when something was checked and nothing failed."""
        return bool(self.findings) and not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings whose error is over the tolerance."""
        return tuple(finding for finding in self.findings if not finding.ok)

    @property
    def causes(self) -> tuple[str, ...]:
        """The likely causes, the most frequent first."""
        counted = Counter(finding.cause for finding in self.failures if finding.cause)
        return tuple(cause for cause, _ in counted.most_common())

    def __str__(self) -> str:
        n, bad = len(self.findings), self.failures
        verdict = "right" if self.ok else "WRONG" if bad else "NOT CHECKED"
        lines = [f"{self.name}: {verdict}; {n - len(bad)} of {n} checks within tolerance"]
        lines += [f"  likely cause: {cause}" for cause in self.causes[:3]]
        lines += [f"  {worst}" for worst in (bad[:10] if bad else self._tightest())]
        if len(bad) > 10:
            lines.append(f"  and {len(bad) - 10} more")
        lines += [f"  not covered: {reason}" for reason in self.skipped]
        return "\n".join([*lines, *(f"  {line}" for line in self.not_taken)])

    @property
    def not_taken(self) -> list[str]:
        """A line for each option that the function refuses."""
        return [f"does not take {name}: it {told}" for name, told in self.refused.items()]

    def _tightest(self) -> list[Finding]:
        """For each dtype the finding nearest to its tolerance."""
        nearest: dict[torch.dtype, Finding] = {}
        for one in self.findings:
            other = nearest.setdefault(one.dtype, one)
            if one.error * other.tolerance > other.error * one.tolerance:
                nearest[one.dtype] = one
        return list(nearest.values())


def short(dtype: torch.dtype) -> str:
    """A dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")
