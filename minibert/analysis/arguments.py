"""Checks of what an analysis is given, made before it computes anything."""

import operator
from typing import Any

from minibert.attached.attach import Attached
from minibert.errors import MinibertError, TraceError
from minibert.layers.config import Config
from minibert.trace.read import Trace

__all__ = [
    "check_callable",
    "check_choice",
    "check_model",
    "check_trace",
    "check_unedited",
    "is_whole",
    "listed",
    "whole_number",
]


def check_trace(trace: Any, name: str = "trace") -> None:
    """Raise TraceError for what is no trace, and for a trace of packed sentences."""
    if not isinstance(trace, Trace):
        raise TraceError(
            f"{name} is a {type(trace).__name__}; expected a trace, as model.trace(text) gives."
        )
    if trace.allowed.packed is not None:
        raise TraceError(
            f"{name} is a packed trace, whose sentences share one row; give the trace of one of "
            "its sentences, as trace.text(0)."
        )


def check_unedited(trace: Trace) -> None:
    """Raise TraceError for a trace that was made with edits, where they would be lost."""
    check_trace(trace)
    if trace.edited_from is not None:
        raise TraceError(
            "This trace was made with edits, and what is computed here runs the text again without "
            "them. Give the trace of the text without edits."
        )


def check_model(model: Any) -> None:
    """Raise TraceError for what is no minibert model."""
    if isinstance(model, Attached):
        raise TraceError(
            f"{model.name} is attached, and this reads a model that minibert loads. Of an attached "
            "model there are pages, survey, patterns, head_distances, findings and "
            "query_key_dimensions. See docs/attach.md#a-corpus"
        )
    if not isinstance(getattr(model, "config", None), Config) or not hasattr(model, "body"):
        raise TraceError(
            f"model is a {type(model).__name__}; expected a model, as minibert.load() gives."
        )


def check_callable(function: Any, name: str, error: type[MinibertError]) -> None:
    """Raise the error for what cannot be called."""
    if not callable(function):
        raise error(f"{name} is a {type(function).__name__}; expected a function.")


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise TraceError for what is none of the choices."""
    # Asked first: an array compares with each choice entry by entry.
    if not isinstance(value, str) or value not in choices:
        raise TraceError(f"{name}={value!r:.80}: expected one of {', '.join(map(repr, choices))}.")


def listed(values: Any, name: str, error: type[MinibertError], expected: str) -> list[Any]:
    """The values as a list; the error for what is no collection of values, text included."""
    if not isinstance(values, str | bytes):
        try:
            return list(values)
        except TypeError:
            # A tensor without axes has an iterator, which refuses.
            pass
    raise error(f"{name}={values!r:.80}: expected {expected}.")


def whole_number(
    name: str, value: Any, error: type[MinibertError], *, least: int, most: int = 2**31 - 1
) -> int:
    """The value as an int; the error where it is none from `least` to `most`."""
    if not is_whole(value) or not least <= operator.index(value) <= most:
        raise error(f"{name}={value!r:.80}: expected a whole number from {least} to {most}.")
    return operator.index(value)


def is_whole(value: Any) -> bool:
    """Whether it is one whole number; an array or tensor of one counts, a bool does not."""
    try:
        operator.index(value)
    except TypeError:
        return False
    # A bool counts as a number to Python; True for token 1 is a mistake.
    return not isinstance(value, bool)
