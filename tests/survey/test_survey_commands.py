"""`minibert survey` and its report, on what a survey leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from attention_pages import packed_in
from command_line import fails, run

pytest.importorskip("pyarrow")
LINES = (
    "the horse quickly ran away and the dog slowly walked home",
    "the boat turned in the sea and the sea was blue and cold",
    "the rabbit slept under the old tree while the cat looked at it",
    "the girl read a long book and the boy drew a small house",
    "this line is behind the limit and nothing of it is measured",
    "nor of this one",
)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(map(pair, LINES[::2], LINES[1::2])))
    return path


def pair(first: str, second: str) -> str:
    return json.dumps({"a": first, "b": second}) + "\n"


PAIRS = ("--field", "a", "--pair-field", "b")


def header_in(path: Path) -> dict[str, Any]:
    return dict(json.loads(packed_in(path.read_text(), "header")))


def test_the_report_is_about_the_documents_that_were_surveyed_and_made_again(corpus, tmp_path):
    folder = tmp_path / "survey"
    options = (*PAIRS, "--limit", "2", "--pattern-documents", "1", "-o", str(folder))
    command = ("survey", str(corpus), *options)
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"The report: {(folder / 'report.html').as_uri()}"
    header = header_in(folder / "report.html")
    assert header["title"] == "tiny-bert"
    assert {one["documents"] for one in header["measures"]} <= {0, 1, 2}
    pairs = {"corpus.jsonl:1", "corpus.jsonl:2"}
    # Sequences that come twice are the other examples.
    ids = {one for one in header["documents"] if not one.startswith("drawn sequence ")}
    assert ids == pairs
    # All examples of so small a corpus have a page.
    assert header["notes"] == []
    linked = {header["documents"][number] for number, *_ in header["links"]}
    assert linked == pairs
    shown = header_in(folder / "examples.html")["examples"]
    assert [one["texts"] for one in shown[:1]] == [list(LINES[:2])]
    same = next(one for one in header["patterns"] if one["name"] == "same_word_other_sentence")
    assert same["documents"] == 1
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("report.html", "examples.html", "patterns.json"):
        (folder / name).unlink()
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert again.stdout.endswith(f"The report: {(folder / 'report.html').as_uri()}\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    # Neither other documents nor another model can be shown as what was surveyed.
    corpus.write_text("".join(map(pair, LINES[1::2], LINES[::2])))
    fails(run(*command), "documents are not those that the run in this folder began with")
    fails(run(*command, "--model", "tiny-gpt2"), "belongs to a run with another model")


def test_the_tables_can_be_had_alone(corpus, tmp_path):
    done = run("survey", str(corpus), "--field", "a", "--no-report", "-o", str(tmp_path / "s"))
    assert done.exit_code == 0, done.output
    assert not list((tmp_path / "s").glob("*.html"))
