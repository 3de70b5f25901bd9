"""One row: a page is made, is right, and is then on screen a few times."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Playwright

from benchmarks.pages import gate
from benchmarks.pages.browser import Visit, visiting
from benchmarks.pages.making import PACKAGES, made
from benchmarks.pages.plan import BERTVIZ, Case
from benchmarks.pages.views import Screen, screen
from minibert.bench.gate import GateError, failure, reason, require
from minibert.bench.result_rows import Row
from minibert.bench.timing import Timing

# A picture that takes so long is looked at once.
SLOW_MS = 5000
# What Python may take beyond the limit of a row: its start, and making the attention.
START_SECONDS = 60
INTERACTIONS: dict[str, Callable[[Visit, Screen], float | None]] = {
    "hover": Visit.hover,
    "layer": Visit.layer,
    "opened": Visit.opened,
}
MEMORY = ("renderer_bytes", "renderer_peak_bytes", "heap_bytes", "elements")


@dataclass
class Bench:
    """What all rows share, and the page that was made last."""

    playwright: Playwright
    folder: Path
    scripts: Callable[[], Mapping[str, str]]
    limit: float
    rounds: int
    bertviz_weights: int
    failed: dict[tuple[str, str, int, int], tuple[int, str]] = field(default_factory=dict)
    """(program, view, layers, heads): the length at which it failed, and why."""
    file: tuple[object, ...] | None = None
    about: Row = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The page."""
        return self.folder / "page.html"

    def nothing(self) -> Row:
        """What an empty page takes: Chromium's own part of every time and all memory."""
        path = self.folder / "nothing.html"
        path.write_text("<!doctype html>\n<p>Nothing</p>\n", encoding="utf-8")
        found = self.visits(path, Screen(("p",)), None)
        return {"what": "nothing", **found}

    def row(self, case: Case) -> Row:
        """The row of a case; where it fails, with the reason and no times."""
        row = named(case)
        try:
            self.check_worth(case)
            self.make(case)
            if "reason" in self.about:
                raise GateError(self.about["reason"])
            row |= self.about
            return {**row, "ok": True, **self.measured(case)}
        except GateError as error:
            why = failure(error)
            if not why["reason"].startswith("not tried"):
                self.remember(case, why["reason"])
            return {**row, **self.about_failed(case), **why}

    def check_worth(self, case: Case) -> None:
        """Raise GateError where trying would take minutes and say nothing new."""
        require(PACKAGES[case.program])
        if case.program != BERTVIZ:
            return
        if case.shape.weights > self.bertviz_weights:
            raise GateError(
                f"not tried: {case.shape.weights / 1e6:.0f} million weights,"
                f" --bertviz-weights {self.bertviz_weights / 1e6:.0f}"
            )
        tokens, reason = self.failed.get(self.kind(case), (case.shape.tokens, ""))
        if tokens < case.shape.tokens:
            raise GateError(f"not tried: at {tokens} tokens {reason}")

    @staticmethod
    def kind(case: Case) -> tuple[str, str, int, int]:
        return (case.program, case.view, case.shape.layers, case.shape.heads)

    def remember(self, case: Case, reason: str) -> None:
        """Longer texts are not tried after this one failed."""
        self.failed.setdefault(self.kind(case), (case.shape.tokens, reason))

    def make(self, case: Case) -> None:
        """Makes the page and compares its numbers, unless it is the one that is there."""
        if self.file == case.file:
            return
        self.file, self.about = case.file, {}
        try:
            self.about = made(case, self.path, self.limit + START_SECONDS)
            self.about |= gate.checked(case, self.path, self.playwright, self.limit)
        except GateError as error:
            self.about["reason"] = reason(error)

    def about_failed(self, case: Case) -> Row:
        """What is known of the file all the same."""
        if self.file != case.file:
            return {}
        return {name: value for name, value in self.about.items() if name != "reason"}

    def measured(self, case: Case) -> Row:
        """Times and memory of a case."""
        scripts = self.scripts() if case.program == BERTVIZ else None
        return self.visits(self.path, screen(case), scripts)

    def visits(self, path: Path, shown: Screen, scripts: Mapping[str, str] | None) -> Row:
        """Times and memory of some visits."""
        found: list[Row] = []
        while len(found) < self.rounds:
            with visiting(self.playwright, scripts, self.limit) as visit:
                found.append(looked(visit, path, shown))
            if found[-1]["painted_ms"] > SLOW_MS:
                break
        return summary(found)


def named(case: Case) -> Row:
    """Which row this is."""
    shape = case.shape
    return {
        "what": "page",
        "program": case.program,
        "view": case.view,
        "layers": shape.layers,
        "heads": shape.heads,
        "tokens": shape.tokens,
        "holds": case.holds,
    }


def looked(visit: Visit, path: Path, shown: Screen) -> Row:
    """What one visit found; an interaction that fails is a reason among the others' times."""
    found: Row = {"painted_ms": visit.open(path, shown), "problems": {}}
    visit.rest()
    found |= visit.memory()
    for name, measure in INTERACTIONS.items():
        try:
            time = measure(visit, shown)
        except GateError as error:
            found["problems"][name] = reason(error)
            continue
        if time is not None:
            found[f"{name}_ms"] = time
    return found


def summary(visits: list[Row]) -> Row:
    """The median of each number over visits, and the spread of the time to painted."""
    names = ["painted_ms", *(f"{name}_ms" for name in INTERACTIONS), *MEMORY]
    row: Row = {"visits": len(visits)}
    for name in names:
        values = [visit[name] for visit in visits if name in visit]
        if values:
            middle = statistics.median(values)
            row[name] = round(middle, 1) if name.endswith("_ms") else int(middle)
    painted = [float(visit["painted_ms"]) for visit in visits]
    spread = Timing([painted]).fields()
    row |= {f"painted_{name}": spread[name] for name in ("p20_ms", "p80_ms")}
    row |= {"painted_least_ms": round(min(painted), 1), "painted_most_ms": round(max(painted), 1)}
    problems = {name: why for visit in visits for name, why in visit["problems"].items()}
    return row | ({"problems": problems} if problems else {})
