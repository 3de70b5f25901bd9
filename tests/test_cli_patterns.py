"""`minibert patterns`: what it prints, and how it fails."""

import json
import re
from pathlib import Path

import pytest
from command_line import fails, run

import minibert
from minibert.survey.documents import read_documents
from minibert.survey.pattern_table import PATTERNS
from minibert.survey.run import survey


def test_without_a_corpus_the_built_in_pairs_are_read() -> None:
    result = run("patterns", "--examples", "--dimensions")
    assert result.exit_code == 0
    assert "no corpus is named" in result.stderr
    for pattern in PATTERNS.values():
        assert f"\n{pattern.name}: {pattern.words}\n" in result.stdout
    assert "  2-3*  1.00" in result.stdout
    assert "    0-2  " in result.stdout
    assert "dimensions that carry query·key, of 32 (participation ratio)" in result.stdout
    assert re.search(r"  all heads, median +16 +\d", result.stdout)


def test_a_corpus_is_read_as_asked(tmp_path: Path) -> None:
    lines = ({"a": "the old house", "b": f"a house of wood, number {n}"} for n in range(5))
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reading = ("--field", "a", "--pair-field", "b", "--limit", "3")
    result = run("patterns", str(path), *reading, "--json", "--dimensions")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    documents = {name: table["documents"] for name, table in found.items()}
    assert documents["dimensions"] == 3
    assert len(found["dimensions"]["heads"]) == 16
    assert documents["next"] == documents["same_word_other_sentence"] == 3
    assert documents["induction"] == 100
    [example, *_] = found["same_word_other_sentence"]["heads"][0]["examples"]
    assert example["document"] == "pairs.jsonl:1"


def test_two_documents_in_a_row_are_a_pair_and_a_survey_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    corpus, folder = tmp_path / "corpus.txt", tmp_path / "survey"
    corpus.write_text("the old house.\nthe horse ran.\nthe wind.\nthe cold wind.\n")
    result = run("patterns", str(corpus), "--unit", "line", "--pairs", "--json")
    assert result.exit_code == 0, result.stderr
    of_model = json.loads(result.stdout)["same_word_other_sentence"]
    documents = read_documents(corpus, unit="line")
    survey(minibert.load(), documents, pairs=True, by_norm=False, output=folder)
    result = run("patterns", "--survey", str(folder), "--json")
    assert result.exit_code == 0, result.stderr
    of_survey = json.loads(result.stdout)["same_word_other_sentence"]
    assert of_model["documents"] == of_survey["documents"] == 2
    for ours, theirs in zip(of_model["heads"], of_survey["heads"], strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=2e-6)
    fails(run("patterns", "--survey", str(folder), "--model", "x"), "leave out --model", 2)
    fails(run("patterns", "--survey", str(folder), "--kind", "text"), "leave out --kind", 2)


def test_what_an_error_says_to_name_can_be_named(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.latin"
    corpus.write_bytes("the caf\xe9 .\n".encode("latin-1"))
    fails(run("patterns", str(corpus)), "say what it is with --kind")
    fails(run("patterns", str(corpus), "--kind", "text"), "not utf-8; name .* with --encoding")
    result = run("patterns", str(corpus), "--kind", "text", "--encoding", "latin-1", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["previous"]["documents"] == 1


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["nowhere.txt"], "nowhere.txt", 1),
        (["corpus.txt", "--unit", "page"], "page", 1),
        (["corpus.txt", "--limit", "0"], "--limit", 2),
        (["--field", "text"], "--field says how a corpus is read", 2),
        (["--encoding", "utf-8"], "--encoding says how a corpus is read", 2),
        (["--pairs"], "--pairs says how a corpus is read", 2),
    ],
)
def test_a_corpus_that_cannot_be_read_is_known_at_once(
    arguments: list[str],
    message: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("one\n")
    fails(run("patterns", *arguments, "--model", "no-such-model"), message, status)
