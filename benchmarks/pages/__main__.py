"""How large, quick and light minibert's pages are, beside BertViz.

    python -m benchmarks.pages [--quick] [--rows REGEX] [--rounds 3] [--limit 60]
                               [--bertviz-weights 10] [--scripts FOLDER] [--output FILE]

In headless Chromium, through Playwright. Each page is made in a process of its own and its
numbers are compared with those given; one that is wrong, crashes or is not painted in time is a
row with the reason. The rows go to `benchmarks/results/pages-<processor>-<date>.jsonl`; a run
that was stopped goes on where it was, from `.partial.jsonl` beside it.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.pages import table
from benchmarks.pages.browser import ARGUMENTS, CHROMIUM
from benchmarks.pages.measure import Bench, named
from benchmarks.pages.plan import MINIBERT, cases
from benchmarks.pages.reach import ratios, reached
from benchmarks.pages.scripts import SCRIPTS, served, usual_folder
from benchmarks.session import Kept, kept_before, warn_when_busy
from minibert.bench.result_rows import Row, facts

PACKAGES = ("bertviz", "playwright")
# What must be the same for rows of an earlier, stopped run to stand beside new ones.
SAME = ("cpu", "commit", "versions", "limit_s", "rounds")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every page of minibert was right and could be measured."""
    chosen = parse(arguments)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        known = facts(threads=1, packages=PACKAGES)
        known |= {"limit_s": chosen.limit, "rounds": chosen.rounds}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        known["versions"] |= {"chromium": browser.version}
        known["versions"] |= dict(script.package.split("@") for script in SCRIPTS)
        browser.close()
        warn_when_busy(known)
        bench = Bench(
            playwright,
            Path(folder),
            cache(partial(served, chosen.scripts)),
            chosen.limit,
            chosen.rounds,
            int(chosen.bertviz_weights * 1e6),
        )
        rows = collect(chosen, bench, known)
    pages = [row for row in rows if row["what"] == "page"]
    return 0 if all(row["ok"] for row in pages if row["program"] == MINIBERT) else 1


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
    chosen = parser.parse_args(arguments)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    return chosen


def collect(chosen: argparse.Namespace, bench: Bench, known: Row) -> list[Row]:
    """All rows, shown as they come, those of a stopped run first; then ratios and figures."""
    kept = Kept("pages", chosen)
    kept.rows = earlier(kept.partial, known)
    if not kept.rows:
        kept.rows = [{**bench.nothing(), **known}]
    print(table.nothing_line(kept.rows[0]))
    print(table.heading())
    for case in cases(quick=chosen.quick, wanted=chosen.rows):
        row = next((row for row in kept.rows if named(case).items() <= row.items()), None)
        if row is None:
            row = {**bench.row(case), **known}
            kept.rows.append(row)
            kept.save()
        elif not row["ok"] and not row["reason"].startswith("not tried"):
            bench.remember(case, row["reason"])
        print(table.page_line(row), flush=True)
    pages = [row for row in kept.rows if row["what"] == "page"]
    compared = ratios(pages, bench.limit)
    figures = reached(pages, compared)
    print(table.summary(compared, figures))
    kept.rows += [{**row, **known} for row in (*compared, *figures)]
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
