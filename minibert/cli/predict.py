"""`minibert predict`: the answers of the task head."""

import sys
from typing import Annotated

import typer

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
) -> None:
    """Show what the model predicts.

    The task head decides what that is: masked tokens, the next token, a class, or an answer.
    """
    texts = texts_of(text, text_b)
    loaded = load_model(model, revision, offline, task, dtype, impl)
    from minibert.cli.report import prediction_tables

    tokens = tokens_of(loaded, texts, truncate)
    predictions = loaded.predict(tokens, top=top)
    say(*prediction_tables(predictions, tokens.strings[0], Terminal.of(sys.stdout)))
