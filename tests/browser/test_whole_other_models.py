"""The whole and its numbers of rotary, grouped, gated, doubly normed and parallel models."""

from collections.abc import Callable

import pytest
from browser.live_pages import WORDS, asked, boxes, settled, shown, total, worked
from live.test_engine import random_model
from playwright.sync_api import Page

import minibert
from minibert.viz.live import live_page


@pytest.fixture(scope="module")
def llama() -> minibert.Model:
    return minibert.load("tiny-llama")


@pytest.fixture(scope="module")
def llama_page(llama: minibert.Model) -> str:
    return live_page(llama, [WORDS]).html


def test_a_rotary_grouped_and_gated_model_is_drawn_with_its_own_steps(
    llama: minibert.Model, llama_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(llama_page, "view=whole&layer=2&query=6")
    at = llama.trace(WORDS)[2]
    attention = ["attention norm", "vectors", "turned", "probs", "z", "attn_out"]
    assert boxes(page) == [
        *("resid_pre", *attention, "attention sum", "resid_mid"),
        *("mlp norm", "mlp_pre", "mlp_post", "mlp_out", "mlp sum", "resid_post"),
    ]
    assert "RMSNorm" in page.locator('[data-box="attention norm"]').inner_text()
    for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
        assert shown(page, name) == f"length {float(getattr(at, name)[0, 6].norm()):.1f}"
    assert "heads 2–3 read key-value head 1" in shown(page, "vectors")
    neuron = int(at.mlp_post[0, 6].abs().argmax())
    assert shown(page, "mlp_post").startswith(f"the strongest: neuron {neuron}, ")
    page.locator("[data-box=vectors]").click()
    assert asked(page)["number"] == "query_unrotated"
    small = opened(llama_page, "view=whole&layer=2", viewport={"width": 360, "height": 740})
    assert small.evaluate("document.documentElement.scrollWidth") == 360


def test_a_turned_query_and_a_gated_neuron_are_worked_out(
    llama: minibert.Model, llama_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(
        llama_page,
        "view=arithmetic&layer=1&query=5&heads=3&number=key&dim=20",
        viewport={"width": 360, "height": 740},
    )
    trace = llama.trace(WORDS)
    expected = float(trace[1, 3].key[0, 5, 20])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    assert total(page, "turn") == pytest.approx(expected, abs=1e-4)
    page.locator("[data-step=turn] tbody button").first.click()
    assert asked(page)["number"] == "key_unrotated"
    unturned = float(trace[1, 3].key_unrotated[0, 5, 20])
    assert total(page, "products") == pytest.approx(unturned, abs=1e-4)
    assert "Heads 2 and 3 share key-value head 1" in page.locator(".sum-steps:visible").inner_text()
    page.get_by_role("combobox", name="Number").select_option("mlp_post")
    settled(page)
    neuron = int(asked(page).get("dim", trace[1].mlp_post[0, 5].abs().argmax()))
    expected = float(trace[1].mlp_post[0, 5, neuron])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    steps = [one.get_attribute("data-step") for one in page.locator(".sum-step:visible").all()]
    assert steps == ["rms-norm", "products", "activation", "gate"]
    gate = float(trace[1].mlp_gate[0, 5, neuron])
    assert total(page, "products") == pytest.approx(gate, abs=1e-4)
    assert total(page, "gate") == pytest.approx(expected, abs=1e-4)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.locator("[data-step=gate] tbody button").click()
    assert asked(page)["number"] == "mlp_pre"


@pytest.mark.parametrize("kind", ["gemma2", "gpt_neox"])
def test_norms_behind_a_branch_and_branches_beside_one_another(
    kind: str, opened: Callable[..., Page]
) -> None:
    model = random_model(kind)
    page = opened(live_page(model, [WORDS]).html, "view=whole&layer=1&query=4")
    trace, found = model.trace(WORDS), boxes(page)
    parallel, norm = model.config.parallel, model.config.norm_place
    assert (found.index("mlp norm") < found.index("attention sum")) == parallel
    assert ("attention output norm" in found) == (norm == "both")
    # Of branches beside one another the first leads to the second, and not into the stream.
    rows = page.locator(".whole-branch").evaluate_all("(all) => all.map((one) => one.className)")
    assert [("first" in row, "second" in row) for row in rows] == (
        [(True, False), (False, True)] if parallel else [(False, False)] * 2
    )
    probs = trace.logits[0, 4].softmax(-1)
    bars = page.locator(".whole-bar data").evaluate_all("(all) => all.map((one) => +one.value)")
    assert bars == pytest.approx(probs.topk(5).values.tolist(), abs=1e-4)
    page.locator('[data-box="mlp sum"]').click()
    settled(page)
    place = int(trace[1].resid_post[0, 4].abs().argmax())
    expected = float(trace[1].resid_post[0, 4, place])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    assert total(page, "sum") == pytest.approx(expected, abs=1e-4)
    page.locator("[data-step=sum] tbody button").nth(1).click()
    assert asked(page)["number"] == ("mlp_output" if norm == "both" else "mlp_out")
