"""query and key in a byte a number: how far numbers and weights are off, and what it saves."""

import numpy as np
import pytest
from attention_pages import arrays, example_of, unpacked
from data import data_path
from small_traces import small_trace

import minibert
from minibert.layers.config import Config
from minibert.model import Model
from minibert.viz import Page, view
from minibert.viz.vectors import Coded, coded, pack_finer, rests_of

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


def held(page: Page, name: str, layer: int, head: int) -> np.ndarray:
    """query or key of a head, in double precision, as the page's blocks and entries describe it."""
    entries = {(one["layer"], one["head"]): one for one in arrays(page, name)}
    if (layer, head) in entries:
        return unpacked(page, name, layer, head).astype(np.float64)
    numbers = unpacked(page, name, layer)[head].astype(np.float64)
    if not any(
        (one["layer"], one["head"]) == (layer, head) for one in arrays(page, f"{name} rest")
    ):
        return numbers
    steps = np.abs(numbers).max(-1, keepdims=True) / 100
    return numbers + unpacked(page, f"{name} rest", layer, head) * steps


def weights(page: Page, layer: int, head: int) -> np.ndarray:
    """The weights that a browser computes from them."""
    example = example_of(page)
    scores = held(page, "query", layer, head) @ held(page, "key", layer, head).T
    scores *= example["scale"][example["layers"].index(layer)]
    if example["causal"]:
        scores[~np.tri(len(scores), dtype=bool)] = -np.inf
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


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

    @pytest.mark.parametrize("bits", [2, 4])
    def test_what_makes_a_head_finer_is_read_back(self, bits: int) -> None:
        vectors = np.random.default_rng(1).normal(0, 1, (2, 5, 3)).astype(np.float32)
        codes = Coded(vectors)
        read = (
            codes.numbers[1]
            + rests_of(pack_finer("query", 0, 1, codes, 1, bits=bits)) * codes.steps[1][:, None]
        )
        finer = codes.quartered if bits == 2 else codes.finer
        np.testing.assert_allclose(read, finer[1], rtol=1e-5, atol=1e-6)

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

    def test_exact_heads_stay_exact(self) -> None:
        trace = small_trace()
        page = view(trace, exact=(1, 0))
        single = trace[1].query[0, 0].numpy()
        np.testing.assert_array_equal(unpacked(page, "query", 1, 0), single)

    def test_the_page_says_so(self) -> None:
        assert any("hundredths" in note for note in example_of(view(small_trace()))["notes"])


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

    def test_a_page_that_is_small_anyway_keeps_half_precision_and_value(self) -> None:
        page = view(minibert.load("tiny-bert").trace(TEXTS[1]))
        assert {one["dtype"] for one in arrays(page, "query")} == {"float16"}
        assert arrays(page, "value")
