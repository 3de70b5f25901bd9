"""What a page holds of a trace beside weights: vectors, thumbnails, the lens, several examples.

Weights are worked out from query and key as a page holds them, for every kind of model, and
compared with those of the trace: in half precision, and in a byte a number.
"""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import (
    HEADS,
    LAYERS,
    WIDTH,
    FakeTrace,
    arrays,
    example_of,
    fake_trace,
    held,
    unpacked,
    weights,
)
from data import data_path
from small_traces import OTHER_KINDS, other_trace, small_trace

import minibert
from minibert.analysis import logit_lens
from minibert.layers.config import Config
from minibert.model import Model
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from minibert.viz import Page, view
from minibert.viz.less import has_weights, layers_of, lessened
from minibert.viz.payload import encode_probs
from minibert.viz.vectors import Coded, coded


@pytest.fixture
def trace() -> FakeTrace:
    return fake_trace()


def rounded_weights(trace: FakeTrace, layer: int, head: int) -> np.ndarray:
    """The weights that query and key give in half precision."""
    query, key = trace.vectors[:2, layer, 0, head].half().double()
    return (query @ key.T * WIDTH**-0.5).softmax(-1).numpy()


def blocks(page: Page, quantity: str, index: int = 0) -> set[tuple[int, int | None, str]]:
    return {(one["layer"], one["head"], one["dtype"]) for one in arrays(page, quantity, index)}


class TestVectors:
    def test_query_key_and_value_are_there_in_half_precision(self, trace: FakeTrace) -> None:
        page = view(trace)
        for number, name in enumerate(("query", "key", "value")):
            assert blocks(page, name) == {(layer, None, "float16") for layer in range(LAYERS)}
            for layer in range(LAYERS):
                half = trace.vectors[number, layer, 0].half().numpy()
                np.testing.assert_array_equal(unpacked(page, name, layer), half)

    def test_exact_heads_are_held_to_the_last_bit(self, trace: FakeTrace) -> None:
        page = view(trace, exact=[(0, 3), (2, 1)])
        for number, name in enumerate(("query", "key", "value")):
            for layer, head in ((0, 3), (2, 1)):
                single = trace.vectors[number, layer, 0, head].numpy()
                np.testing.assert_array_equal(unpacked(page, name, layer, head), single)
        assert view(trace, exact=(2, 1)).html == view(trace, exact=[(2, 1)]).html

    def test_a_head_that_rounding_would_spoil_is_held_in_single_precision(
        self, trace: FakeTrace
    ) -> None:
        # The scores stay as they are, but the vectors are far from zero, where halves are coarse.
        trace.vectors[1, 0, :, 2] += 3000
        trace.vectors[0, 0, :, 2] *= 1.7
        # Exactly: in single precision, scores of thousands differ from one processor to another.
        query, key = trace.vectors[:2].double()
        trace.probs = (query @ key.transpose(-1, -2) * WIDTH**-0.5).softmax(-1).float()
        page = view(trace)
        assert (0, 2, "float32") in blocks(page, "query")
        assert not example_of(page)["edited"]
        for head in range(HEADS):
            expected = trace.probs[0, 0, head]
            np.testing.assert_allclose(weights(page, 0, head), expected, atol=1.2e-3)

    def test_a_head_of_large_numbers_has_a_byte_more_for_each(self, trace: FakeTrace) -> None:
        trace.vectors[1, 0, :, 2] += 100
        scores = trace.vectors[0] @ trace.vectors[1].transpose(-1, -2) * WIDTH**-0.5
        trace.probs = scores.softmax(-1)
        plain = rounded_weights(trace, 0, 2)
        assert np.abs(plain - trace.probs[0, 0, 2].numpy()).max() > 1.2e-3
        page = view(trace)
        assert blocks(page, "query") == {(layer, None, "float16") for layer in range(LAYERS)}
        assert blocks(page, "query rest") == blocks(page, "key rest") == {(0, 2, "int8")}
        for head in range(HEADS):
            expected = trace.probs[0, 0, head]
            np.testing.assert_allclose(weights(page, 0, head), expected, atol=1.2e-3)


class TestLength:
    def long(self, n_tokens: int, causal: bool = False) -> Any:
        return small_trace(n_tokens, causal=causal, n_positions=600)

    @pytest.mark.parametrize(
        ("n_tokens", "causal", "held"),
        [(256, False, True), (257, False, False), (257, True, True), (513, True, False)],
    )
    def test_weights_of_a_long_text_are_left_to_the_browser(
        self, n_tokens: int, causal: bool, held: bool
    ) -> None:
        trace = self.long(n_tokens, causal)
        page = view(trace)
        assert bool(arrays(page, "probs")) is held
        assert example_of(page)["causal"] is causal
        np.testing.assert_allclose(weights(page, 2, 1), trace[2, 1].probs[0], atol=1.2e-3)
        assert arrays(view(trace, vectors=False), "probs")

    def test_thumbnails_hold_the_largest_weight_of_each_block(self) -> None:
        trace = self.long(151)
        thumbnails = unpacked(view(trace), "thumbnails", None)
        assert thumbnails.shape == (3, 2, 64, 64)
        edges = np.arange(65) * 151 // 64
        probs = trace.stack("probs")[:, 0].numpy()
        for row, column in ((0, 0), (17, 40), (63, 63)):
            block = probs[:, :, edges[row] : edges[row + 1], edges[column] : edges[column + 1]].max(
                (-1, -2)
            )
            np.testing.assert_allclose(thumbnails[:, :, row, column], block, atol=4e-3)

    def test_a_page_takes_at_most_twice_its_size_to_make(self) -> None:
        sizes = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_mlp": 8, "vocab_size": 41}
        config = Config(**sizes, n_positions=512, family="bert", task="none", n_segments=0)
        trace = Model.from_config(config, seed=7).trace([i % 41 for i in range(512)])
        tracemalloc.start()
        try:
            page = view(trace)
            with open("/dev/null", "w") as file:
                file.writelines(page.pieces())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert page.size <= 13_000_000
        assert peak <= 2 * page.size
        assert view(trace, overview_only=True).size <= 1_000_000
        # value alone would take half as much again.
        assert not arrays(page, "value")
        assert "above 16.0 MB" in " ".join(example_of(page)["notes"])


class TestEdited:
    @pytest.mark.parametrize("n_tokens", [11, 300])
    def test_weights_that_are_not_of_these_vectors_are_held_at_any_length(
        self, n_tokens: int
    ) -> None:
        trace = small_trace(n_tokens, n_positions=300).rerun({("probs", 1, 0): zero})
        page = view(trace)
        assert example_of(page)["edited"] is True
        assert len(arrays(page, "probs")) == 3
        assert not unpacked(page, "probs", 1)[0].any()
        np.testing.assert_allclose(unpacked(page, "probs", 2), trace[2].probs[0], atol=4e-3)


class TestLens:
    def test_it_holds_what_each_layer_would_predict(self) -> None:
        model = minibert.load("tiny-bert")
        trace = model.trace(["the horse ran", "a boat"])
        lens = example_of(view(trace, sentences=[1]))["lens"]
        expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
        length = trace.tokens.lengths[1]
        assert lens["points"] == list(expected.rows)
        by_rank = np.array([expected.texts(1, rank) for rank in range(5)])
        assert lens["strings"] == np.moveaxis(by_rank, 0, -1).tolist()
        np.testing.assert_allclose(lens["probs"], expected.probs[:, 1, :length], atol=1e-4)

    def test_it_can_be_left_out_and_a_model_without_words_has_none(self) -> None:
        trace = minibert.load("tiny-bert").trace("a boat")
        assert example_of(view(trace, lens=False))["lens"] is None
        example = example_of(view(small_trace()))
        assert example["lens"] is None
        assert "no output head over words" in example["notes"][0]
        assert not example_of(view(small_trace(), lens=False))["notes"]

    def test_one_that_takes_long_is_made_only_when_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minibert.viz.viewing._CHEAP", 10)
        trace = minibert.load("tiny-bert").trace("a boat")
        example = example_of(view(trace))
        assert example["lens"] is None
        assert "lens=True" in example["notes"][0]
        assert example_of(view(trace, lens=True))["lens"]


TEXTS = (
    "the cat sat on the mat",
    "She had peeped into the book her sister was reading, but it had no pictures or conversations"
    " in it, and what is the use of a book, thought Alice, without pictures or conversations?",
)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page counts as one that would be large in half precision."""
    monkeypatch.setattr("minibert.viz.viewing._SMALL_PAGE", 0)
    monkeypatch.setattr("minibert.viz.viewing._BYTES_A_TOKEN", 0)


class TestNumbers:
    @pytest.mark.parametrize("size", [1e-6, 1.0, 300.0])
    def test_each_is_within_half_a_hundredth_of_its_vectors_largest(self, size: float) -> None:
        vectors = size * np.random.default_rng(0).normal(0, 1, (3, 7, 11)).astype(np.float32)
        vectors[1, 2] = 0
        codes = Coded(vectors)
        largest = np.abs(vectors).max(-1, keepdims=True)
        # Steps are rounded up to half precision: at most a thousandth, or its smallest number.
        step = largest / 100 * 1.001 + 6e-8
        assert (np.abs(codes.numbers - vectors) <= step / 2).all()
        assert (np.abs(codes.finer - vectors) <= step / 16).all()
        assert (np.abs(codes.quartered - vectors) <= step / 8 * (1 + 1e-5)).all()
        assert np.abs(codes.codes).max() <= 100
        assert (
            size < 1
            or np.abs(codes.codes).max(-1).min(initial=100, where=largest[..., 0] > 0) == 100
        )

    def test_numbers_beyond_half_precision_are_not_coded(self) -> None:
        assert coded(np.full((1, 2, 3), 1e30, np.float32)) is None


@pytest.mark.usefixtures("large")
class TestWeights:
    @pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "all-MiniLM-L6-v2"])
    @pytest.mark.parametrize("text", TEXTS, ids=["short", "long"])
    def test_of_trained_models_they_are_within_four_thousandths(self, name: str, text: str) -> None:
        known = name if name.startswith("tiny") else data_path("models", name)
        trace = minibert.load(known).trace(text)
        page = view(trace, layers=[0, 3])
        assert {one["coding"] for one in arrays(page, "query") if one["head"] is None} == {"steps"}
        for layer in (0, 3):
            for head in range(trace.config.n_heads):
                expected = trace[layer, head].probs[0].float().numpy()
                np.testing.assert_allclose(weights(page, layer, head), expected, atol=4e-3)

    def test_a_head_that_a_byte_would_spoil_has_some_bits_more(self) -> None:
        trace = minibert.load("tiny-bert").trace(TEXTS[1])
        finer = {(one["layer"], one["head"]) for one in arrays(view(trace), "query rest")}
        assert 0 < len(finer) < 16
        for layer, head in finer:
            parts = (trace[layer].query[0, head], trace[layer].key[0, head])
            query, key = (Coded(part.numpy()).numbers.astype(np.float64) for part in parts)
            scores = query @ key.T * trace.config.attention_scale(layer)
            exps = np.exp(scores - scores.max(-1, keepdims=True))
            spoiled = exps / exps.sum(-1, keepdims=True)
            assert np.abs(spoiled - trace[layer, head].probs[0].numpy()).max() > 4e-3


class TestSize:
    @pytest.mark.parametrize(("n_tokens", "most"), [(16, 500_000), (128, 4_000_000)])
    def test_a_default_page_of_twelve_by_twelve_heads_is_small(
        self, n_tokens: int, most: int
    ) -> None:
        sizes = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_mlp": 8, "vocab_size": 41}
        config = Config(**sizes, n_positions=128, family="bert", task="none", n_segments=0)
        page = view(Model.from_config(config, seed=7).trace([i % 41 for i in range(n_tokens)]))
        assert page.size <= most
        assert len(arrays(page, "query")) == len(arrays(page, "key")) == 12


@pytest.fixture(scope="module", params=list(OTHER_KINDS))
def other(request: pytest.FixtureRequest) -> Trace:
    return other_trace(request.param)


def saved(page: Page) -> Any:
    """The page with its text made once."""
    return SimpleNamespace(html=page.html)


def check_weights(page: Any, trace: Trace, tolerance: float) -> None:
    example = example_of(page)
    assert not example["edited"]
    for layer in example["layers"]:
        for head in example["heads"]:
            expected = trace[layer, head].probs[0].numpy()
            np.testing.assert_allclose(weights(page, layer, head), expected, atol=tolerance)


def test_query_and_key_give_the_weights(other: Trace) -> None:
    check_weights(saved(view(other)), other, 1.2e-3)


def test_those_in_a_byte_a_number_do(other: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibert.viz.viewing._SMALL_PAGE", 0)
    monkeypatch.setattr("minibert.viz.viewing._BYTES_A_TOKEN", 0)
    page = saved(view(other))
    assert {one["coding"] for one in arrays(page, "query") if one["head"] is None} == {"steps"}
    check_weights(page, other, 4e-3)


def test_a_shared_key_and_value_are_there_once(other: Trace) -> None:
    config, page = other.config, saved(view(other, exact=(1, 1)))
    for name in ("key", "value"):
        shapes = {one["layer"]: one["shape"] for one in arrays(page, name) if one["head"] is None}
        assert shapes == {layer: [config.n_kv_heads, 11, 6] for layer in range(3)}
        own = 1 * config.n_kv_heads // config.n_heads
        single = getattr(other[1], name)[0, own].numpy()
        np.testing.assert_array_equal(unpacked(page, name, 1, own), single)
        for head in range(4):
            expected = getattr(other[2, head], name)[0].numpy()
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


def test_less_of_a_page_keeps_its_weights(other: Trace) -> None:
    expected = [encode_probs(other[layer].probs[0].numpy()) for layer in range(3)]
    kept = 0
    for (example,) in lessened(view(other, exact=[(0, 1), (2, 3)]).examples):
        if not has_weights(example) or example.about["notes"][-1].startswith("Only"):
            continue
        kept += 1
        for codes, wanted in zip(layers_of(example), expected, strict=True):
            assert np.abs(codes.astype(int) - wanted).max() <= 1
    assert kept >= 3


def test_the_page_knows_how_query_and_key_were_turned(other: Trace) -> None:
    example = example_of(view(other))
    for layer in range(3):
        turn = example["rotary"][example["turned"][layer]]
        angles = np.outer(np.arange(11), turn["frequencies"])
        pairs = len(turn["frequencies"])
        for name in ("query", "key"):
            turned = getattr(other[layer], name)[0].double().numpy() / turn["amplitude"]
            left, right = turned[..., :pairs], turned[..., pairs : 2 * pairs]
            back = (
                left * np.cos(angles) + right * np.sin(angles),
                right * np.cos(angles) - left * np.sin(angles),
            )
            expected = getattr(other[layer], f"{name}_unrotated")[0, ..., : 2 * pairs].numpy()
            np.testing.assert_allclose(np.concatenate(back, -1), expected, rtol=1e-4, atol=1e-4)
