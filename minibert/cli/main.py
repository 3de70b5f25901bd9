"""The command line: `minibert view | explain | predict | generate | train | survey | check | ...`.

Before a command runs only the standard library and typer are imported, so that `--help` need not
wait for torch.
"""

import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from minibert import __version__
from minibert.cli.bench import bench
from minibert.cli.check import check
from minibert.cli.explain import explain
from minibert.cli.generate import generate
from minibert.cli.models import models
from minibert.cli.predict import predict
from minibert.cli.survey import survey
from minibert.cli.train import train
from minibert.cli.view import view
from minibert.errors import MinibertError
from minibert.terminal import abandon_output, note, say, warning_line

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Runs a command, and turns an error into one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """The result of the command.

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
    # The library's messages name Python arguments; here they are options.
    message = str(error).replace("truncate=True", "--truncate")
    message = message.replace("restart=True", "--restart").replace("resume=False", "--no-resume")
    note("error", message.replace('on_error="skip"', "--on-error skip"))
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
    """Compute, explain and show every number of attention.

    To begin: minibert explain "the horse turned" --layer 0 --head 2 --query horse
    """


for command in (view, explain, predict, generate, train, survey, check, bench, models):
    app.command()(command)


def main() -> None:
    """Run the command line with the arguments of this process."""
    warnings.formatwarning = warning_line
    app(prog_name="minibert")
