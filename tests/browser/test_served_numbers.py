"""Numbers worked out before a served model, of kinds that the engine in a file does not run too."""

from collections.abc import Iterator
from typing import Any

import pytest
from browser.live_pages import asked, worked
from playwright.sync_api import Browser, Page
from small_traces import SERVED_KINDS, other_model

import minibert
from minibert.analysis import embedding_parts
from minibert.layers.rotary import Rotary
from tests.served import serving

pytestmark = pytest.mark.browser

TEXT = "the old horse ran to the house"
POSITION = 3
KINDS: dict[str, dict[str, Any]] = {
    **SERVED_KINDS,
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


def model_of(kind: str) -> Any:
    tokenizer = minibert.load("tiny-bert").tokenizer
    assert tokenizer is not None
    made = other_model("llama", **(KINDS[kind] | {"vocab_size": tokenizer.vocab_size}))
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


@pytest.mark.parametrize("kind", ["roberta", "electra", "albert"])
def test_the_whole_leads_from_the_projection_to_the_rows_of_the_tables(
    kind: str, opened: Any
) -> None:
    model = model_of(kind)
    body, row = model.body, POSITION + model.config.position_offset
    with serving(model) as server:
        page = opened(server.address, f"view=whole&query={POSITION}")
        inputs = page.locator("[data-box=text] ~ [data-box^=embed]")
        assert f"position (row {row})" in inputs.first.inner_text()
        inputs.last.click()
        largest = float(model.trace(TEXT).embed[0, POSITION].abs().max())
        assert abs(worked(page)) == pytest.approx(largest, abs=1e-4)
        if body.embed_project is not None:
            # A number that the projection reads.
            first = page.locator("[data-step=products] tbody button").first
            dimension = int(first.inner_text().split()[-1])
            first.click()
            parts = embedding_parts(model, TEXT)
            summed = parts.word + parts.position + parts.segment
            expected = float(body.embed_norm(summed)[0, POSITION, dimension])
            page.wait_for_selector("[data-step=embeddings]")
            assert worked(page) == pytest.approx(expected, abs=1e-4)
            assert asked(page)["number"] == "embed_input"
        names = page.locator("[data-step=embeddings] tbody th").all_inner_texts()
        assert f"row {row} of positions: position {POSITION}" in names
