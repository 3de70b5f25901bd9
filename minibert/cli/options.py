"""The options that several commands share, and the model that they name.

Nothing heavy is imported before a command runs.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from minibert.errors import MinibertError
from minibert.terminal import note, standard_input

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.text.tokens import Tokens

__all__ = [
    "Dtype",
    "DtypeName",
    "ImplName",
    "ModelName",
    "Offline",
    "Pair",
    "Revision",
    "Task",
    "Text",
    "Truncate",
    "load_model",
    "texts_of",
    "tokens_of",
    "unusable",
]


class Dtype(StrEnum):
    """Number types that a model can compute in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


Text = Annotated[str, typer.Argument(metavar="TEXT", help='The text; "-" reads standard input.')]
Pair = Annotated[str | None, typer.Argument(metavar="TEXT_B", help="A second text, for a pair.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="An embedded model, a checkpoint folder, or a Hub id. Default: tiny-bert.",
    ),
]
Revision = Annotated[
    str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a Hub id.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Make no request; use only the Hub's cache.")
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="Another task head than the checkpoint's own; none: only the body.",
    ),
]
DtypeName = Annotated[
    Dtype | None, typer.Option(help="The number type to compute in. Default: float32.")
]
ImplName = Annotated[
    str,
    typer.Option(
        "--impl",
        metavar="NAME",
        help="The implementation of attention: auto, eager, sdpa, reference and others.",
    ),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is longer than the model's positions.")
]


def load_model(
    name: str | None,
    revision: str | None,
    offline: bool,
    task: str | None,
    dtype: Dtype | None,
    impl: str = "auto",
) -> "Model":
    """The model of these options. Raises MinibertError where it cannot be loaded."""
    import torch

    from minibert.checkpoint.hub_errors import UnreachableError
    from minibert.loading import load

    chosen = None if dtype is None else getattr(torch, dtype.value)
    try:
        return load(name, revision=revision, offline=offline, task=task, dtype=chosen, impl=impl)
    except UnreachableError as error:
        raise MinibertError(f"{error} There is also no folder of that name.") from error


def tokens_of(model: "Model", texts: list[str], truncate: bool) -> "Tokens":
    """The tokens of the texts; writes a note where they are cut."""
    from minibert.viz.labels import is_cut

    tokens = model.tokenize(*texts, truncate=truncate)
    if is_cut(tokens, 0):
        note("note", f"the text is cut after {tokens.lengths[0]} tokens.")
    return tokens


def texts_of(text: str, text_b: str | None) -> list[str]:
    """The one or two texts; one of them may be standard input."""
    if text == text_b == "-":
        raise typer.BadParameter("only one of the two texts can be standard input")
    return [standard_input() if one == "-" else one for one in (text, text_b) if one is not None]


def unusable(message: str) -> NoReturn:
    """Print why a command cannot be run as it was written, and exit with 2."""
    note("error", message)
    raise typer.Exit(2)
