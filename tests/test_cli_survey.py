"""`minibert survey`: files in, tables out, and errors before work starts."""

import re

import pytest
from command_line import fails, run

from minibert.survey.tables import Survey

pytest.importorskip("pyarrow", reason="the tables of a survey need pyarrow")


def test_it_writes_tables_and_says_which_heads_are_the_most_of_a_kind(tmp_path):
    corpus, folder = tmp_path / "corpus.txt", tmp_path / "tables"
    corpus.write_text("The horse ran away .\n\nThe boat turned slowly .\n", encoding="utf-8")
    result = run(
        "survey", str(corpus), "-o", str(folder), "--offset", "2", "--token", "horse", "--gradients"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 documents, 14 tokens: ")
    found = Survey.read(folder)
    layer, head = divmod(int(found.table("to_previous").argmax()), found.n_heads)
    assert re.search(rf"to_previous +most in layer {layer} head {head}: ", result.stdout)
    assert {"to_offset_2", "to_token:horse_by_norm", "gradient_to_sep"} <= set(found.names)
    assert found.examples("to_sep", 0, 0) == ()
    fails(run("survey", str(corpus), "-o", str(folder)), "finished survey.* or .*--restart")
    again = run("survey", str(corpus), "-o", str(folder), "--restart", "--limit", "1")
    assert again.stdout.startswith("1 documents, 7 tokens: ")


def test_what_cannot_be_is_an_error_before_work_starts(tmp_path):
    corpus, folder = tmp_path / "corpus.jsonl", tmp_path / "tables"
    corpus.write_text('{"text": "The horse ran ."}\nbroken\n', encoding="utf-8")
    arguments = ("survey", str(corpus), "-o", str(folder))
    fails(run(*arguments, "--measure", "to_nothing"), "measure to_nothing: not known here")
    fails(run(*arguments, "--impl", "fast"), 'impl="fast" is not known')
    assert not folder.exists()
    assert "corpus.jsonl, line 2" in run(*arguments).stderr
    result = run(*arguments, "--on-error", "skip")
    assert result.exit_code == 0, result.output
    assert "1 documents were left out; manifest.json says which and why" in result.stderr
