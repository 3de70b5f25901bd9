"""`minibert live`: one file that runs a model in a browser."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from minibert.cli.options import ModelName, Offline, Revision, Task, load_model
from minibert.errors import MinibertError
from minibert.terminal import say

__all__ = ["live"]


def live(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help='The page to write; "-" is stdout.'),
    ] = Path("live.html"),
    text: Annotated[
        list[str] | None,
        typer.Option(help="What the page opens with; twice for a pair of texts."),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
) -> None:
    """Write a page that runs the model: type, change heads, and see what moves. No network."""
    if len(text or ()) > 2:
        raise typer.BadParameter("--text can be given twice at most")
    if (piped := str(output) in ("-", "/dev/stdout")) and browse:
        raise typer.BadParameter("--open needs a file; name one with --output")
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")
    loaded = load_model(model, revision, offline, task, None)
    from minibert.viz.live import live_page

    page = live_page(loaded, text or ())
    if piped:
        sys.stdout.buffer.writelines(piece.encode() for piece in page.pieces())
        return
    path = page.save(output)
    say(f"{path}  {page.size / 1e6:.1f} MB")
    if browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
