"""The options that several commands share, as dataclasses, and what is made of them.

A command names such a dataclass as the type of a parameter; `spread` makes options of its fields.
Nothing heavy is imported before a command runs.
"""

import functools
import inspect
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from minibert.errors import MinibertError
from minibert.terminal import note, say, standard_input

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.documents import Documents
    from minibert.text.tokens import Tokens


def spread(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: of a command's parameters that are dataclasses, each field is an option.

    Fields in `left_out` are no options of this command and keep their defaults.
    """

    def spread_out(command: Callable[..., None]) -> Callable[..., None]:
        options: list[inspect.Parameter] = []
        bundles: dict[str, tuple[type, list[str]]] = {}
        for parameter in inspect.signature(command).parameters.values():
            kind = parameter.annotation
            if isinstance(kind, type) and is_dataclass(kind):
                held = [one for one in _options_of(kind) if one.name not in left_out]
                bundles[parameter.name] = kind, [one.name for one in held]
                options += held
            else:
                options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def called(**given: object) -> None:
            for name, (kind, names) in bundles.items():
                given[name] = kind(**{one: given.pop(one) for one in names if one in given})
            command(**given)

        called.__dict__["__signature__"] = inspect.Signature(options)
        called.__annotations__ = {one.name: one.annotation for one in options}
        return called

    return spread_out


def _options_of(kind: type) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=one.type,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
        )
        for one in fields(kind)
    ]


Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Text = Annotated[str, typer.Argument(metavar="TEXT", help='The text; "-" reads standard input.')]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="One JSON document, every number unrounded, and nothing else."),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Begin anew instead of going on with what is there.")
]


@dataclass(frozen=True)
class Loading:
    """Which model a command loads, and how it computes."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="An embedded model, a checkpoint folder, or a Hub id. Default: tiny-bert.",
        ),
    ] = None
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a Hub id.")
    ] = None
    offline: Annotated[
        bool, typer.Option("--offline", help="Make no request; use only the Hub's cache.")
    ] = False
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Another task head than the checkpoint's own; none: only the body.",
        ),
    ] = None
    dtype: Annotated[
        Dtype | None, typer.Option(help="The number type to compute in. Default: float32.")
    ] = None
    impl: Annotated[
        str,
        typer.Option(
            "--impl",
            metavar="NAME",
            help="The implementation of attention: auto, eager, sdpa, reference and others.",
        ),
    ] = "auto"

    def load(self, **chosen: str | None) -> "Model":
        """The model; `chosen` replaces options. Raises MinibertError where it cannot be loaded."""
        if chosen:
            return replace(self, **chosen).load()  # type: ignore[arg-type]
        import torch

        from minibert.checkpoint.hub import UnreachableError
        from minibert.loading import load

        options = {name: value for name, value in vars(self).items() if name != "model"}
        options["dtype"] = self.dtype and getattr(torch, self.dtype)
        try:
            return load(self.model, **options)
        except UnreachableError as error:
            raise MinibertError(f"{error} There is also no folder of that name.") from error


@dataclass(frozen=True)
class Texts:
    """The text or the pair of texts that a model reads."""

    text: Text
    text_b: Annotated[
        str | None, typer.Argument(metavar="TEXT_B", help="A second text, for a pair.")
    ] = None
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut a text that is longer than the model's positions."),
    ] = False

    @functools.cached_property
    def read(self) -> list[str]:
        """The one or two texts; one of them may be standard input."""
        if self.text == self.text_b == "-":
            raise typer.BadParameter("only one of the two texts can be standard input")
        given = [self.text] if self.text_b is None else [self.text, self.text_b]
        return [standard_input() if one == "-" else one for one in given]

    def tokens(self, loading: Loading) -> "tuple[Model, Tokens]":
        """The model and its tokens of the texts; writes a note where they are cut."""
        texts, model = self.read, loading.load()
        from minibert.viz.example import is_cut

        tokens = model.tokenize(*texts, truncate=self.truncate)
        if is_cut(tokens, 0):
            note("note", f"the text is cut after {tokens.lengths[0]} tokens.")
        return model, tokens


Corpus = Annotated[
    list[Path],
    typer.Argument(
        metavar="CORPUS...",
        help="Files or folders: plain text, JSON lines, Parquet or CoNLL-U, also as .gz.",
        show_default=False,
    ),
]
InPairs = Annotated[
    bool, typer.Option("--pairs", help="Take each two documents as one with two texts.")
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Read no more than so many documents.")
]
BatchTokens = Annotated[
    int, typer.Option(metavar="N", min=1, help="Tokens that are computed together.")
]


@dataclass(frozen=True)
class Reading:
    """How the files of a corpus become documents."""

    kind: Annotated[
        Literal["text", "jsonl", "parquet", "conllu"] | None,
        typer.Option("--kind", help="What the files are, where their names do not say it."),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A document: paragraph, line or file of plain text; sentence or document of "
            "CoNLL-U.",
        ),
    ] = None
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The field or column with the text. Default: text."),
    ] = None
    pair_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field or column with a second text.")
    ] = None
    encoding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of plain text and JSON lines. Default: utf-8."),
    ] = None
    shortest: Annotated[
        int, typer.Option(metavar="N", min=1, help="Leave out texts with fewer characters.")
    ] = 1
    on_error: Annotated[
        Literal["raise", "skip"],
        typer.Option("--on-error", help="Stop at what cannot be read, or skip and count it."),
    ] = "raise"

    @property
    def given(self) -> tuple[str, ...]:
        """The options that are not left at their defaults, as they are typed."""
        return tuple(
            f"--{one.name.replace('_', '-')}"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        )

    def documents(self, corpus: Sequence[Path]) -> "Documents":
        """The documents, from the first. Raises SurveyError for what cannot be read."""
        from minibert.survey.documents import read_documents

        return read_documents(
            corpus, **vars(self) | {"encoding": "utf-8" if self.encoding is None else self.encoding}
        )


def say_json(document: Mapping[str, object]) -> None:
    """Write one document on one line; NaN and infinity, which JSON has no word for, as null.

    docs/command_line.md has the keys. Names stay as they are; new ones may be added.
    """
    say(json.dumps(_plain(document), allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def unusable(message: str) -> NoReturn:
    """Print why a command cannot be run as it was written, and exit with 2."""
    note("error", message)
    raise typer.Exit(2)


def check_file(path: Path, *, made: Path | None = None) -> None:
    """Exits with 2 where the file cannot be written; the folder `made` is made by the command."""
    if path.exists() and not path.is_file():
        unusable(f"{path} is a folder, a pipe or a device; expected the name of a file.")
    if made is not None and path.parent.resolve() == made.resolve():
        return
    if not path.parent.is_dir():
        unusable(f"There is no folder {path.parent} to write {path.name} to.")
    try:
        # By writing a file in the folder, because permissions alone do not tell.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        unusable(f"{path} cannot be written: {error.strerror}.")


def check_picture(path: Path, *, made: Path | None = None) -> None:
    """The same for a figure, which also needs an ending that matplotlib knows, and matplotlib."""
    from minibert.viz.plots import check_output

    try:
        check_output(path)
    except MinibertError as error:
        unusable(str(error))
    check_file(path, made=made)
