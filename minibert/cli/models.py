"""`minibert models`: what is on this machine, how it multiplies, and what config.json may say."""

import sys
from typing import Annotated

import typer

from minibert.terminal import Terminal, say

__all__ = ["models"]


def models(
    backends: Annotated[
        bool,
        typer.Option("--backends", help="Also show how linear layers multiply on this machine."),
    ] = False,
    fields: Annotated[
        bool,
        typer.Option(
            "--fields",
            help="Also show which fields of a config.json are read, or refused, and why.",
        ),
    ] = False,
) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache."""
    from minibert.checkpoint.contract import CONTRACT
    from minibert.cli import inventory
    from minibert.cli.report import backend_table, field_tables, model_table
    from minibert.layers.linear_backends import named, processor

    terminal = Terminal.of(sys.stdout)
    say(*model_table("embedded", inventory.embedded(), terminal))
    say("", *model_table("in the Hugging Face cache", inventory.cached(), terminal))
    if backends:
        rows = inventory.linear_backends()
        say("", *backend_table(processor().name, named(), rows, inventory.ROWS, terminal))
    if fields:
        say("", *field_tables(CONTRACT, terminal))
