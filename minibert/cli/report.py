"""The tables of the command line: predictions, models on this machine, linear back ends, fields.

predict.py, inventory.py and checkpoint/contract.py give the contents.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minibert.terminal import Terminal, bar, cut, number, visible

if TYPE_CHECKING:
    from minibert.answers.predict import Choice, Prediction
    from minibert.checkpoint.contract import Judged
    from minibert.cli.inventory import BackendRow, Entry

__all__ = ["backend_table", "field_tables", "model_table", "prediction_tables"]

_BAR = 24
# More questions than this are shown on one line each, such as the class of every token.
_DETAILED = 3


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


def model_table(title: str, entries: Sequence["Entry"], terminal: Terminal) -> list[str]:
    """The name, shape and size of each model, as lines, then why some cannot be loaded."""
    lines = [terminal.paint(title, "bold")]
    rows = [
        [
            visible(entry.name, space=" "),
            entry.config.family,
            entry.config.task,
            f"{entry.config.n_layers} x {entry.config.n_heads}",
            _count(entry.parameters),
            _bytes(entry.size),
        ]
        for entry in entries
        if entry.config is not None
    ]
    header = ["name", "family", "task", "layers x heads", "parameters", "on disk"]
    if rows:
        lines += terminal.table(header, rows, "<<<>>>")
    for entry in (one for one in entries if one.problem):
        lines.append(f"  {visible(entry.name, space=' ')} cannot be loaded: {entry.problem}")
    return lines if entries else [*lines, "  none"]


def backend_table(
    processor: str,
    named: str | None,
    rows: Sequence["BackendRow"],
    inputs: Sequence[int],
    terminal: Terminal,
) -> list[str]:
    """The back end of each type and shape, and the rule that chose it, as lines.

    `inputs` are the numbers of rows for which a call's back end is listed, one column each.
    """
    lines = [
        terminal.paint("linear back ends", "bold"),
        f"  processor  {visible(processor, space=' ')}",
        f"  named      {named or 'none (MINIBERT_LINEAR is not set), so the rule decides'}",
        "",
    ]
    header = ["type", "weight", *(f"{n} row" + "s" * (n > 1) for n in inputs), "at load", "rule"]
    cells = [[row.dtype, row.weight, *row.calls, _at_load(row), row.held.rule] for row in rows]
    return [*lines, *terminal.table(header, cells, "<" * len(header))]


def _at_load(row: "BackendRow") -> str:
    return "packed" if row.held.name == "onednn-packed" else "-"


def field_tables(contract: Mapping[str, Mapping[str, "Judged"]], terminal: Terminal) -> list[str]:
    """What becomes of the fields of config.json, as lines: how many, then each that is not read."""
    verdicts = ("read", "irrelevant", "refused")
    counts = {
        family: Counter(judged.verdict for judged in fields.values())
        for family, fields in contract.items()
    }
    header = ["family", *verdicts, "fields"]
    rows = [
        [family, *(str(count[verdict]) for verdict in verdicts), str(count.total())]
        for family, count in counts.items()
    ]
    lines = [terminal.paint("fields of config.json", "bold")]
    lines += terminal.table(header, rows, "<>>>>")
    for verdict in verdicts[1:]:
        families: dict[tuple[str, str], list[str]] = {}
        for family, fields in contract.items():
            for name, judged in fields.items():
                if judged.verdict == verdict:
                    families.setdefault((name, judged.reason), []).append(family)
        cells = [
            [name, "every family" if len(held) == len(contract) else ", ".join(held), reason]
            for (name, reason), held in families.items()
        ]
        lines += ["", terminal.paint(verdict, "bold")]
        lines += terminal.table(["field", "of", "why"], cells, "<<<")
    return lines


def _count(number_of: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number_of >= size:
            return f"{number_of / size:.1f} {unit}"
    return str(number_of)


def _bytes(size: int) -> str:
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{size} B"
