"""Pages of grouped heads, windows, soft caps and rotation: each number against NumPy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import arrays, example_of, unpacked
from small_traces import OTHER_KINDS, other_trace, small_trace

from minibert.trace.read import Trace
from minibert.viz import Page, view
from minibert.viz.less import has_weights, layers_of, lessened
from minibert.viz.payload import encode_probs


@pytest.fixture(scope="module", params=list(OTHER_KINDS))
def trace(request: pytest.FixtureRequest) -> Trace:
    return other_trace(request.param)


def saved(page: Page) -> Any:
    """The page with its text made once."""
    return SimpleNamespace(html=page.html)


def held(page: Any, name: str, layer: int, head: int) -> np.ndarray:
    """query, key or value that a head reads, in double precision, as the page's entries say."""
    example = example_of(page)
    sizes, heads = example["sizes"], example["heads"]
    shared = sizes["n_heads"] // sizes.get("n_kv_heads", sizes["n_heads"])
    if name != "query":
        head, heads = head // shared, sorted({other // shared for other in heads})
    entries = {one["head"]: one for one in arrays(page, name) if one["layer"] == layer}
    if head in entries:
        return unpacked(page, name, layer, head).astype(np.float64)
    place = heads.index(head)
    numbers = unpacked(page, name, layer)[place].astype(np.float64)
    rests = {one["head"]: one for one in arrays(page, f"{name} rest") if one["layer"] == layer}
    if head not in rests:
        return numbers
    rest = unpacked(page, f"{name} rest", layer, head)
    if entries[None]["coding"] == "steps":
        return numbers + rest * (np.abs(numbers).max(-1, keepdims=True) / 100)
    exponents = np.maximum(np.frexp(numbers)[1] - 1, -14)
    return numbers + rest * 2.0 ** (exponents - 18)


def weights(page: Any, layer: int, head: int) -> np.ndarray:
    """The softmax of what the page holds, after the cap and the mask that it names."""
    example = example_of(page)
    place = example["layers"].index(layer)
    scores = held(page, "query", layer, head) @ held(page, "key", layer, head).T
    scores *= example["scale"][place]
    if cap := example.get("soft_cap"):
        scores = cap * np.tanh(scores / cap)
    distance = np.subtract.outer(np.arange(len(scores)), np.arange(len(scores)))
    before, after = example.get("windows", {place: None})[place] or (len(scores), len(scores))
    seen = (distance <= before) & (distance >= (0 if example["causal"] else -after))
    exps = np.where(
        seen, np.exp(scores - scores.max(-1, keepdims=True, where=seen, initial=-99)), 0
    )
    return exps / exps.sum(-1, keepdims=True)


def check_weights(page: Any, trace: Trace, tolerance: float) -> None:
    example = example_of(page)
    assert not example["edited"]
    for layer in example["layers"]:
        for head in example["heads"]:
            expected = trace[layer, head].probs[0].numpy()
            np.testing.assert_allclose(weights(page, layer, head), expected, atol=tolerance)


def test_query_and_key_give_the_weights(trace: Trace) -> None:
    check_weights(saved(view(trace)), trace, 1.2e-3)


def test_those_of_some_heads_do(trace: Trace) -> None:
    check_weights(saved(view(trace, layers=[1, 2], heads=[1, 3])), trace, 1.2e-3)


def test_those_in_a_byte_a_number_do(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibert.viz.viewing._SMALL_PAGE", 0)
    monkeypatch.setattr("minibert.viz.viewing._BYTES_A_TOKEN", 0)
    page = saved(view(trace))
    assert {one["coding"] for one in arrays(page, "query") if one["head"] is None} == {"steps"}
    check_weights(page, trace, 4e-3)


def test_a_shared_key_and_value_are_there_once(trace: Trace) -> None:
    config, page = trace.config, saved(view(trace, exact=(1, 1)))
    for name in ("key", "value"):
        shapes = {one["layer"]: one["shape"] for one in arrays(page, name) if one["head"] is None}
        assert shapes == {layer: [config.n_kv_heads, 11, 6] for layer in range(3)}
        own = 1 * config.n_kv_heads // config.n_heads
        single = getattr(trace[1], name)[0, own].numpy()
        np.testing.assert_array_equal(unpacked(page, name, 1, own), single)
        for head in range(4):
            expected = getattr(trace[2, head], name)[0].numpy()
            np.testing.assert_allclose(held(page, name, 2, head), expected, rtol=1e-3, atol=1e-3)
    assert all(one["shape"][0] == 4 for one in arrays(page, "query") if one["head"] is None)


def test_every_head_of_a_group_is_as_fine_as_the_finest() -> None:
    def far(key: torch.Tensor) -> torch.Tensor:
        # A number that cancels in the softmax, and makes halves coarse.
        key[:, 1] += 100
        return key

    # Head 3 looks evenly at all, whatever its key is; it shares the key of head 2.
    trace = other_trace("llama").rerun({("key", 0): far, ("query", 0, 3): 0.0})
    page = saved(view(trace))
    names = ("query rest", "query", "key rest", "key")
    finer = {
        name: {one["head"] for one in arrays(page, name) if one["layer"] == 0} - {None}
        for name in names
    }
    assert finer["query rest"] | finer["query"] == {2, 3}
    assert finer["key rest"] | finer["key"] == {1}
    check_weights(page, trace, 1.2e-3)


def test_less_of_a_page_keeps_its_weights(trace: Trace) -> None:
    expected = [encode_probs(trace[layer].probs[0].numpy()) for layer in range(3)]
    kept = 0
    for (example,) in lessened(view(trace, exact=[(0, 1), (2, 3)]).examples):
        if not has_weights(example) or example.about["notes"][-1].startswith("Only"):
            continue
        kept += 1
        for codes, wanted in zip(layers_of(example), expected, strict=True):
            assert np.abs(codes.astype(int) - wanted).max() <= 1
    assert kept >= 3


@pytest.mark.parametrize("kind", list(OTHER_KINDS))
def test_a_long_text_without_weights_gives_them_when_vectors_are_left_out(kind: str) -> None:
    causal = OTHER_KINDS[kind].get("causal", True)
    trace = other_trace(kind, 530 if causal else 270, n_positions=600)
    page = view(trace, layers=[1], heads=[2, 3])
    assert not arrays(page, "probs")
    (example,) = page.examples
    (codes,) = layers_of(example)
    expected = encode_probs(trace[1].probs[0, 2:].numpy())
    assert np.abs(codes.astype(int) - expected).max() <= 2


def test_the_page_knows_how_query_and_key_were_turned(trace: Trace) -> None:
    example = example_of(view(trace))
    for layer in range(3):
        turn = example["rotary"][example["turned"][layer]]
        angles = np.outer(np.arange(11), turn["frequencies"])
        pairs = len(turn["frequencies"])
        for name in ("query", "key"):
            turned = getattr(trace[layer], name)[0].double().numpy() / turn["amplitude"]
            left, right = turned[..., :pairs], turned[..., pairs : 2 * pairs]
            back = (
                left * np.cos(angles) + right * np.sin(angles),
                right * np.cos(angles) - left * np.sin(angles),
            )
            expected = getattr(trace[layer], f"{name}_unrotated")[0, ..., : 2 * pairs].numpy()
            np.testing.assert_allclose(np.concatenate(back, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_a_page_of_a_plain_model_says_nothing_of_it(causal: bool) -> None:
    example: dict[str, Any] = example_of(view(small_trace(causal=causal)))
    assert not {"rotary", "turned", "soft_cap", "windows"}.intersection(example)
    assert set(example["sizes"]) == {"d_head", "n_heads", "n_layers"}
