"""`minibert serve`: a page before a model."""

from typing import Annotated

import typer

from minibert.cli.options import (
    DtypeName,
    ImplName,
    ModelName,
    Offline,
    Revision,
    Task,
    load_model,
)
from minibert.terminal import note, say

__all__ = ["serve"]

_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    model: ModelName = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; others reach only another one."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="NUMBER", help="0: any free one.")
    ] = 0,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
) -> None:
    """Serve a page that runs a model: type, change, and see attention follow. Ctrl-C ends it."""
    from minibert.viz.serve.app import check_installed

    check_installed()
    from minibert.viz.serve.server import PageServer

    loaded = load_model(model, revision, offline, task, dtype, impl)
    server = PageServer(loaded, host=host, port=port)
    say(server.address)
    if host not in _LOCAL:
        note("note", "others can reach this address; whoever has its token can use the model.")
    if browse:
        import webbrowser

        # The socket listens already, so the browser waits until the page is there.
        webbrowser.open(server.address)
    server.run()
