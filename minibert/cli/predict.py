"""`minibert predict`: the answers of the task head."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.json_output import AsJson, say_json
from minibert.cli.options import (
    DtypeName,
    ImplName,
    ModelName,
    Offline,
    Pair,
    Revision,
    Task,
    Text,
    Truncate,
    load_model,
    texts_of,
    tokens_of,
)
from minibert.terminal import Terminal, say

if TYPE_CHECKING:
    from minibert.answers.predict import Choice, Prediction
    from minibert.model import Model
    from minibert.text.tokens import Tokens

__all__ = ["predict"]


def predict(
    text: Text,
    text_b: Pair = None,
    top: Annotated[int, typer.Option(min=1, help="How many answers to show.")] = 5,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
    truncate: Truncate = False,
    as_json: AsJson = False,
) -> None:
    """Show what the model predicts.

    The task head decides what that is: masked tokens, the next token, a class, or an answer.
    """
    texts = texts_of(text, text_b)
    loaded = load_model(model, revision, offline, task, dtype, impl)
    tokens = tokens_of(loaded, texts, truncate)
    predictions = loaded.predict(tokens, top=top)
    if as_json:
        say_json(prediction_document(loaded, tokens, predictions))
        return
    from minibert.cli.report import prediction_tables

    say(*prediction_tables(predictions, tokens.strings[0], Terminal.of(sys.stdout)))


def prediction_document(
    model: "Model", tokens: "Tokens", predictions: Sequence["Prediction"]
) -> dict[str, object]:
    """The answers as plain values, by the question and the token that it is about."""
    strings = tokens.strings[0]
    return {
        "model": model.name,
        "task": model.config.task,
        "tokens": list(strings),
        "predictions": [
            {
                "question": one.question,
                "position": one.position,
                "token": None if one.position is None else strings[one.position],
                "choices": [_choice(choice) for choice in one.choices],
            }
            for one in predictions
        ],
    }


def _choice(choice: "Choice") -> dict[str, object]:
    return {
        "label": choice.label,
        "id": choice.id,
        "probability": choice.probability,
        "value": choice.value,
    }
