"""A text of 3,000 tokens: every view is drawn, and every token within reach."""

from functools import cache

import numpy as np
import pytest
import torch
from attention_pages import FakeSizes, FakeTokens, FakeTrace, names
from browser.head_view import (
    Open,
    press,
    scroll_to,
    state,
    token,
)
from playwright.sync_api import expect

from minibert.viz import attention_page, view

pytestmark = pytest.mark.browser
N, WIDTH = 3000, 7
DRAWN = "[data-drawn]"


def neighbours(n_tokens: int) -> np.ndarray:
    """One head, (layer, head, query, key): each looks at the token before, some at the first."""
    probs = np.zeros((1, 1, n_tokens, n_tokens), np.float32)
    each = np.arange(n_tokens)
    probs[0, 0, each, np.maximum(each - 1, 0)] = 0.6
    probs[0, 0, :, 0] += 0.4
    return probs


@cache
def plain_page() -> str:
    return attention_page(neighbours(N), names(N)).html


@cache
def vectors_page() -> str:
    """Random query and key, from which the page computes the weights."""
    tokens = (tuple(names(N)),)
    numbers = np.random.default_rng(3).normal(0, 1, (3, 1, 1, 2, N, WIDTH)).astype(np.float32)
    vectors = torch.from_numpy(numbers)
    scores = vectors[0] @ vectors[1].transpose(-1, -2) * WIDTH**-0.5
    labels = FakeTokens(
        raw=tokens,
        strings=tokens,
        segments=torch.zeros((1, N), dtype=torch.int64),
        special=((False,) * N,),
        texts=(("t0 and so on",),),
        spans=((None,) * N,),
    )
    return view(FakeTrace(scores.softmax(-1), vectors, labels, FakeSizes(1, 2, WIDTH))).html


def test_every_view_is_drawn(open_page: Open) -> None:
    page = open_page(vectors_page(), ready=DRAWN)
    for name in ("head", "model", "neuron", "arithmetic", "map"):
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&query=2900&key=150")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        expect(page.locator(".notice")).to_be_hidden()


def test_the_keyboard_walks_through_it(open_page: Open) -> None:
    page = open_page(plain_page(), "query=2900")
    expect(token(page, "query", 2900)).to_be_in_viewport(ratio=1)
    press(page, *["ArrowDown"] * 40)
    expect(token(page, "query", 2940)).to_be_focused()
    expect(token(page, "query", 2940)).to_be_in_viewport(ratio=1)
    assert state(page) == {"query": "2940"}
    scroll_to(page, 1500, N)
    expect(token(page, "query", 2940)).to_be_focused()
    press(page, "ArrowDown")
    expect(token(page, "query", 2941)).to_be_in_viewport(ratio=1)
