"""The command line: `minibert view | explain | predict | models`.

Only the standard library and typer are imported before a command runs, so that `--help` does
not wait for torch.
"""

import json
import os
import sys
import warnings
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from minibert import __version__
from minibert.errors import MinibertError
from minibert.terminal import Terminal, encodable, standard_input

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Runs a command; what goes wrong becomes one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """What the command returns.

        Exits with 1 for an error, 130 for Ctrl-C and 141 for a closed pipe.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except BrokenPipeError as error:
            _abandon_output()
            raise typer.Exit(141) from error
        except OSError as error:
            _abandon_output()
            raise _failed(error) from error
        except MinibertError as error:
            raise _failed(error) from error
        return result


def _abandon_output() -> None:
    """Whatever is still in the buffer would fail again when Python closes standard output."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception) -> typer.Exit:
    print(encodable(f"error: {error}", sys.stderr.encoding), file=sys.stderr)
    return typer.Exit(1)


class Dtype(StrEnum):
    """Number types that a model can compute in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Text = Annotated[str, typer.Argument(metavar="TEXT", help='The text; "-" reads standard input.')]
Pair = Annotated[str | None, typer.Argument(metavar="TEXT_B", help="A second text, for a pair.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="An embedded model (tiny-bert when not given), a checkpoint folder, or a Hub id.",
    ),
]
Revision = Annotated[
    str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a Hub id.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Make no request; use the Hub's cache alone.")
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="A task head other than the checkpoint's own; none for the body alone.",
    ),
]
DtypeName = Annotated[
    Dtype | None, typer.Option(help="The type to compute in; float32 when not given.")
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is longer than the model's positions.")
]


def _show_version(wanted: bool) -> bool:
    if wanted:
        _say(f"minibert {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Every number that attention is made of: computed, explained and looked at.

    A first look: minibert explain "the rabbit hopped" --layer 0 --head 0 --query rabbit
    """


@app.command()
def view(
    text: Text,
    text_b: Pair = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("attention.html"),
    layer: Annotated[
        list[int] | None, typer.Option(help="Only this layer; may be given again.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="Only this head; may be given again.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    truncate: Truncate = False,
) -> None:
    """Write a page that shows which token looks at which."""
    texts = _texts(text, text_b)
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")
    loaded = _load(model, revision, offline, task, dtype)
    trace = loaded.trace(loaded.tokenize(*texts, truncate=truncate))
    path = trace.view(layers=layer or None, heads=head or None).save(output)
    _say(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    if browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


@app.command()
def explain(
    text: Text,
    layer: Annotated[int, typer.Option(help="The layer, from 0.")],
    head: Annotated[int, typer.Option(help="The head, from 0.")],
    query: Annotated[str, typer.Option(help="The token that looks: its position or itself.")],
    text_b: Pair = None,
    key: Annotated[
        str | None,
        typer.Option(help="The token looked at; the most attended one when not given."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the largest terms to show.")] = 8,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every number, unrounded, as JSON.")
    ] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    truncate: Truncate = False,
) -> None:
    """Show the calculation of one row of attention.

    From a query and a key to the score, the softmax of the row, and the sum that gives z.
    """
    texts = _texts(text, text_b)
    loaded = _load(model, revision, offline, task, dtype)
    from minibert.explain import explain as explain_row
    from minibert.explain import find_token, trace_of_head
    from minibert.explain_text import render

    tokens = loaded.tokenize(*texts, truncate=truncate)
    # Looked for here as well, so that a wrong token is an error before anything is computed.
    row = find_token(tokens, query, what="query")
    column = None if key is None else find_token(tokens, key, what="key")
    trace = trace_of_head(loaded, tokens, layer=layer, head=head)
    explanation = explain_row(trace, layer=layer, head=head, query=row, key=column)
    if as_json:
        _say(json.dumps(explanation.to_dict()))
    else:
        _say(render(explanation, Terminal.of(sys.stdout), top=top))


@app.command()
def predict(
    text: Text,
    text_b: Pair = None,
    top: Annotated[int, typer.Option(min=1, help="How many answers to show.")] = 5,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    truncate: Truncate = False,
) -> None:
    """Show what the model answers.

    The task head says what: masked tokens, the next token, a class, or an answer.
    """
    texts = _texts(text, text_b)
    loaded = _load(model, revision, offline, task, dtype)
    from minibert.report import prediction_tables

    tokens = loaded.tokenize(*texts, truncate=truncate)
    predictions = loaded.predict(tokens, top=top)
    _say(*prediction_tables(predictions, tokens.strings[0], Terminal.of(sys.stdout)))


@app.command()
def models(
    backends: Annotated[
        bool, typer.Option("--backends", help="Also how linear layers multiply on this machine.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the back ends that are not measured yet.")
    ] = False,
) -> None:
    """List the models on this machine.

    They are the embedded ones and those in the Hugging Face cache.
    """
    from minibert import inventory
    from minibert.report import backend_table, model_table

    terminal = Terminal.of(sys.stdout)
    _say(*model_table("embedded", inventory.embedded(), terminal))
    _say("", *model_table("in the Hugging Face cache", inventory.cached(), terminal))
    if backends or measure:
        _say("", *backend_table(*inventory.linear_backends(measure), terminal))


def _load(
    name: str | None, revision: str | None, offline: bool, task: str | None, dtype: Dtype | None
) -> "Model":
    import torch

    from minibert.loading import load

    chosen = None if dtype is None else getattr(torch, dtype.value)
    return load(name, revision=revision, offline=offline, task=task, dtype=chosen)


def _texts(text: str, text_b: str | None) -> list[str]:
    if text == text_b == "-":
        raise typer.BadParameter("only one of the two texts can be standard input")
    return [standard_input() if one == "-" else one for one in (text, text_b) if one is not None]


def _say(*lines: str) -> None:
    print(encodable("\n".join(lines), sys.stdout.encoding))


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"warning: {message}\n"


def main() -> None:
    """Run the command line with the arguments of this process."""
    warnings.formatwarning = _warning
    app(prog_name="minibert")
