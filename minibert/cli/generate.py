"""`minibert generate`: a GPT-2 continues a text, which is printed while it is written."""

import sys
from typing import Annotated

import typer

from minibert.cli.options import Loading, Text, spread
from minibert.terminal import encodable, note, printable, say, standard_input


@spread("model", "task")
def generate(
    text: Text,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens to add.")] = 40,
    temperature: Annotated[
        float,
        typer.Option(
            min=0,
            help="Above 1: more surprising text; below 1: less. 0: always the most probable token.",
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw from this many of the most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the likeliest tokens that together have this probability."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives another text.")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="STRING", help="End before this string; repeatable."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="An embedded GPT-2, a checkpoint folder, or a Hub id.",
        ),
    ] = "tiny-gpt2",
    *,
    loading: Loading,
) -> None:
    """Continue a text, token by token."""
    prompt = standard_input() if text == "-" else text
    loaded = loading.load(model=model)
    beginning: list[str] = [prompt]

    def show(piece: str) -> None:
        # With the first piece, so that a prompt that cannot be continued is not printed.
        _write("".join([*beginning, piece]))
        beginning.clear()

    generated = loaded.generate(
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop or (),
        stream=show,
    )
    say("".join(map(_shown, beginning)))
    if generated.stopped_by == "positions":
        limit = loaded.config.n_positions
        note("note", f"the text ends here, because {loaded.name} has only {limit} positions.")


def _write(text: str) -> None:
    sys.stdout.write(encodable(_shown(text), sys.stdout.encoding))
    sys.stdout.flush()


def _shown(text: str) -> str:
    """The text; for a terminal, without characters that would control it."""
    return printable(text) if sys.stdout.isatty() else text
