"""What Clark et al. 2019 and Vig 2019 found in bert-base-uncased, asked of MiniLM and tiny-bert.

    python -m benchmarks.looking [--rows NAME] [--quick] [--threads 1] [--output FILE]
    python -m benchmarks.looking --table FILE ...

The claims and when each holds are in looking_claims.py. The corpus is wikitext-2 (valid), in the
folder that MINIBERT_TEST_DATA names. As in the paper a document of the survey is two paragraphs in
a row, cut at 128 tokens; patterns, dimensions and distances between heads need whole rows of
attention and are measured on the first two sentences of as many paragraphs. A claim is a row. The
second command prints the table of finished files for docs/lessons/looking.md; what a later file
found of a model replaces what an earlier one did.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.session import REPOSITORY, Kept, options, session
from minibert.bench.result_rows import Row, read_rows

if TYPE_CHECKING:
    from benchmarks.looking_findings import Evidence, Finding
    from minibert.survey import Document

MINILM, TINY = "all-MiniLM-L6-v2", "tiny-bert"
DOCUMENTS, QUICK, LONGEST, SHORTEST_TEXT = 200, 20, 128, 100
#: Words of a sentence: at most as many as fit twice into tiny-bert, which cuts words into pieces.
WORDS = range(5, 26)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; prints a line for each claim and model."""
    parser = options((__doc__ or "").splitlines()[0], rounds=1, quick_rounds=1)
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(table(together([read_rows(file) for file in chosen.table])))
        return 0
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    names = [name for name in (MINILM, TINY) if chosen.rows is None or chosen.rows.search(name)]
    kept = Kept("looking", chosen)
    with session(chosen.threads) as known:
        kept.rows = [row | known for row in asked(data, QUICK if chosen.quick else None, names)]
    for row in kept.rows:
        show(row)
    kept.finish()
    return 0


def asked(data: Path, limit: int | None, names: Sequence[str]) -> list[Row]:
    """A row a claim, with what was found in each of these models."""
    import minibert
    from benchmarks.looking_claims import CLAIMS

    places = {MINILM: data / "models" / MINILM, TINY: TINY}
    evidence, about = {}, {}
    for name in names:
        evidence[name] = one = measured(name, minibert.load(places[name]), data, limit)
        corpus = one.survey.manifest["corpus"]
        about[name] = {
            "documents": corpus["documents"],
            "tokens": corpus["tokens"],
            "sentence_pairs": one.distances.documents,
        }
    rows = []
    for claim in CLAIMS:
        told = asdict(claim)
        del told["find"]
        found = {name: told_of(claim.find(one)) for name, one in evidence.items()}
        rows.append({"what": "looking", **told, "found": found, "measured_on": about})
    return rows


def measured(name: str, model: Any, data: Path, limit: int | None) -> "Evidence":
    """Everything that the claims are about, of one model."""
    from benchmarks.looking_findings import Evidence, probes_of, sep_gradients
    from minibert.survey import survey
    from minibert.survey.distances import head_distances
    from minibert.survey.patterns import patterns
    from minibert.survey.query_key_dimensions import query_key_dimensions

    start, count = time.perf_counter(), limit or DOCUMENTS
    corpus = data / "text" / "wikitext-2" / "wiki.valid.tokens"
    pairs = list(islice(sentence_pairs(paragraphs(corpus)), count))
    found = Evidence(
        survey(model, paragraphs(corpus), pairs=True, longest=LONGEST, limit=count, profile=False),
        patterns(model, pairs),
        query_key_dimensions(model, pairs),
        head_distances(model, pairs),
        sep_gradients(model, pairs),
        probes_of(model, data, limit),
    )
    print(f"{name}: {count} documents in {time.perf_counter() - start:.0f} s", flush=True)
    return found


def paragraphs(corpus: Path) -> "Iterator[Document]":
    """The paragraphs of a text of wikitext; headings and short lines are left out."""
    from minibert.survey import read_documents

    return read_documents(corpus, unit="line", shortest=SHORTEST_TEXT)


def sentence_pairs(documents: "Iterator[Document]") -> "Iterator[Document]":
    """The first two sentences of each paragraph, where both have a usual length."""
    from minibert.survey import Document

    for one in documents:
        sentences = (one.text or "").split(" . ")[:2]
        if len(sentences) == 2 and all(len(each.split()) in WORDS for each in sentences):
            yield Document(one.id, f"{sentences[0]} .", pair=f"{sentences[1]} .")


def told_of(finding: "Finding") -> Row:
    told = {
        key: round(value, 6) if isinstance(value, float) else value
        for key, value in asdict(finding).items()
        if key != "holds"
    }
    return {"verdict": finding.verdict, **told}


def show(row: Row) -> None:
    """Print a claim and what was found in each model."""
    print(f"\n{row['source']}, {row['section']}: {row['claim']} ({row['published']})")
    for name, found in row["found"].items():
        print(f"  {name:<17} {cell(found, row['unit'])}", flush=True)


def cell(found: Row, unit: str) -> str:
    """A verdict, the number and where it was found."""
    if found["verdict"] == "not measured":
        return "not measured"
    if found["value"] is None:
        return f"{found['verdict']}: {found['where']}"
    number = shown(found["value"], unit)
    if found["low"] is not None:
        number += f" ({shown(found['low'], unit)} to {shown(found['high'], unit)})"
    return f"**{found['verdict']}**, {number} {WITH_UNIT[unit]}: {found['where']}"


WITH_UNIT = {"share": "%", "nats": "nats", "dimensions": "dimensions", "depth": "of the depth"}


def shown(value: float, unit: str) -> str:
    digits = {"share": 0, "nats": 2, "dimensions": 1, "depth": 2}[unit]
    value *= 100 if unit == "share" else 1
    # A small share is not 0.
    digits += unit == "share" and 0 < abs(value) < 10
    return f"{value:.{digits}f}"


def together(files: Sequence[list[Row]]) -> list[Row]:
    """The rows of the first file, with what the others found of their models."""
    rows = files[0]
    for others in files[1:]:
        found = {(row["source"], row["claim"]): row["found"] for row in others}
        rows = [row | {"found": row["found"] | found[row["source"], row["claim"]]} for row in rows]
    return rows


def table(rows: Sequence[Row]) -> str:
    """The claims as a table of Markdown."""
    models = list(rows[0]["found"])
    head = ["where", "claim, and when it holds", "bert-base-uncased", *models]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append(
            [
                f"{row['source'].removesuffix(' et al. 2019').removesuffix(' et al. 2020')}"
                f" {row['section']}".replace("Vig 2019", "Vig"),
                f"{row['claim']} *Holds if {row['holds_if']}.*",
                row["published"],
                *(cell(found, row["unit"]) for found in row["found"].values()),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
