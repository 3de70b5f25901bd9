"""Pages in cells: in a live JupyterLab, and put into a page as other notebooks do it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attention_pages import HOSTILE, names, softmax
from browser import jupyter
from playwright.sync_api import Browser, Locator, Page, expect

from minibert.viz import attention_page
from minibert.viz.page import CELL_TALLEST

pytestmark = pytest.mark.browser

RUNS = {  # How front ends run the scripts of an output, which innerHTML alone does not.
    # JupyterLab, Notebook 7: a copy in the place of each script, which runs when it is attached.
    "jupyter": """(html) => {
      const output = document.createElement("div");
      output.innerHTML = html;
      for (const script of output.querySelectorAll("script")) {
        const copy = document.createElement("script");
        for (const { name, value } of script.attributes) copy.setAttribute(name, value);
        copy.textContent = script.textContent;
        script.replaceWith(copy);
      }
      document.querySelector("#cells").append(output);
    }""",
    # VS Code: a copy at the end of the output, gone as soon as it has run.
    "vscode": """(html) => {
      const output = document.createElement("div");
      document.querySelector("#cells").append(output);
      output.innerHTML = html;
      for (const script of [...output.querySelectorAll("script")]) {
        const copy = document.createElement("script");
        copy.text = script.innerText;
        output.append(copy);
        copy.remove();
      }
    }""",
    # Colab, and pages that nbconvert writes: as if it had been there when the page was read.
    "parsed": """(html) => {
      const output = document.createElement("div");
      document.querySelector("#cells").append(output);
      output.append(document.createRange().createContextualFragment(html));
    }""",
}
# What a notebook that does not trust an output leaves of it.
SANITISED = """(html) => {
  const output = new DOMParser().parseFromString(html, "text/html").body;
  for (const one of output.querySelectorAll("script, style, iframe")) one.remove();
  for (const one of output.querySelectorAll("*")) {
    for (const { name } of [...one.attributes]) {
      if (!["alt", "src", "title"].includes(name)) one.removeAttribute(name);
    }
  }
  document.querySelector("#cells").append(...output.childNodes);
}"""
RUN_ALL = """async () => {
  const panel = jupyterapp.shell.currentWidget;
  await Promise.all([panel.context.ready, panel.sessionContext.ready]);
  await panel.sessionContext.session.kernel.info;
  await jupyterapp.commands.execute("notebook:run-all-cells");
}"""
AROUND = """<!doctype html><title>cells</title><style>
p, ul, button { margin: 40px; color: red; font: 30px serif } div { scroll-behavior: smooth }
#cells { margin-left: 60px }
</style><body style="margin: 0"><textarea></textarea><div id="cells"></div>"""


def cell(n: int, **options: Any) -> str:
    page = attention_page(softmax((2, 3, n, n), seed=n), names(n), **options)
    return page._repr_mimebundle_()["text/html"]


@pytest.fixture
def notebook(browser: Browser, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """A page like a notebook, with cells put in."""
    pages = []

    def open_cells(run: str, *cells: str, **options: Any) -> Page:
        page = browser.new_page(viewport={"width": 1100, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_content(AROUND)
        for html in cells:
            page.evaluate(run, html)
        return page

    yield open_cells
    for page in pages:
        page.close()
    assert complaints == []


def drawn(page: Page, index: int = 0) -> Locator:
    """The cell, when it has been drawn."""
    host = page.locator("[data-minibert]").nth(index)
    host.scroll_into_view_if_needed()
    host.locator(".lower[data-drawn]").wait_for(state="attached")
    return host


def details(host: Locator) -> Locator:
    return host.locator(".details h2")


class TestFrontEnds:
    @pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
    def test_pages_do_not_disturb_each_other_and_one_shown_twice_is_there_twice(
        self, notebook: Callable[..., Page], run: str
    ) -> None:
        same = cell(5, title="five")
        page = notebook(run, same, cell(6, title="six"), same)
        five, six = drawn(page, 0), drawn(page, 1)
        expect(five.locator("h1")).to_have_text("five")
        expect(six.locator("h1")).to_have_text("six")
        five.locator(".query .token").nth(2).hover()
        expect(details(five)).to_have_text("t2 looks at")
        expect(six.locator(".upper")).to_have_attribute("data-lines", "0")
        six.locator(".query .token").nth(4).hover()
        expect(details(six)).to_have_text("t4 looks at")
        six.get_by_label("Next layer").click()
        expect(six.locator(".stage")).to_have_attribute("data-layer", "1")
        expect(five.locator(".stage")).to_have_attribute("data-layer", "0")
        assert "#" not in page.url
        again = drawn(page, 2)
        again.locator(".query .token").nth(1).hover()
        expect(details(again)).to_have_text("t1 looks at")

    @pytest.mark.parametrize("width", [1100, 700])
    def test_is_as_tall_as_what_it_shows(self, notebook: Callable[..., Page], width: int) -> None:
        page = notebook(RUNS["jupyter"], cell(5))
        page.set_viewport_size({"width": width, "height": 900})
        host = drawn(page)
        for name in ("Head", "Model", "Map"):
            host.get_by_role("tab", name=name).click()
            page.wait_for_timeout(100)
            scrolled, seen, empty = host.locator(".scroller").evaluate(
                """(part) => {
                  const [around, inside] = [part, part.firstChild].map(
                    (one) => one.getBoundingClientRect());
                  return [part.scrollHeight, part.clientHeight, around.bottom - inside.bottom];
                }"""
            )
            assert scrolled == seen or seen == CELL_TALLEST
            assert empty <= 1


class TestKeys:
    def test_are_heard_only_where_the_pointer_or_the_focus_is(
        self, notebook: Callable[..., Page]
    ) -> None:
        page = notebook(RUNS["jupyter"], cell(5), cell(6))
        layers = [drawn(page, i).locator(".stage") for i in range(2)]
        page.evaluate(
            "window.heard = []; addEventListener('keydown', ({ key }) => heard.push(key))"
        )

        def press(key: str, expected: list[str]) -> None:
            page.keyboard.press(key)
            for stage, layer in zip(layers, expected, strict=True):
                expect(stage).to_have_attribute("data-layer", layer)

        page.mouse.move(5, 5)
        press("ArrowRight", ["0", "0"])
        drawn(page, 1).locator("h1").hover()
        press("ArrowRight", ["0", "1"])
        # What meant something here is not heard outside.
        assert page.evaluate("heard") == ["ArrowRight"]
        page.locator("textarea").focus()
        drawn(page, 0).locator("h1").hover()
        press("ArrowRight", ["0", "1"])
        drawn(page, 0).locator(".query .token").nth(1).focus()
        page.mouse.move(5, 5)
        press("ArrowRight", ["1", "1"])

    def test_in_a_field_do_not_mean_a_command_to_jupyter(
        self, notebook: Callable[..., Page]
    ) -> None:
        page = notebook(RUNS["jupyter"], cell(5))
        host = drawn(page)
        host.locator("input[type=range]").focus()
        page.keyboard.press("d")
        assert host.evaluate("(one) => one.hasAttribute('data-lm-suppress-shortcuts')")
        page.keyboard.press("Control+s")
        assert not host.evaluate("(one) => one.hasAttribute('data-lm-suppress-shortcuts')")


class TestTheme:
    def test_is_that_of_the_notebook(self, notebook: Callable[..., Page]) -> None:
        page = notebook(RUNS["jupyter"], cell(5), color_scheme="light")
        page_root = drawn(page).locator(".minibert")
        expect(page_root).to_have_attribute("data-theme", "light")
        body, root = "document.body", "document.documentElement"
        for mark, undo in (
            (f"{body}.dataset.jpThemeLight = 'false'", f"delete {body}.dataset.jpThemeLight"),
            (
                f"{body}.dataset.vscodeThemeKind = 'vscode-dark'",
                f"delete {body}.dataset.vscodeThemeKind",
            ),
            (f"{root}.setAttribute('theme', 'dark')", f"{root}.removeAttribute('theme')"),
            (f"{body}.style.background = '#111'", f"{body}.style.background = ''"),
        ):
            page.evaluate(mark)
            expect(page_root).to_have_attribute("data-theme", "dark")
            page.evaluate(undo)
            expect(page_root).to_have_attribute("data-theme", "light")
        page.emulate_media(color_scheme="dark")
        expect(page_root).to_have_attribute("data-theme", "dark")
        page.evaluate("document.body.style.background = '#eee'")
        expect(page_root).to_have_attribute("data-theme", "light")


class TestUntrusted:
    def test_image_and_text_remain(self, notebook: Callable[..., Page]) -> None:
        html = attention_page(softmax((2, 3, 10, 10)), HOSTILE, model=HOSTILE[1])
        page = notebook(SANITISED, html._repr_mimebundle_()["text/html"])
        expect(page.locator("#cells")).to_contain_text("2 of 2 layers, 3 of 3 heads, 10 tokens")
        expect(page.locator("#cells")).to_contain_text("trust this notebook")
        expect(page.locator("#cells")).to_contain_text(HOSTILE[0])
        image = page.locator("#cells img")
        assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 3 * 34
        assert page.evaluate("window.pwned") is None


@pytest.mark.slow
@pytest.mark.skipif(jupyter.COMMAND is None, reason="JupyterLab is not installed")
class TestJupyterLab:
    SOURCES = (
        "from attention_pages import names, softmax\nfrom minibert.viz import attention_page\n"
        "attention_page(softmax((2, 3, 8, 8)), names(8), title='first')",
        "attention_page(softmax((2, 3, 30, 30), causal=True), names(30), title='second')",
        # As much as a cell may hold.
        "attention_page(softmax((12, 10, 200, 200)), names(200), title='large')",
    )

    def test_pages_work_in_a_live_notebook(self, browser: Browser, tmp_path: Path) -> None:
        folder = tmp_path / "notebooks"
        folder.mkdir()
        jupyter.write_notebook(folder / "pages.ipynb", self.SOURCES)
        with jupyter.server(folder) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on(
                "console",
                lambda said: complaints.append(said.text) if said.type == "error" else None,
            )
            page.goto(f"{address}/lab/tree/pages.ipynb")
            page.locator(".jp-Notebook .jp-Cell").last.wait_for(timeout=90_000)
            page.evaluate(RUN_ALL)
            page.locator("[data-minibert]").nth(2).wait_for(state="attached")
            address_before = page.url
            for i, title in enumerate(("first", "second", "large")):
                host = drawn(page, i)
                expect(host.locator("h1")).to_have_text(title)
                host.locator(".query .token").nth(3).hover()
                expect(details(host)).to_have_text("t3 looks at")
            first = drawn(page, 0)
            first.locator("h1").hover()
            page.keyboard.press("ArrowRight")
            expect(first.locator(".stage")).to_have_attribute("data-layer", "1")
            expect(drawn(page, 1).locator(".stage")).to_have_attribute("data-layer", "0")
            page.evaluate(
                "jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
            )
            expect(first.locator(".minibert")).to_have_attribute("data-theme", "dark")
            first.locator(".export .opener").click()
            with page.expect_download() as started:
                first.get_by_role("button", name="SVG drawing").click()
            assert started.value.suggested_filename.endswith(".svg")
            assert page.url == address_before
            page.evaluate("jupyterapp.commands.execute('docmanager:save')")
            stored = json.loads((folder / "pages.ipynb").read_text())
            # With another number in it, its signature is not that of a notebook run here.
            stored["cells"][0]["execution_count"] = 1234
            (folder / "foreign.ipynb").write_text(json.dumps(stored))
            page.goto(f"{address}/lab/tree/foreign.ipynb?reset")
            image = page.locator(".jp-OutputArea-output img").first
            image.wait_for(timeout=90_000)
            assert image.evaluate("(one) => one.decode().then(() => one.naturalWidth)") > 100
            expect(page.locator(".jp-OutputArea-output").first).to_contain_text("trust this")
            assert page.locator("[data-minibert]").count() == 0
            page.close()
        for one in stored["cells"]:
            (output,) = one["outputs"]
            assert set(output["data"]) == {"text/html", "text/plain"}
        # A console holds what others say as well; what we say names our script or an exception.
        assert complaints == []
