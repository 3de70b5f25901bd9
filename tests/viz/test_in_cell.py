"""Pages of head_view, model_view and show in the cells of a notebook: each is shown once."""

from collections.abc import Callable, Iterator

import pytest
from attention_pages import names, softmax

IPython = pytest.importorskip("IPython")

Run = Callable[[str], list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a cell; what it shows as HTML."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    shell = InteractiveShell.instance()
    # Off, as in a terminal without a screen; a notebook has it.
    shell.display_formatter.active_types = ["text/html", "text/plain"]
    shown: list[str] = []
    monkeypatch.setattr(
        shell.display_pub, "publish", lambda data, **_: shown.append(data.get("text/html", ""))
    )
    monkeypatch.setattr(
        shell.displayhook,
        "write_format_data",
        lambda data, _=None: shown.append(data.get("text/html", "")),
    )
    shell.push({"attention": softmax((3, 2, 5, 5)), "tokens": names(5)})

    def cell(code: str) -> list[str]:
        shown.clear()
        shell.run_cell(code, store_history=True).raise_error()
        return list(shown)

    cell("from minibert.viz import head_view, model_view\nimport minibert.viz.neuron_view as n")
    yield cell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("code", "pages"),
    [
        ("head_view(attention, tokens)", 1),
        ("head_view(attention, tokens)\nprint('after')", 1),
        ("head_view(attention, tokens)\nmodel_view(attention, tokens)", 2),
        ("for layer in range(3):\n    head_view(attention, tokens, layer=layer)", 3),
        ("[model_view(attention, tokens) for _ in range(2)][0]", 2),
        ("page = head_view(attention, tokens)", 1),
        ("head_view(attention, tokens, html_action='return')", 1),
        ("page = head_view(attention, tokens, html_action='return')", 0),
        ("import minibert\nn.show(minibert.load(), sentence_a='the horse')\n1 + 1;", 1),
    ],
)
def test_a_call_is_shown_once_wherever_it_stands_in_a_cell(run: Run, code: str, pages: int) -> None:
    shown = run(code)
    assert len(shown) == pages
    assert all('data-minibert="' in html for html in shown)


def test_a_page_is_shown_again_by_the_cells_that_ask_for_it(run: Run) -> None:
    run("page = head_view(attention, tokens, layer=1)")
    [again] = run("page")
    [once_more] = run("from IPython.display import display\ndisplay(page)")
    assert again == once_more
