"""The course's sheets and slides as a browser prints and shows them, and pages put into others."""

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from minibert.viz.stored import stored_live
from scripts.course import COURSE

EMBED = COURSE.parent / "embed.js"
# Where a box ends beside or below what holds it.
WIDE = """() => [...document.querySelectorAll("body *:not(svg *)")].filter((one) =>
  one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
CUT = """() => [...document.querySelector("section.here").children].filter((one) => {
  const {top, bottom, right} = one.getBoundingClientRect();
  return top < 0 || right > innerWidth || bottom > document.querySelector("nav").getBoundingClientRect().top;
}).map((one) => one.textContent)"""  # noqa: E501


@pytest.fixture
def window(in_chromium):
    page = in_chromium.new_page()
    yield page
    page.close()


@pytest.mark.parametrize(
    "sheet", sorted((COURSE / "handouts").glob("*.html")), ids=lambda p: p.stem
)
def test_a_handout_prints_on_a4_and_nothing_is_cut(window, sheet):
    # 176 mm, what the margins leave of A4.
    window.set_viewport_size({"width": 665, "height": 1000})
    window.emulate_media(media="print")
    window.goto(sheet.as_uri())
    assert window.evaluate(WIDE) == []
    for box in (one.bounding_box() for one in window.locator("svg, .ask").all()):
        assert box
        assert box["height"] < 900
    pdf = window.pdf(prefer_css_page_size=True)
    assert b"/MediaBox [0 0 594.95996 841.91998]" in pdf
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert window.locator(".ask").count() / 3 <= pages <= 14


@pytest.mark.parametrize("deck", sorted((COURSE / "slides").glob("*.html")), ids=lambda p: p.stem)
def test_a_deck_has_a_picture_and_every_slide_fits(window, deck):
    window.set_viewport_size({"width": 1280, "height": 720})
    window.goto(deck.as_uri())
    assert window.locator("section > svg").count() > 0
    for number in range(1, window.locator("section").count() + 1):
        window.evaluate(f"location.hash = '#{number}'")
        window.wait_for_function(
            f"document.querySelector('nav span').textContent.startsWith('{number} of')"
        )
        assert window.evaluate(CUT) == [], number


@pytest.mark.parametrize("served", [False, True])
def test_one_line_puts_a_live_page_into_another(window, tmp_path, served):
    stored_live("tiny-bert", "de").save(tmp_path / "live.de.html")
    (tmp_path / "embed.js").write_bytes(EMBED.read_bytes())
    line = '<script src="embed.js" data-view="live.de" data-address="view=model" data-height="640">'
    (tmp_path / "own.html").write_text(f"<!doctype html><p>Before</p>{line}</script><p>After</p>")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    folder = f"http://127.0.0.1:{server.server_port}" if served else tmp_path.as_uri()
    window.goto(f"{folder}/own.html")
    inside = window.frame_locator("p + script + iframe[height='640']")
    inside.locator("[data-drawn]").first.wait_for(timeout=60_000)
    assert inside.get_by_role("tab", name="Modell").get_attribute("aria-selected") == "true"
    server.shutdown()
    server.server_close()
