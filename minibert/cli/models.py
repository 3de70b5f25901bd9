"""`minibert models`: what is on this machine, how it multiplies, and what config.json may say."""

import sys

from minibert.cli.options import say_json, spread
from minibert.terminal import Terminal, say


@spread()
def models(
    backends: bool = False,
    fields: bool = False,
    as_json: bool = False,
) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache.

    Options:
        backends [--backends]: Also show how linear layers multiply on this machine.
        fields [--fields]: Also show which fields of a config.json are read, or refused, and why.
    """
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
