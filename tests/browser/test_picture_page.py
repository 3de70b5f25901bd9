"""The page of a vision model: patches on the picture, each a token of the text view."""

import numpy as np
import pytest
import torch
from browser.head_view import Open
from playwright.sync_api import expect
from transformers import ViTConfig, ViTModel

import minibert

pytestmark = pytest.mark.browser


def test_a_patch_is_chosen_on_the_picture_and_others_get_its_shades(open_page: Open) -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 44}
    config = ViTConfig(
        image_size=(24, 40), patch_size=8, intermediate_size=40, initializer_range=0.3, **sizes
    )
    picture = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255
    trace = minibert.attach(ViTModel(config).eval()).trace(pixel_values=pixels)
    html = trace.view(image=picture).html
    page = open_page(html, "shade=from&heads=1", ready=".text-view[data-drawn]")
    image = page.locator(".text-picture img")
    assert image.evaluate("(one) => [one.naturalWidth, one.naturalHeight]") == [40, 24]
    patches = page.locator(".text-token.patch")
    expect(patches).to_have_count(15)
    frame, last = image.bounding_box(), patches.nth(14).bounding_box()
    assert frame is not None
    assert last is not None
    # Row 2, column 4 of 3 x 5: the lower right corner.
    assert last["x"] + last["width"] == pytest.approx(frame["x"] + frame["width"], abs=1)
    assert last["y"] + last["height"] == pytest.approx(frame["y"] + frame["height"], abs=1)
    assert last["width"] == pytest.approx(frame["width"] / 5, abs=1)
    patches.nth(7).click()
    page.mouse.move(0, 0)
    expect(page.locator(".text-card h2")).to_have_text("row 1, column 2 looks at")
    shades = patches.evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).backgroundColor.split(',')[3] ?? '1')"
    )
    opacity = [float(one.rstrip(")")) for one in shades]
    weights = trace[0, 1].probs[0, 8, 1:].numpy()
    assert int(np.argmax(opacity)) == int(weights.argmax())
