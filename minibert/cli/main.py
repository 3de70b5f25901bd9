"""The command line: `minibert view | live | explain | predict | generate | train | survey | ...`.

Before a command runs only the standard library and typer are imported, so that `--help` need not
wait for torch.
"""

import re
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from minibert import __version__
from minibert.cli.answers import explain, generate, predict
from minibert.cli.corpus import collect, patterns, survey
from minibert.cli.kernels import bench, check
from minibert.cli.models import models
from minibert.cli.pages import live, serve, view, watch
from minibert.cli.train import train
from minibert.cli.verify import verify
from minibert.errors import MinibertError, did_you_mean, lacks_memory, printable
from minibert.terminal import OutputError, abandon_output, note, say, to_output, warning_line

# torch has no exception type for a CPU that runs out of memory, nor has the loading of its parts.
_OPTIONS = {
    "truncate=True": "--truncate",
    "restart=True": "--restart",
    "resume=False": "--restart",
    'on_error="skip"': "--on-error skip",
    "with kind=": "with --kind",
}
#: What one would do after each command; it may be another command, with what this one wrote.
_NEXT = {
    view: 'minibert explain "the horse turned" --layer 0 --head 2 --query horse, for one weight',
    live: "open the page in a browser and click a head; minibert live --story has six exercises",
    serve: "open the address in a browser; Ctrl-C ends it",
    watch: "seen = minibert.attached.measured_files.read(FOLDER), for the numbers in Python",
    explain: 'minibert view "the horse turned", for every weight as a page',
    predict: "minibert live, to see which head a prediction needs",
    generate: 'minibert view "the horse turned" --model tiny-gpt2, to see what it attends to',
    train: 'minibert predict TEXT --model FOLDER, or minibert.load("FOLDER") in Python',
    survey: "minibert patterns, for what each head does; docs/corpus.md reads the folder in Python",
    patterns: "minibert survey, for measures of each head over a corpus",
    collect: "read the folder in Python; docs/corpus.md shows how",
    check: "minibert bench FILE.py:FUNCTION, once it is right",
    bench: "minibert check FILE.py:FUNCTION, where a row says that it is wrong",
    verify: "minibert view TEXT --model FOLDER",
    models: 'minibert view "the horse turned" --model NAME',
}


# A context or a formatter of click, which some releases of typer bring along and others import.
_Click = Any


class _Commands(TyperGroup):
    """Runs a command, and turns an error into one line and an exit status."""

    def invoke(self, ctx: _Click) -> _Click:
        """The result of the command.

        Exits with 1 for an error, 130 for Ctrl-C and 141 for a closed pipe.
        """
        try:
            result = super().invoke(ctx)
            with to_output():
                sys.stdout.flush()
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except (typer.Abort, typer.Exit):
            raise
        except (MinibertError, MemoryError, OSError, RuntimeError, ImportError) as error:
            raise typer.Exit(_status(error)) from error
        except Exception as error:
            _make_readable(error, self.list_commands(ctx))
            raise
        if sys.stderr.isatty():
            note("next", _next_of(ctx.invoked_subcommand))
        return result

    def get_command(self, ctx: _Click, cmd_name: str) -> _Click:
        """The command, in whose help an argument stands without its Python type."""
        command = super().get_command(ctx, cmd_name)
        for one in getattr(command, "params", ()):
            if one.param_type_name == "argument":
                one.display_type = lambda ctx: ""
        return command

    def format_commands(self, ctx: _Click, formatter: _Click) -> None:
        """List the commands, each with its whole first sentence."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(200)) for name, one in commands.items()]
            )

    def parse_args(self, ctx: _Click, args: list[str]) -> list[str]:
        """The arguments that are left for the command."""
        try:
            with to_output():
                return super().parse_args(ctx, args)
        except OutputError as error:
            raise typer.Exit(_status(error)) from error
        except Exception as error:
            _make_readable(error, self.list_commands(ctx))
            raise


class _Command(TyperCommand):
    """A command whose `--help` is output like any other."""

    def parse_args(self, ctx: _Click, args: list[str]) -> list[str]:
        """The arguments that are left. Raises OutputError where the help cannot be written."""
        with to_output():
            return super().parse_args(ctx, args)


def _next_of(name: str) -> str:
    """What to do after the command of that name."""
    return next(text for command, text in _NEXT.items() if command.__name__ == name)


def _make_readable(error: Exception, commands: list[str]) -> None:
    """Complete an error of wrong usage, which repeats what was typed.

    The nearest of the known values is offered, and what acts on a terminal written out.
    """
    if not isinstance(getattr(error, "message", None), str) or not hasattr(error, "format_message"):
        return
    message = printable(error.message)  # type: ignore[attr-defined]
    # Some releases of typer pass on pydantic's message about a value.
    if message.startswith("Input should be") and (
        cause := getattr(error.__cause__, "errors", None)
    ):
        given, kind = cause()[0]["input"], cause()[0]["type"].partition("_")[0]
        expected = {"int": "a whole number", "float": "a number"}.get(kind)
        if expected is None:
            expected = message.replace("Input should be", "a number that is")
        message = printable(f"{given!r:.80}: expected {expected}.")
    if wrong := re.search(r"'(.*)' is not one of (.*)\.", message, re.DOTALL):
        message += did_you_mean(wrong[1], re.findall(r"'(.*?)'", wrong[2]))
    elif message.startswith("No such command") and "Did you mean" not in message:
        message += f" There are {', '.join(commands)}."
    error.message = message  # type: ignore[attr-defined]


def _status(error: Exception) -> int:
    """The exit status for an error, said in one line. Raises it where it is a mistake of ours."""
    if isinstance(error, OutputError) and error.closed:
        abandon_output()
        return 141
    # The library's messages name Python arguments; here they are options.
    message = str(error)
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    if isinstance(error, OutputError):
        abandon_output()
        message = f"standard output cannot be written to ({error.strerror})."
    elif isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("minibert"):
        message = f"{error.name} is not installed. See docs/install.md#without-torch"
    elif not isinstance(error, MinibertError | OSError):
        if not lacks_memory(error):
            raise error
        message = "there is not enough memory; give a shorter text or a smaller model."
    note("error", printable(message))
    return 1


app = typer.Typer(
    cls=_Commands,
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


for command in _NEXT:
    app.command(cls=_Command, epilog=f"Next: {_next_of(command.__name__)}")(command)


def main() -> None:
    """Run the command line with the arguments of this process."""
    warnings.formatwarning = warning_line
    try:
        # What is written outside of a command: help, version, messages of wrong usage.
        with to_output():
            try:
                app(prog_name="minibert")
            finally:
                sys.stdout.flush()
    except OutputError as error:
        sys.exit(_status(error))
