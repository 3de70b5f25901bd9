"""The tables of the command line."""

from minibert.answers.predict import Choice as Answer
from minibert.answers.predict import Prediction
from minibert.cli.inventory import BackendRow, backend_table
from minibert.cli.predict import prediction_tables
from minibert.layers.linear_backends import Choice
from minibert.terminal import Terminal


def test_a_class_of_each_token_takes_one_line_each() -> None:
    tokens = ["[CLS]", " Anna", "\x1b", "日本", " Ulm", "."]
    choices = (Answer("B-PER", 0.75, 1), Answer("O", 0.25, 0))
    predictions = [Prediction(0, p, "class of the token", choices) for p in range(1, 6)]
    lines = prediction_tables(predictions, tokens, Terminal())
    assert lines[0] == "class of the token"
    assert lines[1:4] == [
        "  1  ␣Anna  B-PER 0.7500  O 0.2500",
        r"  2  \x1b   B-PER 0.7500  O 0.2500",
        "  3  日本   B-PER 0.7500  O 0.2500",
    ]


def test_a_statement_about_the_text_has_its_question_as_title() -> None:
    about = Prediction(0, None, "next sentence", (Answer("follows", 0.9, 0),))
    lines = prediction_tables([about, about], ["a"], Terminal())
    assert [line for line in lines if line == "next sentence"] == ["next sentence"] * 2
    assert lines.count("") == 1


def test_the_table_of_back_ends_gives_the_rule_of_each_shape() -> None:
    held = Choice("onednn-packed", "AMD, float32: wide")
    rows = [BackendRow("float32", "768 -> 768", held, ("torch", "onednn", "torch"))]
    lines = backend_table(rows, Terminal())
    assert lines[1].split()[0] == "processor"
    assert lines[-2].split()[:6] == ["type", "weight", "1", "row", "16", "rows"]
    assert lines[-1].split()[:1] == ["float32"]
    assert lines[-1].split()[4:] == [
        *("torch", "onednn", "torch"),
        *("packed", "AMD,", "float32:", "wide"),
    ]
