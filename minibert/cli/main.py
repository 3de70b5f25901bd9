"""The command line: `minibert view | explain | predict | generate | train | check | ...`.

Only the standard library and typer are imported before a command runs, so that `--help` does
not wait for torch.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from minibert import __version__
from minibert.cli.bench import bench
from minibert.cli.check import check
from minibert.cli.generate import generate
from minibert.cli.options import (
    DtypeName,
    ModelName,
    Offline,
    Pair,
    Revision,
    Task,
    Text,
    Truncate,
    load_model,
)
from minibert.cli.train import train
from minibert.errors import MinibertError
from minibert.terminal import Terminal, abandon_output, note, say, standard_input, warning_line

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.text.tokens import Tokens

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
            abandon_output()
            raise typer.Exit(141) from error
        except OSError as error:
            abandon_output()
            raise _failed(error) from error
        except MinibertError as error:
            raise _failed(error) from error
        return result


def _failed(error: Exception) -> typer.Exit:
    # The library names the argument of Python; here it is an option.
    message = str(error).replace("truncate=True", "--truncate")
    note("error", message.replace("restart=True", "--restart"))
    return typer.Exit(1)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        say(f"minibert {__version__}")
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

    A first look: minibert explain "the horse turned" --layer 0 --head 2 --query horse
    """


@app.command()
def view(
    text: Text,
    text_b: Pair = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help='The page to write; "-" is stdout.'),
    ] = Path("attention.html"),
    layer: Annotated[list[int] | None, typer.Option(help="Only this layer; repeatable.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only this head; repeatable.")] = None,
    picture: Annotated[
        str,
        typer.Option(
            "--view",
            metavar="VIEW",
            help="The view to begin with: head, model, neuron, arithmetic, map, text or layers.",
        ),
    ] = "head",
    vectors: Annotated[
        bool,
        typer.Option(
            "--vectors/--no-vectors", help="Hold query and key: for two views, in a larger file."
        ),
    ] = True,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    truncate: Truncate = False,
) -> None:
    """Write a page that shows which token looks at which, and how that is computed."""
    texts = _texts(text, text_b)
    if (piped := str(output) in ("-", "/dev/stdout")) and browse:
        raise typer.BadParameter("--open needs a file; name one with --output")
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")
    loaded = load_model(model, revision, offline, task, dtype)
    trace = loaded.trace(_tokens(loaded, texts, truncate))
    page = trace.view(view=picture, layers=layer or None, heads=head or None, vectors=vectors)
    if piped:
        sys.stdout.buffer.writelines(piece.encode() for piece in page.pieces())
        return
    path = page.save(output)
    say(f"{path}  {page.size / 1000:.0f} kB")
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
    loaded = load_model(model, revision, offline, task, dtype)
    from minibert.answers.explain import explain as explain_row
    from minibert.answers.explain import find_token, token_note, trace_of_head
    from minibert.answers.explain_text import render

    tokens = _tokens(loaded, texts, truncate)
    # Looked for here as well, so that a wrong token is an error before anything is computed.
    row = find_token(tokens, query, what="query")
    column = None if key is None else find_token(tokens, key, what="key")
    for what, wanted in (("query", query), ("key", key)):
        if wanted is not None and (about := token_note(tokens, wanted, what=what)):
            note("note", about)
    trace = trace_of_head(loaded, tokens, layer=layer, head=head)
    explanation = explain_row(trace, layer=layer, head=head, query=row, key=column)
    if as_json:
        say(json.dumps(explanation.to_dict()))
    else:
        say(render(explanation, Terminal.of(sys.stdout), top=top))


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
    loaded = load_model(model, revision, offline, task, dtype)
    from minibert.cli.report import prediction_tables

    tokens = _tokens(loaded, texts, truncate)
    predictions = loaded.predict(tokens, top=top)
    say(*prediction_tables(predictions, tokens.strings[0], Terminal.of(sys.stdout)))


app.command()(generate)
app.command()(train)
app.command()(check)
app.command()(bench)


@app.command()
def models(
    backends: Annotated[
        bool, typer.Option("--backends", help="Also how linear layers multiply on this machine.")
    ] = False,
) -> None:
    """List the models on this machine.

    They are the embedded ones and those in the Hugging Face cache.
    """
    from minibert.cli import inventory
    from minibert.cli.report import backend_table, model_table
    from minibert.layers.linear_backends import named, processor

    terminal = Terminal.of(sys.stdout)
    say(*model_table("embedded", inventory.embedded(), terminal))
    say("", *model_table("in the Hugging Face cache", inventory.cached(), terminal))
    if backends:
        rows = inventory.linear_backends()
        say("", *backend_table(processor().name, named(), rows, inventory.ROWS, terminal))


def _tokens(model: "Model", texts: list[str], truncate: bool) -> "Tokens":
    """The tokens of the texts, with a note where they are cut."""
    from minibert.viz.labels import is_cut

    tokens = model.tokenize(*texts, truncate=truncate)
    if is_cut(tokens, 0):
        note("note", f"the text is cut after {tokens.lengths[0]} tokens.")
    return tokens


def _texts(text: str, text_b: str | None) -> list[str]:
    if text == text_b == "-":
        raise typer.BadParameter("only one of the two texts can be standard input")
    return [standard_input() if one == "-" else one for one in (text, text_b) if one is not None]


def main() -> None:
    """Run the command line with the arguments of this process."""
    warnings.formatwarning = warning_line
    app(prog_name="minibert")
