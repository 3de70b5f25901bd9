"""`minibert models`: what is on this machine, how it multiplies, and what config.json may say."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.json_output import AsJson, say_json
from minibert.terminal import Terminal, say

if TYPE_CHECKING:
    from minibert.cli.inventory import Entry

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
    as_json: AsJson = False,
) -> None:
    """List the models on this machine: embedded ones, and those in the Hugging Face cache."""
    if as_json:
        say_json(models_document(backends=backends, fields=fields))
        return
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


def models_document(*, backends: bool, fields: bool) -> dict[str, object]:
    """The models as plain values, and on request the linear back ends and the fields."""
    from minibert.checkpoint.contract import CONTRACT
    from minibert.cli import inventory
    from minibert.layers.linear_backends import named, processor

    document: dict[str, object] = {
        "embedded": _entries(inventory.embedded()),
        "cached": _entries(inventory.cached()),
    }
    if backends:
        document["linear_backends"] = {
            "processor": processor().name,
            "named": named(),
            "weights": [
                {
                    "dtype": row.dtype,
                    "weight": row.weight,
                    "packed_at_load": row.held.name == "onednn-packed",
                    "rule": row.held.rule,
                    "calls": [
                        {"rows": rows, "backend": name}
                        for rows, name in zip(inventory.ROWS, row.calls, strict=True)
                    ],
                }
                for row in inventory.linear_backends()
            ],
        }
    if fields:
        document["fields"] = [
            {"family": family, "field": name, "verdict": one.verdict, "reason": one.reason}
            for family, held in CONTRACT.items()
            for name, one in held.items()
        ]
    return document


def _entries(entries: Sequence["Entry"]) -> list[dict[str, object]]:
    """The models; what a config says is null where it cannot be read."""
    return [
        {
            "name": entry.name,
            "family": entry.config and entry.config.family,
            "task": entry.config and entry.config.task,
            "layers": entry.config and entry.config.n_layers,
            "heads": entry.config and entry.config.n_heads,
            "parameters": entry.parameters if entry.config else None,
            "bytes": entry.size,
            "problem": entry.problem or None,
        }
        for entry in entries
    ]
