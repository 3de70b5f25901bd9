"""Pages of head_view and model_view in a browser: they open with what was asked for."""

import numpy as np
import pytest
from attention_pages import names, softmax
from browser.head_view import Open, state

from minibert.viz import head_view, model_view

ATTENTION = softmax((3, 4, 6, 6))


def test_model_view_is_dark_unless_told_otherwise(open_page: Open) -> None:
    for options, theme in (({}, "dark"), ({"display_mode": "light"}, "light")):
        page = open_page(model_view(ATTENTION, names(6), **options).html, ready=".minibert")
        page.wait_for_selector(f".minibert[data-theme={theme}]")
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("data-view") == "model"
        assert state(page)["theme"] == theme


@pytest.mark.parametrize(("factor", "whole"), [(1, True), (0.5, False)])
def test_weights_that_do_not_add_up_to_one_are_not_said_to(
    open_page: Open, factor: float, whole: bool
) -> None:
    page = open_page(head_view(ATTENTION * np.float32(factor), names(6)).html)
    legend = page.locator(".legend")
    assert ("on the left add up to 100" in legend.inner_text()) is whole
    note = "do not always add up to 1 here: the sums are from"
    assert (note in page.locator(".about").inner_text()) is not whole
