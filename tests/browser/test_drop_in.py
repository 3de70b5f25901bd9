"""Pages of head_view and model_view in a browser: they open with what was asked for."""

from attention_pages import names, softmax
from browser.head_view import Open, state

from minibert.viz import head_view, model_view

ATTENTION = softmax((3, 4, 6, 6))


def test_head_view_opens_with_its_layer_and_heads(open_page: Open) -> None:
    page = open_page(head_view(ATTENTION, names(6), layer=2, heads=[1, 3]).html)
    assert state(page) == {"layer": "2", "heads": "1.3"}
    assert page.locator(".lower").get_attribute("data-drawn") is not None


def test_an_address_goes_before_what_the_page_opens_with(open_page: Open) -> None:
    html = head_view(ATTENTION, names(6), layer=2, heads=[1]).html
    page = open_page(html, "layer=1&heads=0.1")
    assert state(page) == {"layer": "1", "heads": "0.1"}


def test_model_view_is_dark_unless_told_otherwise(open_page: Open) -> None:
    for options, theme in (({}, "dark"), ({"display_mode": "light"}, "light")):
        page = open_page(model_view(ATTENTION, names(6), **options).html, ready=".minibert")
        page.wait_for_selector(f".minibert[data-theme={theme}]")
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("data-view") == "model"
        assert state(page)["theme"] == theme


def test_cross_attention_has_the_tokens_of_both_sides(open_page: Open) -> None:
    page = open_page(
        head_view(
            cross_attention=softmax((2, 2, 3, 5)),
            encoder_tokens=list("vwxyz"),
            decoder_tokens=list("abc"),
        ).html
    )
    for side, shown in (("query", "abc"), ("key", "vwxyz")):
        tokens = page.locator(f".column.{side} .token").all_inner_texts()
        assert "".join(token.strip() for token in tokens) == shown


def test_weights_that_do_not_add_up_to_one_are_not_said_to(open_page: Open) -> None:
    for weights, whole in ((ATTENTION, True), (ATTENTION * 0.5, False), (ATTENTION * 3, False)):
        page = open_page(head_view(weights, names(6)).html)
        said = page.locator(".minibert").inner_text()
        assert ("In each head, the weights of a token on the left add up to 100" in said) is whole
        assert ("do not always add up to 1 here: the sums are from" in said) is not whole
        page.locator("[role=tab][data-view=text]").click()
        page.locator(".text-view .token").first.click()
        page.locator(".text-norm").wait_for()
        said = page.locator(".minibert").inner_text()
        assert ("each would get" in said or "add up to 100" in said) is whole
