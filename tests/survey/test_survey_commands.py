"""`minibert survey` and its report, `survey-report` and `survey-diff`, on what a survey leaves."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_pages import packed_in
from command_line import fails, run
from survey.made_surveys import survey_of

from minibert.survey.differences import diff
from minibert.survey.tables import Survey

pytest.importorskip("pyarrow")
NAMES = ("entropy", "to_previous", "to_sep")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two surveys: head 1-0 lost half of what it gave [SEP]."""
    means = np.random.default_rng(9).uniform(0.1, 0.9, size=(3, 2, 3))
    means[2, 1, 0] = 0.8
    later = means.copy()
    later[2, 1, 0] = 0.4
    for name, one in (("before", means), ("after", later)):
        survey_of(one, NAMES).write(tmp_path / name)
    return str(tmp_path / "before"), str(tmp_path / "after")


def test_the_table_names_the_head_that_changed(folders: tuple[str, str]) -> None:
    done = run("survey-diff", *folders, "--top", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 of 6 heads changed beyond the 95 % interval")
    assert lines[3].split()[:2] == ["1-0", "1-0"]
    assert lines[3].endswith("to_sep 0.8000 to 0.4000")
    assert lines[-1] == "  and 4 more; --top 6 shows all"


def test_every_number_comes_as_json_and_into_a_file(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    found = diff(*map(Survey.read, folders))
    done = run("survey-diff", *folders, "--json", "-o", str(tmp_path / "changes.csv"))
    assert json.loads(done.stdout) == found.to_dict()
    rows = list(csv.DictReader((tmp_path / "changes.csv").read_text().splitlines()))
    assert len(rows) == 6 * 3
    changed = [row for row in rows if row["exceeds"] == "1"]
    assert [(row["layer_a"], row["head_a"], row["measure"]) for row in changed] == [
        ("1", "0", "to_sep")
    ]
    assert float(changed[0]["change"]) == pytest.approx(-0.4)


def test_what_cannot_be_compared_is_one_line(folders: tuple[str, str], tmp_path: Path) -> None:
    fails(run("survey-diff", folders[0], str(tmp_path / "none")), "no finished survey")
    fails(run("survey-diff", *folders, "-o", "changes.xlsx"), "must end in .csv or .json")
    fewer = survey_of(np.random.default_rng(1).uniform(size=(2, 2, 3)), NAMES[:2])
    fewer.write(tmp_path / "fewer")
    fails(run("survey-diff", folders[0], str(tmp_path / "fewer")), "only in A .'to_sep'.")


pytest.importorskip("pyarrow")
LINES = (
    "the horse quickly ran away and the dog slowly walked home",
    "the boat turned in the sea and the sea was blue and cold",
    "the rabbit slept under the old tree while the cat looked at it",
    "the girl read a long book and the boy drew a small house",
    "this line is behind the limit and nothing of it is measured",
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES))
    return path


def header_in(path: Path) -> dict[str, Any]:
    return dict(json.loads(packed_in(path.read_text(), "header")))


def test_the_report_is_about_the_documents_that_were_surveyed(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "survey"
    options = ("--unit", "line", "--pairs", "--limit", "2", "--pattern-documents", "1")
    done = run("survey", str(corpus), *options, "-o", str(folder))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"The report: {(folder / 'report.html').as_uri()}"
    header = header_in(folder / "report.html")
    assert header["title"] == "tiny-bert"
    assert {one["documents"] for one in header["measures"]} <= {0, 1, 2}
    pairs = {"corpus.txt:1 + corpus.txt:2", "corpus.txt:3 + corpus.txt:4"}
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


def test_the_tables_can_be_had_alone(corpus: Path, tmp_path: Path) -> None:
    done = run("survey", str(corpus), "--unit", "line", "--no-report", "-o", str(tmp_path / "s"))
    assert done.exit_code == 0, done.output
    assert not list((tmp_path / "s").glob("*.html"))


def test_the_report_of_a_finished_survey_is_made_again(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "survey"
    arguments = (str(folder), str(corpus), "--unit", "line")
    fails(run("survey-report", *arguments), f"{folder}: no finished survey")
    done = run("survey", *arguments[1:], "--pairs", "--limit", "2", "-o", str(folder))
    assert done.exit_code == 0, done.output
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("report.html", "examples.html", "patterns.json"):
        (folder / name).unlink()
    again = run("survey-report", *arguments)
    assert again.exit_code == 0, again.output
    assert again.stdout == f"The report: {(folder / 'report.html').as_uri()}\n"
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "report.html"} == {
        name: content for name, content in first.items() if name != "report.html"
    }
    fresh, old = (
        header_in(folder / "report.html"),
        json.loads(packed_in(first["report.html"].decode(), "header")),
    )
    # It is not this command that makes the survey again.
    assert fresh == old | {"command": ""}
    # Neither other documents nor another model can be shown as what was surveyed.
    fails(run("survey-report", *arguments[:2]), "documents are not those that were surveyed")
    fails(run("survey-report", *arguments, "--model", "tiny-gpt2"), "'tiny-gpt2' is another")
