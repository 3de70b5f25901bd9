"""How large, quick and light minibert's pages are, beside BertViz.

    python -m benchmarks.pages [--quick] [--rows REGEX] [--rounds 3] [--output FILE]

In headless Chromium, through Playwright. Each page is made in a process of its own and its
numbers are compared with those given; one that is wrong, crashes or is not painted in time is a
row with the reason.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from playwright.sync_api import Playwright, sync_playwright

from benchmarks.pages.browser import (
    ARGUMENTS,
    CHROMIUM,
    Screen,
    checked,
    recording,
    screen,
    visiting,
)
from benchmarks.pages.making import BERTVIZ, MINIBERT, Case, cases, made
from benchmarks.session import Kept, machine, options
from minibert.bench.result_rows import GateError, Row, failure

# A picture that takes so long is looked at once.
SLOW_MS = 5000
# What a picture may take, in seconds.
LIMIT = 60


@dataclass
class Bench:
    """What all rows share, and the page that was made last."""

    playwright: Playwright
    folder: Path
    rounds: int
    file: tuple[object, ...] | None = None
    about: Row = field(default_factory=dict)

    def nothing(self) -> Row:
        """What an empty page takes: Chromium's own part of every time and all memory."""
        path = self.folder / "nothing.html"
        path.write_text("<!doctype html>\n<p>Nothing</p>\n", encoding="utf-8")
        return {"what": "nothing", "ok": True, **self.visits(path, Screen(("p",)))}

    def row(self, case: Case) -> Row:
        """The row of a case; where it fails, with the reason and no times."""
        row = {"what": "page", "program": case.program, "view": case.view, "holds": case.holds}
        row |= asdict(case.shape)
        path = self.folder / "page.html"
        try:
            if self.file != case.file:
                # A page that failed is not measured either.
                self.file, self.about = case.file, {}
                self.about = made(case, path, 2 * LIMIT)
                self.about |= checked(case, path, self.playwright, LIMIT)
            if not self.about:
                raise GateError("its page could not be made, or was wrong")
            row |= self.about
            online = case.program == BERTVIZ
            return {**row, "ok": True, **self.visits(path, screen(case), online=online)}
        except GateError as error:
            return {**row, **failure(error)}

    def visits(self, path: Path, shown: Screen, *, online: bool = False) -> Row:
        """Times and memory of some visits."""
        found: list[Row] = []
        if online and not recording().exists():
            with visiting(self.playwright, LIMIT, online=True) as visit:
                visit.open(path, shown)
        while len(found) < self.rounds:
            with visiting(self.playwright, LIMIT, online=online) as visit:
                painted = visit.open(path, shown)
                visit.rest()
                found.append({"painted_ms": painted, **visit.memory(), **visit.layer(shown)})
            if painted > SLOW_MS:
                break
        return summary(found)


def summary(visits: Sequence[Row]) -> Row:
    """The median of each number over visits, and the spread of the time to painted."""
    row: Row = {"visits": len(visits)}
    for name in ("painted_ms", "layer_ms", "renderer_bytes"):
        if values := [visit[name] for visit in visits if name in visit]:
            row[name] = round(statistics.median(values), 1)
    painted = [float(visit["painted_ms"]) for visit in visits]
    return row | {"painted_least_ms": min(painted), "painted_most_ms": max(painted)}


def page_line(row: Row) -> str:
    """A row in one line: its name, and what it measured or the reason."""
    name = f"{row['program']:<8} {row['view']:<6} T{row['tokens']:<4} {row['holds']:<13}"
    shown = ("bytes", "python_s", "painted_ms", "layer_ms", "renderer_bytes", "reason")
    return name + "  ".join(f"{one} {row[one]}" for one in shown if one in row)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every page of minibert was right and could be measured."""
    parser = options("Pages of attention beside BertViz.", rounds=3, quick_rounds=1)
    chosen = parser.parse_args(arguments)
    kept = Kept("pages", chosen)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        known = machine(1, ("bertviz", "playwright"))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        known["versions"] |= {"chromium": browser.version}
        browser.close()
        known |= {"limit_s": LIMIT, "rounds": kept.rounds}
        bench = Bench(playwright, Path(folder), kept.rounds)
        kept.rows = [{**bench.nothing(), **known}]
        print(f"an empty page is painted after {kept.rows[0]['painted_ms']:.0f} ms")
        for case in cases(quick=chosen.quick, wanted=chosen.rows):
            row = bench.row(case)
            kept.add({**row, **known}, page_line(row))
    rows = kept.finish()
    return int(any(not row["ok"] for row in rows if row.get("program") == MINIBERT))


if __name__ == "__main__":
    sys.exit(main())
