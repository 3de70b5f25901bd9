"""Heads of the real BERT and GPT-2 on a page: as strong as published, read off the screen.

The weights are BertViz's own, from its notebooks. Heads count from 0. Vig 2019, "A multiscale
visualization of attention in the Transformer model": in bert-base-uncased 2-0 looks at the next
word, 7-3 at the delimiter, and 2-1 at the word that predicts this one, straw at ##berries.
"""

import re

import numpy as np
import pytest
import torch
from attention_pages import FakeSizes, FakeTokens, FakeTrace
from browser.head_view import Open, token, weights_shown
from browser.test_arithmetic_view import READY as ARITHMETIC
from browser.test_arithmetic_view import number
from browser.test_model_view import READY as MODEL
from browser.test_model_view import numbers, point
from data import data_path
from playwright.sync_api import Page, expect

from minibert.viz import attention_page, view

pytestmark = pytest.mark.browser
# A weight that is shown is within this of the one that was given.
ROUNDED = 4e-3
SECOND_TEXT = 8
STRAW, BERRIES = 15, 16


@pytest.fixture(scope="module")
def store() -> tuple[np.ndarray, list[str]]:
    """(layer, head, query, key) and tokens of "I went to the store." and "At the store, ..."."""
    found = np.load(data_path("refs", "bert-base-uncased__store.npz"), allow_pickle=False)
    return found["attn"], [str(token) for token in found["tokens"]]


@pytest.fixture(scope="module")
def store_page(store: tuple[np.ndarray, list[str]]) -> str:
    return attention_page(*store, sentence_b_start=SECOND_TEXT).html


def strongest(page: Page, query: int) -> tuple[int, float]:
    """The key with the largest weight of a row on screen, and that weight."""
    token(page, "query", query).click()
    expect(token(page, "query", query)).to_have_class(re.compile(r"\bkept\b"))
    shown = weights_shown(page, "key")
    key = max(shown, key=lambda i: shown[i])
    return key, shown[key]


def test_head_2_0_looks_at_the_next_word_from_every_word(
    open_page: Open, store: tuple[np.ndarray, list[str]], store_page: str
) -> None:
    attention, tokens = store
    page = open_page(store_page, "layer=2&heads=0")
    words = [i for i, name in enumerate(tokens) if name not in ("[CLS]", "[SEP]")]
    for query in words:
        key, weight = strongest(page, query)
        assert key == query + 1
        assert weight > 0.98
        assert weight == pytest.approx(attention[2, 0, query, key], abs=ROUNDED)


def test_head_7_3_looks_at_the_delimiters_from_every_token(
    open_page: Open, store: tuple[np.ndarray, list[str]], store_page: str
) -> None:
    attention, tokens = store
    page = open_page(store_page, "layer=7&heads=3")
    delimiters = {i for i, name in enumerate(tokens) if name == "[SEP]"}
    for query in range(len(tokens)):
        assert strongest(page, query)[0] in delimiters
        shown = weights_shown(page, "key")
        together = sum(weight for key, weight in shown.items() if key in delimiters)
        assert together > 0.75
        expected = attention[7, 3, query, sorted(delimiters)].sum()
        assert together == pytest.approx(expected, abs=2 * ROUNDED)


@pytest.mark.parametrize(
    ("statistic", "head", "published"), [("next", "2, 0", 0.99), ("delimiter", "7, 3", 0.9)]
)
def test_the_model_view_finds_them_when_it_sorts_by_their_pattern(
    open_page: Open, store_page: str, statistic: str, head: str, published: float
) -> None:
    page = open_page(store_page, f"view=model&sort={statistic}", ready=MODEL)
    layer, number_in_layer = head.split(", ")
    found = {}
    # One other head of 144 is as strong: 2-9 for the next word, and one for the delimiter.
    for slot in range(2):
        point(page, slot)
        found[page.locator(".model-card h2").inner_text()] = numbers(page)[statistic]
    assert found[f"Layer {layer}, head {number_in_layer}"] > published


def test_head_2_1_looks_from_straw_at_berries_in_the_lines_and_in_the_text(
    open_page: Open, store: tuple[np.ndarray, list[str]], store_page: str
) -> None:
    attention, tokens = store
    assert tokens[STRAW : BERRIES + 1] == ["straw", "##berries"]
    weight = attention[2, 1, STRAW, BERRIES]
    assert weight > 0.98
    page = open_page(store_page, f"layer=2&heads=1&query={STRAW}")
    assert strongest_shown(page) == (BERRIES, pytest.approx(weight, abs=ROUNDED))
    hash = f"view=text&shade=from&layer=2&heads=1&query={STRAW}"
    page = open_page(store_page, hash, ready=".text-view[data-drawn]")
    first = page.locator(".details .bar").first
    expect(first.locator(".name")).to_have_text("##berries")
    value = first.locator("data").get_attribute("value")
    assert float(value or "nan") == pytest.approx(weight, abs=ROUNDED)


def strongest_shown(page: Page) -> tuple[int, float]:
    shown = weights_shown(page, "key")
    return max(shown.items(), key=lambda one: one[1])


def gpt2_page() -> tuple[str, np.ndarray, list[str]]:
    """GPT-2's queries and keys on a page that is given no other numbers of it, and its weights."""
    found = np.load(data_path("refs", "gpt2__apples_qk.npz"), allow_pickle=False)
    names = tuple(str(name) for name in found["tokens"])
    queries, keys = (torch.from_numpy(found[name])[:, None] for name in ("queries", "keys"))
    scores = queries @ keys.transpose(-1, -2) / 8
    future = ~torch.ones(len(names), len(names)).tril().bool()
    tokens = FakeTokens(
        raw=(names,),
        strings=(names,),
        segments=torch.zeros(1, len(names), dtype=torch.long),
        special=((False,) * len(names),),
        texts=((" ".join(names),),),
        spans=((None,) * len(names),),
    )
    trace = FakeTrace(
        scores.masked_fill(future, -torch.inf).softmax(-1),
        torch.stack([queries, keys, keys]),
        tokens,
        FakeSizes(12, 12, d_head=64, causal=True),
        model_name="gpt2",
    )
    return view(trace, exact=True).html, found["attn"], list(names)


def test_the_arithmetic_of_gpt2_arrives_at_its_published_weights(open_page: Open) -> None:
    html, attention, tokens = gpt2_page()
    page = open_page(html, "view=arithmetic", ready=ARITHMETIC)
    last = len(tokens) - 1
    assert tokens[last] == tokens[1] == "Smith"
    # Induction, duplicate token and previous token heads (Wang et al. 2022), and an arbitrary one.
    for layer, head in ((5, 1), (5, 5), (3, 0), (0, 1), (4, 11), (11, 7)):
        for key in (1, 2, last - 1):
            chosen = f"layer={layer}&heads={head}&query={last}&key={key}"
            page.evaluate("hash => { location.hash = hash }", f"view=arithmetic&{chosen}")
            title = page.locator(".sum-title")
            expect(title).to_contain_text(f"{tokens[last]} looks at {tokens[key]}")
            expected = attention[layer, head, last, key]
            assert number(page, "answer") == pytest.approx(expected, abs=1e-6)
