"""German pages in real browsers: nothing that is said stays English, and all of it fits."""

import re

import pytest
from playwright.sync_api import Page

from minibert.viz.live import live_page, story_page

# Texts, names of elements and titles; not tokens, code, and what a model says.
SAID = """() => {
  const all = [...document.querySelectorAll("#page *")].filter((one) => !one.closest("bdi, code, pre, strong, style, .story-words, option, td, th"));
  return all.flatMap((one) => [
    ...[...one.childNodes].filter((node) => node.nodeType === 3).map((node) => node.textContent.trim()),
    ...["aria-label", "title", "placeholder"].map((name) => one.getAttribute(name) ?? ""),
  ]);
}"""  # noqa: E501
# The same word in both languages, names of quantities, and texts of the story.
SAME = re.compile(
    r"(MLP|Neuron|Python|Text|Token|Bias|Embedding|Enter|Esc|Softmax|W_\w+|attn|exp\(?|query|key|value"
    r"|softmax|score|segment|position|word|normed|embed|mlp_post|Top-[kp]|Query, key, value"
    r"|⊕ LayerNorm|(attention|mlp|output) .*norm.*|(word|segment|position) embedding"
    r"|head \d-\d|mlp \d|.*\((\d|erf\()+\)?|was [\d.]+, were [\d.]+\.|q, k|scores)"
)


def words(page: Page) -> set[str]:
    return {one for one in page.evaluate(SAID) if re.search("[A-Za-z]{2}", one)}


def views(page: Page, arrived: set[str]) -> set[str]:
    """What every view says; of the live page also after a change."""
    for tab in page.locator(".views [role=tab], .tabs [role=tab]").all():
        tab.click()
        page.wait_for_selector("#page[aria-busy=false]")
        page.wait_for_timeout(200)
        arrived |= words(page)
    return arrived


@pytest.mark.parametrize("size", [(1280, 720), (360, 800)])
def test_the_live_page_speaks_german(bert, open_page, size):
    width, height = size
    said = {}
    for language in ("en", "de"):
        page = open_page(
            live_page(bert, language=language).html,
            ready="[data-drawn]",
            viewport={"width": width, "height": height},
        )
        assert page.evaluate("document.documentElement.lang") == language
        said[language] = views(page, words(page))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(said["de"]) > 60
    assert [one for one in said["en"] & said["de"] if not SAME.fullmatch(one)] == []


def test_the_story_speaks_german(bert, gpt2, open_page):
    said = {}
    for language in ("en", "de"):
        page = open_page(
            story_page(bert, gpt2, language=language).html, "step=5", ready="[data-drawn]"
        )
        page.wait_for_selector("#step-5[data-here]")
        page.locator("#step-5 select").select_option("was")
        page.locator("#step-5 [type=submit]").click()
        page.wait_for_selector("#step-5 [data-right=true]", timeout=60_000)
        said[language] = words(page)
    assert len(said["de"]) > 60
    assert [one for one in said["en"] & said["de"] if not SAME.fullmatch(one)] == []
