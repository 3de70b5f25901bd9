"""Every error minibert raises on purpose.

One family, so that a caller can catch all of it with `except minibert.MinibertError`.
Each message says what was wrong, where, what was expected, and what to do about it.
"""

#: Our name in the package index, where `minibert` belongs to somebody else.
DISTRIBUTION = "minibert-attention"


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class MinibertError(Exception):
    """The base of every error below."""


class CheckpointError(MinibertError):
    """A checkpoint cannot be found, fetched, read, or does not fit its configuration."""


class TokenizationError(MinibertError):
    """A text cannot become tokens, or tokens do not fit the model."""


class AttentionError(MinibertError):
    """The inputs of `attend` do not fit together, or no implementation gives what was asked."""


class EditError(MinibertError):
    """An edit names a place that does not exist, or a value that does not fit it."""


class TraceError(MinibertError):
    """A quantity that does not exist, or that this trace was told not to compute, was read."""


class TrainingError(MinibertError):
    """A training run cannot start or go on: its texts, its recipe or its files do not fit."""
