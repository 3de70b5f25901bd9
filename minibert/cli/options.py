"""The options that several commands share, as dataclasses, and what is made of them.

A command names such a dataclass as the type of a parameter; `spread` makes options of its fields.
Nothing heavy is imported before a command runs.
"""

import functools
import inspect
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, get_args, get_origin

import typer

from minibert.errors import MinibertError, check_index
from minibert.terminal import note, say, standard_input

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.documents import Documents
    from minibert.text.tokens import Tokens


#: Options that several commands have, where a command's own table does not name them.
COMMON = """
Options:
    text [argument, TEXT]: The text; "-" reads standard input.
    corpus [argument, CORPUS..., no default]: Files or folders: plain text or JSON lines, also as
        .gz, or Parquet.
    as_json [--json]: One JSON document, every number unrounded, and nothing else.
    restart [--restart]: Start again instead of resuming.
    limit [N, >=1]: Read at most this many documents.
    batch_tokens [N, >=1]: Tokens that are computed together.
    weights: Round the large matrices to 8 bits.
    browse [--open]: Open the page in a browser.
    features [--features, NAME]: Features into which the page can split scores: a folder, a Hub id,
        or tiny-gpt2 (docs/why.md).
"""
_VALUES: dict[object, str] = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
_ENTRY = re.compile(r"    (\w+)(?: \[(.*?)\])?: (.*)")


def spread(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that makes options of a command's parameters, with the help of its docstring.

    The docstring ends with a table, a line an option: `name [flags, METAVAR, >=least]: what it is`;
    a parameter that is a dataclass stands for its fields, with the table of that class. Fields in
    `left_out` are not options of this command and keep their defaults.
    """

    def spread_out(command: Callable[..., None]) -> Callable[..., None]:
        options: list[inspect.Parameter] = []
        bundles: dict[str, tuple[type, list[str]]] = {}
        about, table = _described(command)
        for parameter in inspect.signature(command).parameters.values():
            kind = parameter.annotation
            if isinstance(kind, type) and is_dataclass(kind):
                held = [one for one in _options_of(kind) if one.name not in left_out]
                bundles[parameter.name] = kind, [one.name for one in held]
                options += held
            else:
                options.append(_option(parameter, table))

        @functools.wraps(command)
        def called(**given: object) -> None:
            for name, (kind, names) in bundles.items():
                given[name] = kind(**{one: given.pop(one) for one in names if one in given})
            command(**given)

        called.__doc__ = about
        called.__dict__["__signature__"] = inspect.Signature(options)
        called.__annotations__ = {one.name: one.annotation for one in options}
        return called

    return spread_out


def _options_of(kind: type) -> list[inspect.Parameter]:
    table = _described(kind)[1]
    return [_option(one, table) for one in inspect.signature(kind).parameters.values()]


def _described(of: object) -> tuple[str, dict[str, tuple[str, str]]]:
    """The docstring without its table, and of each option what is in brackets, and its help."""
    about, _, table = (inspect.getdoc(of) or "").partition("Options:\n")
    found: dict[str, tuple[str, str]] = {}
    for line in f"{COMMON.partition('Options:')[2]}{table}".splitlines():
        if entry := _ENTRY.fullmatch(line):
            name, brackets, text = entry.groups(default="")
            found[name] = brackets, text
        elif found:
            found[name] = found[name][0], f"{found[name][1]} {line.strip()}".strip()
    return about.strip(), found


def _option(
    parameter: inspect.Parameter, table: Mapping[str, tuple[str, str]]
) -> inspect.Parameter:
    """A parameter as typer reads it: an option, or an argument."""
    brackets, text = table[parameter.name]
    flags, settings = [], dict[str, object](help=text)
    kind: Callable[..., object] = typer.Option
    for word in filter(None, brackets.split(", ")):
        if word.startswith("-") and word != "-":
            flags.append(word)
        elif word.startswith((">=", "<=")):
            bound = float(word[2:]) if "." in word else int(word[2:])
            settings["min" if word[0] == ">" else "max"] = bound
        elif word == "argument":
            kind = typer.Argument
        elif word == "no default":
            settings["show_default"] = False
        else:
            settings["metavar"] = word
    if flags and not any(one.startswith("--") for one in flags):
        flags.insert(0, f"--{parameter.name.replace('_', '-')}")
    if kind is typer.Option:
        settings.setdefault("metavar", _value_of(parameter.annotation))
    annotation = Annotated[parameter.annotation, kind(*flags, **settings)]  # type: ignore[name-defined]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _value_of(kind: object) -> str | None:
    """How a value is written in help: N, X, TEXT, FILE, or the choices; None for a flag."""
    inner = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is Literal:
        return "|".join(inner)
    if isinstance(kind, EnumType):
        return "|".join(kind.__members__)
    return _value_of(inner[0]) if inner else _VALUES.get(kind)


Dtype = Literal["float32", "float64", "bfloat16", "float16"]


@dataclass(frozen=True)
class Loading:
    """Which model a command loads, and how it computes.

    Options:
        model [-m, NAME]: An embedded model, a checkpoint folder, or a Hub id. Default: tiny-bert.
        revision [NAME]: Branch, tag or commit of a Hub id.
        offline [--offline]: Make no request; use only the Hub's cache.
        task [TASK]: Another task head than the checkpoint's own; none: only the body.
        dtype: The number type to compute in. Default: float32.
        impl [--impl, NAME]: The implementation of attention: auto, eager, sdpa, reference and
            others.
    """

    model: str | None = None
    revision: str | None = None
    offline: bool = False
    task: str | None = None
    dtype: Dtype | None = None
    weights: Literal["int8"] | None = None
    impl: str = "auto"

    def load(self, **chosen: str | None) -> "Model":
        """The model; `chosen` replaces options. Raises MinibertError where it cannot be loaded."""
        if chosen:
            return replace(self, **chosen).load()  # type: ignore[arg-type]
        import torch

        from minibert.model import load

        options = {name: value for name, value in vars(self).items() if name != "model"}
        options["dtype"] = self.dtype and getattr(torch, self.dtype)
        return load(self.model, **options)


@dataclass(frozen=True)
class Texts:
    """The text or the pair of texts that a model reads.

    Options:
        text_b [argument, TEXT_B]: A second text, for a pair.
        truncate [--truncate]: Cut a text that is longer than the model's positions.
    """

    text: str
    text_b: str | None = None
    truncate: bool = False

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


@dataclass(frozen=True)
class Reading:
    """How the files of a corpus become documents.

    Options:
        kind [--kind]: The kind of the files, if their names do not show it.
        unit [NAME]: A document of plain text: paragraph, line or file.
        field [NAME]: The field or column with the text. Default: text.
        pair_field [NAME]: The field or column with a second text.
        shortest [N, >=1]: Leave out texts with fewer characters.
        on_error [--on-error]: Stop at a document that cannot be read, or skip and count it.
    """

    kind: Literal["text", "jsonl", "parquet"] | None = None
    unit: str | None = None
    field: str | None = None
    pair_field: str | None = None
    shortest: int = 1
    on_error: Literal["raise", "skip"] = "raise"

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

        return read_documents(corpus, **vars(self))


def say_json(document: Mapping[str, object]) -> None:
    """Write one document on one line; NaN and infinity, which JSON has no word for, as null.

    docs/command_line.md has the keys. Names stay as they are; new ones may be added.
    """
    say(json_text(document))


def json_text(document: Mapping[str, object]) -> str:
    """The answer as JSON text."""
    return json.dumps(_plain(document), allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def heads_asked(asked: list[str], n_layers: int, n_heads: int) -> dict[int, tuple[int, ...]]:
    """The heads of each layer that are asked about.

    Raises MinibertError for what names none, TraceError for a head that does not exist.
    """
    found: dict[int, set[int]] = {}
    for text in asked:
        layer, _, head = text.partition("-")
        if text != "all" and not (layer.isdecimal() and (head.isdecimal() or text == layer)):
            raise MinibertError(f"--why {text}: expected a layer as 1, a head as 1-2, or all.")
        layers = range(n_layers) if text == "all" else [check_index("layer", int(layer), n_layers)]
        heads = {check_index("head", int(head), n_heads)} if head else set(range(n_heads))
        for each in layers:
            found[each] = found.get(each, set()) | heads
    return {layer: tuple(sorted(heads)) for layer, heads in found.items()}


def unusable(message: str) -> NoReturn:
    """Print why a command cannot be run as it was written, and exit with 2."""
    note("error", message)
    raise typer.Exit(2)


@contextmanager
def refusing(option: str = "") -> Iterator[None]:
    """Turn an error of minibert in the block into wrong usage of the command: exit with 2."""
    try:
        yield
    except MinibertError as error:
        unusable(f"{option}{error}")


def check_file(path: Path) -> None:
    """Exits with 2 where the file cannot be written."""
    if path.exists() and not path.is_file():
        unusable(f"{path} is a folder, a pipe or a device; expected the name of a file.")
    if not path.parent.is_dir():
        unusable(f"There is no folder {path.parent} to write {path.name} to.")
    try:
        # By writing a file in the folder, because permissions alone do not tell.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        unusable(f"{path} cannot be written: {error.strerror}.")
