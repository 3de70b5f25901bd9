"""`minibert predict`: the answers of the task head, as tables or JSON."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minibert.cli.options import Loading, Texts, say_json, spread
from minibert.terminal import Terminal, bar, cut, number, say, visible

if TYPE_CHECKING:
    from minibert.answers.predict import Choice, Prediction

_BAR = 24
# More questions than this are shown on one line each, such as the class of every token.
_DETAILED = 3


@spread()
def predict(
    texts: Texts,
    top: int = 5,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Show what the model predicts.

    The task head decides what that is: masked tokens, the next token, a class, or an answer.

    Options:
        top [>=1]: How many answers to show.
    """
    model, tokens = texts.tokens(loading)
    predictions, strings = model.predict(tokens, top=top), tokens.strings[0]
    if not as_json:
        say(*prediction_tables(predictions, strings, Terminal.of(sys.stdout)))
        return
    answers = [
        {
            "question": one.question,
            "position": one.position,
            "token": None if one.position is None else strings[one.position],
            "choices": [
                {name: getattr(choice, name) for name in ("label", "id", "probability", "value")}
                for choice in one.choices
            ],
        }
        for one in predictions
    ]
    about = {"model": model.name, "task": model.config.task, "tokens": list(strings)}
    say_json(about | {"predictions": answers})


def prediction_tables(
    predictions: Sequence["Prediction"], tokens: Sequence[str], terminal: Terminal
) -> list[str]:
    """The answers to each question, as lines; `tokens` are the sentence's strings."""
    if len(predictions) > _DETAILED:
        return _one_a_line(predictions, tokens, terminal)
    lines: list[str] = []
    for prediction in predictions:
        lines += [""] * bool(lines) + [terminal.paint(_title(prediction, tokens), "bold")]
        rows = [_choice_row(choice, terminal) for choice in prediction.choices]
        lines += terminal.table(["", "prob", ""], rows, "<><")
    return lines


def _title(prediction: "Prediction", tokens: Sequence[str]) -> str:
    if prediction.position is None:
        return prediction.question
    where = "after" if prediction.question == "next token" else "at"
    token = visible(tokens[prediction.position])
    return f"{prediction.question} {where} position {prediction.position}, {token}"


def _choice_row(choice: "Choice", terminal: Terminal) -> list[str]:
    # A regression gives a value, not a probability, so it has no bar.
    drawn = "" if choice.value is not None else bar(choice.probability, _BAR)
    label = cut(visible(choice.label.strip(" ")), terminal.width - _BAR - 16)
    return [label or visible(choice.label), _answer(choice), terminal.paint(drawn, "positive")]


def _answer(choice: "Choice") -> str:
    return number(choice.probability if choice.value is None else choice.value)


def _one_a_line(
    predictions: Sequence["Prediction"], tokens: Sequence[str], terminal: Terminal
) -> list[str]:
    lines: list[str] = []
    for question in dict.fromkeys(prediction.question for prediction in predictions):
        rows = []
        for prediction in (one for one in predictions if one.question == question):
            position = prediction.position
            token = "" if position is None else visible(tokens[position])
            answers = "  ".join(
                f"{visible(choice.label.strip(' '))} {_answer(choice)}"
                for choice in prediction.choices
            )
            where = "" if position is None else str(position)
            rows.append([where, cut(token, 20), cut(answers, terminal.width - 32)])
        lines += [""] * bool(lines) + [terminal.paint(question, "bold")]
        lines += terminal.table(["", "", ""], rows, "><<")
    return lines
