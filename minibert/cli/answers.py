"""`minibert predict`, `generate` and `explain`. torch is imported only when a command runs."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minibert.cli.options import Loading, Texts, say_json, spread
from minibert.terminal import (
    Terminal,
    bar,
    cut,
    encodable,
    note,
    number,
    printable,
    say,
    standard_input,
    visible,
)

if TYPE_CHECKING:
    from minibert.answers.predict import Choice, Prediction

_BAR = 24
# More questions than this are shown on one line each, such as the class of every token.
_DETAILED = 3


@spread()
def predict(texts: Texts, top: int = 5, as_json: bool = False, *, loading: Loading) -> None:
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


@spread("model", "task")
def generate(
    text: str,
    max_new_tokens: int = 40,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: list[str] | None = None,
    model: str = "tiny-gpt2",
    *,
    loading: Loading,
) -> None:
    """Continue a text, token by token.

    Options:
        max_new_tokens [>=1]: The most tokens to add.
        temperature [>=0]: Above 1: more surprising text; below 1: less. 0: always the most probable
            token.
        top_k [>=1]: Draw from this many of the most probable tokens.
        top_p: Draw from the likeliest tokens that together have this probability.
        seed [>=0]: Another seed gives another text.
        stop [STRING]: End before this string; repeatable.
        model [-m, NAME]: An embedded GPT-2, a checkpoint folder, or a Hub id.
    """
    prompt = standard_input() if text == "-" else text
    loaded = loading.load(model=model)
    beginning: list[str] = [prompt]

    def show(piece: str) -> None:
        # With the first piece, so that a prompt that cannot be continued is not printed.
        _write("".join([*beginning, piece]))
        beginning.clear()

    generated = loaded.generate(
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop or (),
        stream=show,
    )
    say("".join(map(_shown, beginning)))
    if generated.stopped_by == "positions":
        limit = loaded.config.n_positions
        note("note", f"the text ends here, because {loaded.name} has only {limit} positions.")


def _write(text: str) -> None:
    sys.stdout.write(encodable(_shown(text), sys.stdout.encoding))
    sys.stdout.flush()


def _shown(text: str) -> str:
    """The text; for a terminal, without characters that would control it."""
    return printable(text) if sys.stdout.isatty() else text


@spread()
def explain(
    texts: Texts,
    layer: int,
    head: int,
    query: str,
    key: str | None = None,
    top: int = 8,
    why: bool = False,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Show the calculation of one row of attention.

    It goes from a query and a key to the score, the softmax of the row, and the sum that gives z.

    Options:
        layer: The layer, from 0.
        head: The head, from 0.
        query: The query: the position of a token, or the token.
        key: The key, in the same way. Default: the most attended one.
        top [>=1]: How many of the largest terms to show.
        why: Also say what makes the head look there, down to the words (docs/why.md).
    """
    model, tokens = texts.tokens(loading)
    from minibert.answers.explain import explain as explain_row
    from minibert.answers.explain import find_token, render, trace_of_head

    # Searched here too, so that a wrong token is an error before anything is computed.
    row = find_token(tokens, query, what="query")
    column = None if key is None else find_token(tokens, key, what="key")
    trace = trace_of_head(model, tokens, layer=layer, head=head)
    explanation = explain_row(trace, layer=layer, head=head, query=row, key=column)
    place = (layer, head, row, explanation.key_position)
    found = trace.why(*place) if why else None
    if as_json:
        say_json(explanation.to_dict() | ({} if found is None else {"why": found.to_dict()}))
        return
    say(render(explanation, Terminal.of(sys.stdout), top=top))
    if found is not None:
        say(f"\n{found}\n\n{found.tree()}")
