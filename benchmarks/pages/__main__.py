"""How large, quick and light minibert's pages are, beside BertViz.

    python -m benchmarks.pages [--quick] [--rows REGEX] [--rounds 3] [--limit 60]
                               [--bertviz-weights 10] [--scripts FOLDER] [--output FILE]
    python -m benchmarks.pages --table FILE     the table of docs/speed.md, made of a result file

In headless Chromium, through Playwright. Each page is made in a process of its own and its
numbers are compared with those given; one that is wrong, crashes or is not painted in time is a
row with the reason. The rows go to `benchmarks/results/pages-<processor>-<date>.jsonl`; a run
that was stopped goes on where it was, from `.partial.jsonl` beside it.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path

from playwright.sync_api import Playwright, sync_playwright

from benchmarks.pages.browser import (
    ARGUMENTS,
    CHROMIUM,
    SCRIPTS,
    Screen,
    Visit,
    checked,
    screen,
    served,
    usual_folder,
    visiting,
)
from benchmarks.pages.making import (
    BERTVIZ,
    DEFAULT,
    LENGTHS,
    MINIBERT,
    PACKAGES,
    VIEWS,
    WEIGHTS,
    Case,
    cases,
    made,
)
from benchmarks.session import Kept, kept_before, warn_when_busy
from minibert.bench.gate import GateError, failure, reason, require
from minibert.bench.result_rows import Row, facts, read_rows

# A picture that takes so long is looked at once.
SLOW_MS = 5000
# What Python may take beyond the limit of a row: its start, and making the attention.
START_SECONDS = 60
PEERS = ("bertviz", "playwright")
# What must be the same for rows of an earlier, stopped run to stand beside new ones.
SAME = ("cpu", "commit", "versions", "limit_s", "rounds")
NOT_TRIED = "not tried"


class NotTriedError(GateError):
    """Trying would take minutes and say nothing new."""


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

    def nothing(self) -> Row:
        """What an empty page takes: Chromium's own part of every time and all memory."""
        path = self.folder / "nothing.html"
        path.write_text("<!doctype html>\n<p>Nothing</p>\n", encoding="utf-8")
        return {"what": "nothing", "ok": True, **self.visits(path, Screen(("p",)), None)}

    def row(self, case: Case) -> Row:
        """The row of a case; where it fails, with the reason and no times."""
        row = named(case)
        try:
            self.check_worth(case)
            path = self.make(case)
            row |= self.about
            if "reason" in row:
                raise GateError(row["reason"])
            scripts = self.scripts() if case.program == BERTVIZ else None
            return {**row, "ok": True, **self.visits(path, screen(case), scripts)}
        except NotTriedError as error:
            return {**row, **failure(error)}
        except GateError as error:
            row |= failure(error)
            self.remember(case, row["reason"])
            return row

    def check_worth(self, case: Case) -> None:
        """Raise NotTriedError for a page that is too large, or longer than one that failed."""
        require(PACKAGES[case.program])
        if case.program != BERTVIZ:
            return
        if case.shape.weights > self.bertviz_weights:
            raise NotTriedError(
                f"{NOT_TRIED}: {case.shape.weights / 1e6:.0f} million weights,"
                f" --bertviz-weights {self.bertviz_weights / 1e6:.0f}"
            )
        tokens, why = self.failed.get(self.kind(case), (case.shape.tokens, ""))
        if tokens < case.shape.tokens:
            raise NotTriedError(f"{NOT_TRIED}: at {tokens} tokens {why}")

    @staticmethod
    def kind(case: Case) -> tuple[str, str, int, int]:
        return (case.program, case.view, case.shape.layers, case.shape.heads)

    def remember(self, case: Case, why: str) -> None:
        """Longer texts are not tried after this one failed."""
        self.failed.setdefault(self.kind(case), (case.shape.tokens, why))

    def make(self, case: Case) -> Path:
        """Makes the page and compares its numbers, unless it is the one that is there."""
        path = self.folder / "page.html"
        if self.file != case.file:
            self.file, self.about = case.file, {}
            try:
                self.about = made(case, path, self.limit + START_SECONDS)
                self.about |= checked(case, path, self.playwright, self.limit)
            except GateError as error:
                self.about["reason"] = reason(error)
        return path

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
    about = {"program": case.program, "view": case.view, "holds": case.holds}
    return {"what": "page", **about, **asdict(case.shape)}


def looked(visit: Visit, path: Path, shown: Screen) -> Row:
    """What one visit found; another layer that does not come is a reason beside the times."""
    found: Row = {"painted_ms": visit.open(path, shown)}
    visit.rest()
    found |= visit.memory()
    try:
        return found | visit.layer(shown)
    except GateError as error:
        return found | {"problem": reason(error)}


def summary(visits: list[Row]) -> Row:
    """The median of each number over visits, and the spread of the time to painted."""
    row: Row = {"visits": len(visits)}
    for name in ("painted_ms", "layer_ms", "renderer_bytes"):
        if values := [visit[name] for visit in visits if name in visit]:
            row[name] = round(statistics.median(values), 1)
    painted = [float(visit["painted_ms"]) for visit in visits]
    row |= {"painted_least_ms": round(min(painted), 1), "painted_most_ms": round(max(painted), 1)}
    problems = [visit["problem"] for visit in visits if "problem" in visit]
    return row | ({"problem": problems[0]} if problems else {})


def page_line(row: Row) -> str:
    """A row in one line: its name, and what it measured or the reason."""
    name = f"{row['program']:<8} {row['view']:<6} T{row['tokens']:<4} {row['holds']:<13}"
    shown = ("bytes", "python_s", "painted_ms", "layer_ms", "renderer_bytes", "reason", "problem")
    return name + "  ".join(f"{one} {row[one]}" for one in shown if one in row)


SHOWN = ((MINIBERT, DEFAULT), (MINIBERT, WEIGHTS), (BERTVIZ, WEIGHTS))
HEADINGS = (
    "12 layers of 12 heads",
    "file",
    "head view on screen",
    "model view on screen",
    "layer change (head view)",
    "memory of the page",
)


def speed_table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table, in Markdown: each program's page at each length."""
    of_case = {
        (row["program"], row["view"], row["tokens"], row["holds"]): row
        for row in rows
        if row["what"] == "page" and (row["layers"], row["heads"]) == (12, 12)
    }
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---" * len(HEADINGS) + "|"
    for tokens in LENGTHS:
        for program, holds in SHOWN:
            head, model = (of_case.get((program, view, tokens, holds), {}) for view in VIEWS)
            label = f"{program}, {holds}" if program == MINIBERT else program
            if head or model:
                yield f"| {tokens} tokens, {label} | {' | '.join(_cells(head, model))} |"


def _cells(head: Row, model: Row) -> list[str]:
    sizes = [row["bytes"] for row in (head, model) if "bytes" in row]
    memory = [row["renderer_bytes"] for row in (head, model) if row.get("ok")]
    return [
        _megabytes(max(sizes)) if sizes else "–",
        _seconds(head, "painted_ms"),
        _seconds(model, "painted_ms"),
        _seconds(head, "layer_ms"),
        f"{max(memory) / 1e6:.0f} MB" if memory else "–",
    ]


def _seconds(row: Row, field: str) -> str:
    if field in row and row["ok"]:
        return f"{row[field] / 1e3:.2f} s"
    late = row.get("reason", "").startswith("not painted")
    return f"over {row['limit_s']:.0f} s" if late else NOT_TRIED


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2g} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every page of minibert was right and could be measured."""
    chosen = parse(arguments)
    if chosen.table:
        print("\n".join(speed_table(read_rows(chosen.table))))
        return 0
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        known = facts(threads=1, packages=PEERS)
        known |= {"limit_s": chosen.limit, "rounds": chosen.rounds}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        known["versions"] |= {"chromium": browser.version}
        known["versions"] |= dict(script.package.split("@") for script in SCRIPTS)
        browser.close()
        warn_when_busy(known)
        scripts = cache(partial(served, chosen.scripts))
        most = int(chosen.bertviz_weights * 1e6)
        bench = Bench(playwright, Path(folder), scripts, chosen.limit, chosen.rounds, most)
        rows = collect(chosen, bench, known)
    return int(any(not row["ok"] for row in rows if row.get("program") == MINIBERT))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pages of attention beside BertViz.")
    parser.add_argument("--quick", action="store_true", help="2x3 heads, T 8 and 16, one visit")
    parser.add_argument("--rows", type=re.compile, help="only rows whose name matches")
    parser.add_argument("--rounds", type=int, help="visits of each page; 3, quick 1")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a picture may take")
    parser.add_argument(
        "--bertviz-weights",
        type=float,
        default=10,
        help="millions of weights up to which BertViz is tried; 40 takes minutes more",
    )
    parser.add_argument("--scripts", type=Path, default=usual_folder(), help="BertViz' scripts")
    parser.add_argument("--output", type=Path, help="file for the rows; --quick and --rows need it")
    parser.add_argument("--table", type=Path, help="print the table of docs/speed.md")
    chosen = parser.parse_args(arguments)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    return chosen


def collect(chosen: argparse.Namespace, bench: Bench, known: Row) -> list[Row]:
    """All rows, shown as they come, those of a stopped run first."""
    kept = Kept("pages", chosen)
    kept.rows = earlier(kept.partial, known) or [{**bench.nothing(), **known}]
    print(f"an empty page is painted after {kept.rows[0]['painted_ms']:.0f} ms")
    for case in cases(quick=chosen.quick, wanted=chosen.rows):
        row = next((row for row in kept.rows if named(case).items() <= row.items()), None)
        if row is None:
            row = {**bench.row(case), **known}
            kept.rows.append(row)
            kept.save()
        elif not row["ok"] and not row["reason"].startswith(NOT_TRIED):
            bench.remember(case, row["reason"])
        print(page_line(row), flush=True)
    return kept.finish()


def earlier(partial: Path | None, known: Row) -> list[Row]:
    """What a stopped run of the same code on the same machine has measured."""
    return [
        row
        for row in kept_before(partial)
        if row["what"] in ("nothing", "page") and all(row[name] == known[name] for name in SAME)
    ]


if __name__ == "__main__":
    sys.exit(main())
