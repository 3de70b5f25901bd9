"""Text from strangers: all of it is shown as text, none of it does anything."""

from typing import Any

import pytest
from attention_pages import HOSTILE, softmax
from browser.head_view import pair_page, token
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser

EVENTS = ("'\"><svg onload=window.pwned=1>", "javascript:window.pwned=1", "{{script}}", "", "\n\t ")
TOKENS = (*HOSTILE, *EVENTS)


def hostile_page(**options: Any) -> str:
    size = len(TOKENS)
    probs = softmax((2, 3, size, size))
    return attention_page(
        probs, TOKENS, sentence_b_start=5, model=HOSTILE[0], title=HOSTILE[1], **options
    ).html


def assert_harmless(page: Page) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.locator("#page :is(img, script, svg, iframe, a, object)").count() == 0
    assert page.locator("script").count() == 5


def test_hostile_text_is_shown_and_does_nothing(open_page):
    page = open_page(hostile_page())
    assert_harmless(page)
    shown = page.locator(".query .token .chip").all_text_contents()
    assert shown[0] == "</script><script>window.pwned=1</script>"
    assert shown[1] == "<img src=x onerror=window.pwned=1>"
    assert shown[2] == "\"'`${window.pwned=1}"
    assert shown[3] == "⟨U+202E⟩gnp.exe"
    assert shown[4] == "👩‍👩‍👧"
    assert shown[5] == "a␀b"
    assert shown[6] == "⟨U+D800⟩"
    assert shown[9] == "x" * 80 + "…"
    assert shown[-2:] == ["∅", "↵⇥ "]
    expect(page.locator("h1")).to_have_text(HOSTILE[1])
    expect(page.locator(".sizes")).to_contain_text(HOSTILE[0])
    assert HOSTILE[1] in page.title()
    page.set_viewport_size({"width": 420, "height": 800})
    heights = page.locator(".query .token").evaluate_all("(all) => all.map((t) => t.offsetHeight)")
    assert len(set(heights)) == 1


def test_the_policy_stops_what_would_get_through(open_page, complaints):
    page = open_page(pair_page())
    page.evaluate(
        """() => {
          window.refused = [];
          const refused = ({ effectiveDirective }) => window.refused.push(effectiveDirective);
          document.addEventListener("securitypolicyviolation", refused);
          const script = document.createElement("script");
          script.textContent = "window.pwned = 1";
          const image = document.createElement("img");
          image.setAttribute("onerror", "window.pwned = 2");
          image.src = "http://127.0.0.1:9/x.png";
          const frame = document.createElement("iframe");
          frame.src = "data:text/html,<script>parent.pwned = 3</script>";
          document.body.append(script, image, frame);
          return fetch("http://127.0.0.1:9/").catch(() => null);
        }"""
    )
    page.wait_for_function("window.refused.length === 5")
    assert sorted(page.evaluate("window.refused")) == [
        *("connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem")
    ]
    token(page, "query", 1).hover()
    assert page.evaluate("window.pwned") is None
    page.wait_for_timeout(200)
    complaints.clear()
