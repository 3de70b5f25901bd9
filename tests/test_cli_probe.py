"""`minibert probe`: tables, JSON, and errors before any work."""

import json
from pathlib import Path

import pytest
from command_line import fails, run

import minibert
from minibert.survey.conllu import read_sentences
from minibert.survey.probes.dependency import count_dependencies, relation_scores

WORDS = [("the", 2, "det"), ("horse", 3, "nsubj"), ("ran", 0, "root"), ("away", 3, "advmod")]
BOOK = """#begin document (a); part 0
a\t0\t0\tMary\t_\t(1)
a\t0\t1\tmet\t_\t
a\t0\t2\tTom\t_\t(2)
a\t0\t3\t.\t_\t

a\t0\t0\tShe\t_\t(1)
a\t0\t1\tran\t_\t

#end document
"""


def treebank(path: Path, count: int) -> Path:
    line = "{}\t{}\t_\tX\t_\t_\t{}\t{}\t_\t_"
    rows = [line.format(n, *word) for n, word in enumerate(WORDS, start=1)]
    path.write_text(("\n".join(rows) + "\n\n") * count)
    return path


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    return treebank(tmp_path / "a.conllu", 12)


def test_the_scores_of_the_library_come_out_as_json(trees: Path, tmp_path: Path) -> None:
    other = treebank(tmp_path / "b.conllu", 3)
    arguments = ("probe", "dependency", str(trees), "--measure", str(other), "--least", "1")
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["model"], found["chosen_on"], found["measured_on"]) == ("tiny-bert", 12, 3)
    model = minibert.load()
    counts = [count_dependencies(model, read_sentences(path)) for path in (trees, other)]
    expected = [vars(score) for score in relation_scores(*counts)]
    assert found["scores"] == expected
    table = run(*arguments)
    assert table.stdout.count("\n") == len(expected) + 3
    assert "chosen on 12 texts, measured on 3." in table.stdout


def test_without_a_second_part_every_other_text_is_measured_on(trees: Path) -> None:
    result = run("probe", "parser", str(treebank(trees, 21)), "--dimensions", "2", "--no-random")
    assert result.exit_code == 0, result.output
    assert "no --measure" in result.stderr
    assert "chosen on 11 texts, measured on 10." in result.stdout
    [branching] = [line for line in result.stdout.splitlines() if "right-branching" in line]
    assert "50.0" in branching
    assert "random weights" not in result.stdout


def test_coreference_reads_books_and_names_its_baselines(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(BOOK)
    measure = ("--measure", str(path))
    result = run("probe", "coreference", str(path), *measure, "--tokens", "16")
    assert result.exit_code == 0, result.output
    header, everything, pronouns, *_ = result.stdout.splitlines()
    assert header.split()[-5:] == ["nearest", "same", "head", "word", "rules"]
    # "Tom" is the nearest, and nothing has the head word "She".
    assert everything.split()[-3:] == pronouns.split()[-3:] == ["0.0", "0.0", "0.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dependency", "absent.conllu"], "absent.conllu"),
        (["dependency", "one.conllu"], "has one text; give another file with --measure"),
        (["parser", "bare.conllu"], "Sentence 1 has 1 words, 0 heads"),
        (["parser", "few.conllu", "--no-random"], "2 sentences are too few to train on"),
        (
            ["coreference", "a.conll", "--measure", "b.tsv"],
            "a.conll and b.tsv ask different things",
        ),
        (["parser", "more.conllu", "--dimensions", "900"], "900 dimensions .* expected 1 to"),
        (["coreference", "one.conllu"], "expected a .conll file of LitBank or a .tsv file of GAP"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    treebank(tmp_path / "one.conllu", 1)
    treebank(tmp_path / "few.conllu", 4)
    treebank(tmp_path / "more.conllu", 20)
    (tmp_path / "bare.conllu").write_text("1\thi\t_\tX\t_\t_\t_\t_\t_\t_\n\n" * 2)
    result = run("probe", *arguments)
    result.stderr_bytes = b"".join(
        line for line in (result.stderr_bytes or b"").splitlines(True) if b"note: " not in line
    )
    fails(result, message)
