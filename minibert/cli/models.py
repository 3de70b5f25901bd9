"""`minibert models`: what is on this machine, how it multiplies, and what config.json may say."""

import sys
from typing import Annotated

import typer

from minibert.cli.options import AsJson, say_json
from minibert.terminal import Terminal, say


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
    as_json: AsJson = False,
) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache."""
    from minibert.cli import inventory

    if as_json:
        say_json(inventory.document(backends=backends, fields=fields))
        return
    terminal = Terminal.of(sys.stdout)
    say(*inventory.model_table("embedded", inventory.embedded(), terminal))
    say("", *inventory.model_table("in the Hugging Face cache", inventory.cached(), terminal))
    if backends:
        say("", *inventory.backend_table(inventory.linear_backends(), terminal))
    if fields:
        say("", *inventory.field_tables(terminal))
