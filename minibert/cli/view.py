"""`minibert view`: a page of attention."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from minibert.cli.options import (
    DtypeName,
    ImplName,
    ModelName,
    Offline,
    Pair,
    Revision,
    Task,
    Text,
    Truncate,
    load_model,
    texts_of,
    tokens_of,
)
from minibert.errors import MinibertError
from minibert.terminal import say

__all__ = ["view"]


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
            help="The first view: head, model, neuron, arithmetic, map, text or layers.",
        ),
    ] = "head",
    vectors: Annotated[
        bool,
        typer.Option(
            "--vectors/--no-vectors",
            help="Include query and key, which two views need; the file is larger.",
        ),
    ] = True,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
    truncate: Truncate = False,
) -> None:
    """Write a page that shows which token attends to which, and how that is computed."""
    texts = texts_of(text, text_b)
    if (piped := str(output) in ("-", "/dev/stdout")) and browse:
        raise typer.BadParameter("--open needs a file; name one with --output")
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")
    loaded = load_model(model, revision, offline, task, dtype, impl)
    trace = loaded.trace(tokens_of(loaded, texts, truncate))
    page = trace.view(view=picture, layers=layer or None, heads=head or None, vectors=vectors)
    if piped:
        sys.stdout.buffer.writelines(piece.encode() for piece in page.pieces())
        return
    path = page.save(output)
    say(f"{path}  {page.size / 1000:.0f} kB")
    if browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
