"""`minibert view`, `live`, `serve` and `watch`: pages of attention, as files or of what runs."""

import time
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from minibert.cli.options import Loading, Texts, heads_asked, spread
from minibert.doors import Page, View
from minibert.errors import MinibertError
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.features import Features

# Between two looks at a run that has not ended.
_SECONDS = 2
_LOCAL = ("127.0.0.1", "localhost", "::1")


@spread()
def view(
    texts: Texts,
    output: Path = Path("attention.html"),
    picture: str = "head",
    browse: bool = False,
    features: str | None = None,
    why: list[str] | None = None,
    *,
    loading: Loading,
) -> None:
    """Write a page that shows which token attends to which, and how that is computed.

    In place of a text it takes the file of a saved trace, trace.save("FILE.safetensors").

    Options:
        output [-o, FILE]: The page to write.
        picture [--view, VIEW]: The first view: head, model, neuron, arithmetic, map or
            layers.
        why [--why, LAYER|LAYER-HEAD|all]: Include the reasons of these heads, down
            to the words, such as 1-2; may be repeated. The page is larger then.
    """
    _check_place(output)
    if (saved := Path(texts.text)).suffix == ".safetensors" and saved.is_file():
        if texts != Texts(texts.text) or loading != Loading() or why or features is not None:
            raise typer.BadParameter("with a saved trace only --output, --view and --open are used")
        return _write(_saved_page(saved, picture), output, browse, "{:.0f} kB", 1000)
    found = _features(features, loading)
    model, tokens = texts.tokens(loading)
    asked = heads_asked(why or [], model.config.n_layers, model.config.n_heads)
    heads = [(layer, head) for layer, some in asked.items() for head in some]
    page = model.trace(tokens).view(view=cast(View, picture), why=heads or None, features=found)
    _write(page, output, browse, "{:.0f} kB", 1000)


def _saved_page(path: Path, picture: str) -> Page:
    """The page of a saved trace, without what only its model could say; needs no torch."""
    from minibert.viz.saved_trace import saved_traces
    from minibert.viz.viewing import view as view_of

    return view_of(saved_traces(path), view=cast(View, picture), lens=False, why=False)


@spread("dtype", "impl")
def live(
    output: Path = Path("live.html"),
    text: list[str] | None = None,
    browse: bool = False,
    any_model: bool = False,
    story: bool = False,
    features: str | None = None,
    language: str = "en",
    *,
    loading: Loading,
) -> None:
    """Write a page that runs the model: type, change heads, and see what moves. No network.

    Options:
        output [-o, FILE]: The page to write.
        any_model [--any]: A page without a model: it runs the model folder that you drop on it.
        story: How a transformer chooses a word, step by step, with both models in the page.
        text: What the page opens with; twice for a pair of texts.
        language [en|de]: What the page speaks. Texts and tokens stay English.
    """
    if len(text or ()) > 2:
        raise typer.BadParameter("--text can be given twice at most")
    _check_place(output)
    given = loading.model or text or features is not None
    if (any_model or story) and (given or (any_model and story)):
        raise typer.BadParameter("--any and --story take no model, features, text or one another")
    from minibert.languages import strings
    from minibert.viz.stored import STORED_MODELS, stored_any, stored_live, stored_story

    strings(language, "page")
    name = loading.model or STORED_MODELS[0]
    page: Page
    if any_model or story:
        page = stored_any(language) if any_model else stored_story(language)
    elif (
        not text
        and features is None
        and name in STORED_MODELS
        and replace(loading, model=None) == Loading()
    ):
        page = stored_live(name, language)
    else:
        from minibert.viz.live import live_page

        found = _features(features, loading)
        page = live_page(loading.load(), text or (), features=found, language=language)
    _write(page, output, browse, "{:.1f} MB", 1e6)
    if said := getattr(page, "note", ""):
        note("note", said)


@spread()
def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    browse: bool = True,
    features: str | None = None,
    *,
    loading: Loading,
) -> None:
    """Serve a page that runs a model: type, change, and see attention follow. Ctrl-C ends it.

    Options:
        host [ADDRESS]: Where to listen. 127.0.0.1 is reachable only from this machine.
        port [NUMBER, >=0, <=65535]: 0: any free one.
        browse [--open/--no-open]: Open the page in a browser.
    """
    from minibert.viz.serve.server import check_installed

    check_installed()
    from minibert.viz.serve.server import PageServer

    found = _features(features, loading)
    server = PageServer(loading.load(), host=host, port=port, features=found)
    say(server.address)
    if host not in _LOCAL:
        note("note", "others can reach this address; anyone with its token can use the model.")
    if browse:
        # The socket listens already, so the browser waits until the page is there.
        _open(server.address)
    server.run()


@spread()
def watch(
    folder: Path,
    output: Path | None = None,
    passage: list[str] | None = None,
    request: str | None = None,
    stack: str | None = None,
    browse: bool = True,
) -> None:
    """Draw what a run measures while it runs: entropy, sinks, heads that died, passages.

    FOLDER is that of `minibert.measuring(model, folder=FOLDER)`, or the one to which a server
    writes a Parquet file a request. The page follows the run; Ctrl-C ends it.

    Options:
        folder [argument]: The numbers.
        output [-o, FILE]: Write one page and exit. Default: FOLDER/watch.html, again and again.
        passage [NAME=START-STOP]: Draw the weight on these tokens, without STOP; repeatable.
        request [ID]: Of several requests this one. Default: the newest.
        stack [NAME]: Of several stacks this one, as decoder.self.
        browse [--open/--no-open]: Open the page in a browser.
    """
    from minibert.attached.measured_files import read
    from minibert.errors import TraceError
    from minibert.viz.measured_page import MeasuredPage, measured_page

    passages = dict(_passage(text) for text in passage or ())

    def drawn(again: int) -> MeasuredPage:
        seen = read(folder, request)
        if not seen.runs or not seen.runs[-1]:
            raise TraceError(f"{folder} has no numbers yet.")
        return measured_page(seen, stack, passages, again)

    if output is not None:
        _check_place(output)
        return _write(drawn(0), output, False, "{:.0f} kB", 1000)
    read(folder, request)
    path, again = folder / "watch.html", _SECONDS
    say(str(path))
    while True:
        try:
            page = drawn(again)
        except TraceError as error:
            page = MeasuredPage("Waiting", [f"<p>{escape(str(error))}</p>"], again)
        page.save(path)
        if not again:
            return
        if browse:
            _open(path.resolve().as_uri())
            browse = False
        try:
            time.sleep(again)
        except KeyboardInterrupt:
            # The last page stays as it is.
            again = 0


def _passage(text: str) -> tuple[str, tuple[int, int]]:
    name, _, numbers = text.partition("=")
    start, _, stop = numbers.partition("-")
    if not name or not start.isdecimal() or not stop.isdecimal():
        raise typer.BadParameter(f"--passage {text}: expected NAME=START-STOP, as answer=12-40")
    return name, (int(start), int(stop))


def _features(name: str | None, loading: Loading) -> "Features | None":
    """The features of a folder, a Hub id or an embedded model, if a name is given."""
    if name is None:
        return None
    from minibert.features import load

    return load(name, offline=loading.offline)


def _check_place(output: Path) -> None:
    """Raise where the page cannot be written, before a model is loaded."""
    if not output.parent.is_dir():
        raise MinibertError(f"There is no folder {output.parent} to write {output.name} to.")


def _write(page: Page, output: Path, browse: bool, size: str, unit: float) -> None:
    path = page.save(output)
    say(f"{path}  {size.format(page.size / unit)}")
    if browse:
        _open(path.resolve().as_uri())


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)
