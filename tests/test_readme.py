"""README and CITATION.cff. README is short enough to be read aloud in a minute, and its
figures are those of result files."""

import json
import re
from pathlib import Path

import yaml

from minibert.bench.result_rows import Row
from tests.packages import PROJECT, REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
RESULTS = REPOSITORY / "benchmarks" / "results"
# A minute of calm reading aloud is 150 to 200 words.
MOST_WORDS = 200


def rows_of(path: Path) -> list[Row]:
    """The rows of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table_row(begin: str) -> dict[str, str]:
    """The cells of the row that begins so, by the heading of their column."""
    lines = [line.strip("| ") for line in README.splitlines() if line.startswith("|")]
    headings = [cell.strip() for cell in lines[0].split("|")]
    (line,) = [line for line in lines if line.startswith(begin)]
    cells = [cell.strip() for cell in line.split("|")][1:]
    return dict(zip(headings[-len(cells) :], cells, strict=True))


def test_it_has_at_most_eighty_lines():
    assert len(README.splitlines()) <= 80


def test_its_sentences_are_read_aloud_in_a_minute():
    text = re.sub(r"^```.*?^```|<!--.*?-->|!\[.*?\]\(.*?\)", "", README, flags=re.DOTALL | re.M)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    words = re.sub(r"\]\([^)]*\)", "]", text).split()
    assert len(words) <= MOST_WORDS, len(words)


def test_the_times_of_a_full_trace_are_those_of_the_result_file():
    (path,) = RESULTS.glob("instruments-short-*.jsonl")
    shown = table_row("everything inside bert-base, 32 tokens")
    peers = {
        "minibert": "minibert",
        "TransformerLens": "TransformerLens TransformerBridge",
        "nnsight": "nnsight",
        "transformers": "transformers + hooks",
    }
    wanted = {"task": "full trace", "model": "bert-base", "position": 32, "ok": True}
    for column, implementation in peers.items():
        (row,) = matching(rows_of(path), wanted | {"implementation": implementation})
        assert shown[column] == f"{row['median_ms']:.0f} ms"
    assert shown["interp-engine"] == "not measured"


def test_the_times_of_a_page_are_the_newest_of_the_result_files():
    rows = [row for path in sorted(RESULTS.glob("pages-amd-*.jsonl")) for row in rows_of(path)]
    shown = table_row("a page of 144 heads, 128 tokens")
    page = {"what": "page", "view": "head", "layers": 12, "heads": 12, "tokens": 128}
    for column, holds in (("minibert", "default"), ("BertViz", "weights only")):
        row = matching(rows, page | {"program": column, "holds": holds})[-1]
        assert shown[column] == f"{row['painted_ms'] / 1e3:.2f} s"


def test_the_citation_has_what_the_format_asks_for_and_is_of_this_version():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert all({"name"} <= set(one) or {"family-names"} <= set(one) for one in cited["authors"])
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]


def matching(rows: list[Row], wanted: Row) -> list[Row]:
    """The rows that have all of these."""
    return [row for row in rows if wanted.items() <= row.items()]
