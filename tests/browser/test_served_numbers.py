"""Numbers worked out before a served model, of kinds that the engine in a file does not run too."""

from collections.abc import Iterator
from typing import Any

import pytest
from browser.whole_pages import worked
from playwright.sync_api import Browser, Page
from small_traces import other_model

import minibert
from minibert.layers.rotary import Rotary
from tests.served import serving

pytestmark = pytest.mark.browser

TEXT = "the old horse ran to the house"
POSITION = 3
LIKE_BERT: dict[str, Any] = {
    "causal": False, "n_kv_heads": 4, "windows": (), "rotary": None, "task": "masked-lm",
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "distilbert": {**LIKE_BERT, "family": "distilbert"},
    # Its output head has an activation of its own.
    "electra": {**LIKE_BERT, "family": "electra", "n_segments": 2, "activation": "relu"},
    # Its frequencies depend on the length of the text.
    "llama": {
        "rotary": Rotary(6, scaling="dynamic", factor=4.0, n_original=4),
        "task": "causal-lm",
        "windows": (),
    },
    # Its queries go through a norm of the numbers of all heads.
    "olmo2": {"family": "olmo2", "d_head": 24, "task": "causal-lm", "windows": ()},
}
NUMBERS = ("embed", "query", "attn_out", "resid_mid", "mlp_post")


def model_of(kind: str, **changes: Any) -> Any:
    tokenizer = minibert.load("tiny-bert").tokenizer
    assert tokenizer is not None
    made = other_model("llama", **(KINDS[kind] | {"vocab_size": tokenizer.vocab_size} | changes))
    made.tokenizer = tokenizer
    return made


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Opens the page of a server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def show(address: str, place: str) -> Page:
        page.goto("about:blank")
        page.goto(f"{address}#text={TEXT.replace(' ', '+')}&{place}")
        page.wait_for_selector("[data-drawn]")
        page.wait_for_selector("#page[aria-busy=false]")
        page.wait_for_timeout(300)
        return page

    yield show
    context.close()
    assert complaints == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_worked_out_before_a_served_model(kind: str, opened: Any) -> None:
    model = model_of(kind)
    trace = model.trace(TEXT)
    with serving(model) as server:
        for name in (*NUMBERS, *(("query_unrotated",) if model.config.rotary else ())):
            place = f"view=arithmetic&layer=1&heads=2&query={POSITION}&number={name}&dim=4"
            page = opened(server.address, place)
            at = trace if name == "embed" else trace[1, 2] if "query" in name else trace[1]
            expected = float(getattr(at, name)[0, POSITION, 4])
            assert worked(page) == pytest.approx(expected, abs=1e-4), name
        page = opened(server.address, f"view=arithmetic&query={POSITION}&number=logits")
        assert worked(page) == pytest.approx(float(trace.logits[0, POSITION].max()), abs=1e-4)
        assert not page.locator(".sum-edited:visible").count()


def test_a_part_that_is_not_drawn_is_named(opened: Any) -> None:
    model = model_of("electra", d_embed=16)
    with serving(model) as server:
        tab = opened(server.address, "view=head").get_by_role("tab", name="Whole")
        assert tab.get_attribute("aria-disabled") == "true"
        assert "its embeddings, of width 16 (d_embed), go" in (tab.get_attribute("title") or "")
