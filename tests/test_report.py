"""The tables of the command line."""

from minibert.answers.predict import Choice, Prediction
from minibert.cli.report import backend_table, prediction_tables
from minibert.layers.linear_backends import NAMES
from minibert.terminal import Terminal


def test_a_class_of_each_token_takes_one_line_each() -> None:
    tokens = ["[CLS]", " Anna", "\x1b", "日本", " Ulm", "."]
    choices = (Choice("B-PER", 0.75, 1), Choice("O", 0.25, 0))
    predictions = [Prediction(0, p, "class of the token", choices) for p in range(1, 6)]
    lines = prediction_tables(predictions, tokens, Terminal())
    assert lines[0] == "class of the token"
    assert lines[1:4] == [
        "  1  ␣Anna  B-PER 0.7500  O 0.2500",
        r"  2  \x1b   B-PER 0.7500  O 0.2500",
        "  3  日本   B-PER 0.7500  O 0.2500",
    ]


def test_a_statement_about_the_text_has_its_question_as_title() -> None:
    about = Prediction(0, None, "next sentence", (Choice("follows", 0.9, 0),))
    lines = prediction_tables([about, about], ["a"], Terminal())
    assert [line for line in lines if line == "next sentence"] == ["next sentence"] * 2
    assert lines.count("") == 1


def test_the_table_of_back_ends_names_what_is_used() -> None:
    measured = {"float32 rows=8 width=512": ("onednn", {"torch": 9.25, "onednn": 3.0})}
    lines = backend_table("a machine", None, measured, NAMES, Terminal())
    assert lines[1:3] == ["  machine   a machine", "  override  none"]
    assert lines[-2].split() == ["microseconds", *NAMES, "used"]
    assert lines[-1].split()[3:] == ["9.2", "3.0", "-", "onednn"]
    forced = backend_table("a machine", "absent", measured, NAMES, Terminal())
    assert "MINIBERT_LINEAR=absent, which is no back end" in forced[2]
    assert forced[-2].split()[-1] == "fastest"
