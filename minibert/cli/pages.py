"""`minibert view`, `live` and `serve`: pages of attention, as files or before a running model."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Protocol

import typer

from minibert.cli.options import Loading, Texts, spread
from minibert.errors import MinibertError
from minibert.terminal import note, say

_LOCAL = ("127.0.0.1", "localhost", "::1")

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help='The page to write; "-" is stdout.')
]
Browse = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


class _Page(Protocol):
    """A page that can be written."""

    def pieces(self) -> Iterable[str]:
        """Its text, piece by piece."""

    def save(self, path: Path) -> Path:
        """Write it to a file."""

    @property
    def size(self) -> int:
        """Bytes of the file."""


@spread()
def view(
    texts: Texts,
    output: Output = Path("attention.html"),
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
    browse: Browse = False,
    *,
    loading: Loading,
) -> None:
    """Write a page that shows which token attends to which, and how that is computed."""
    _check_place(output, browse)
    model, tokens = texts.tokens(loading)
    trace = model.trace(tokens)
    page = trace.view(view=picture, layers=layer or None, heads=head or None, vectors=vectors)
    _write(page, output, browse, "{:.0f} kB", 1000)


@spread("dtype", "impl")
def live(
    output: Output = Path("live.html"),
    text: Annotated[
        list[str] | None,
        typer.Option(help="What the page opens with; twice for a pair of texts."),
    ] = None,
    browse: Browse = False,
    *,
    loading: Loading,
) -> None:
    """Write a page that runs the model: type, change heads, and see what moves. No network."""
    if len(text or ()) > 2:
        raise typer.BadParameter("--text can be given twice at most")
    _check_place(output, browse)
    model = loading.load()
    from minibert.viz.live import live_page

    _write(live_page(model, text or ()), output, browse, "{:.1f} MB", 1e6)


@spread()
def serve(
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
    *,
    loading: Loading,
) -> None:
    """Serve a page that runs a model: type, change, and see attention follow. Ctrl-C ends it."""
    from minibert.viz.serve.server import check_installed

    check_installed()
    from minibert.viz.serve.server import PageServer

    server = PageServer(loading.load(), host=host, port=port)
    say(server.address)
    if host not in _LOCAL:
        note("note", "others can reach this address; whoever has its token can use the model.")
    if browse:
        # The socket listens already, so the browser waits until the page is there.
        _open(server.address)
    server.run()


def _piped(output: Path) -> bool:
    return str(output) in ("-", "/dev/stdout")


def _check_place(output: Path, browse: bool) -> None:
    """Raise where the page cannot be written or opened, before a model is loaded."""
    if _piped(output) and browse:
        raise typer.BadParameter("--open needs a file; name one with --output")
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")


def _write(page: _Page, output: Path, browse: bool, size: str, unit: float) -> None:
    if _piped(output):
        sys.stdout.buffer.writelines(piece.encode() for piece in page.pieces())
        return
    path = page.save(output)
    say(f"{path}  {size.format(page.size / unit)}")
    if browse:
        _open(path.resolve().as_uri())


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)
