"""What a page holds of a trace beside weights: vectors, thumbnails, the lens, several examples.

Weights are worked out from query and key as a page holds them, for every kind of model, and
compared with those of the trace: in half precision, and in a byte a number.
"""

import tracemalloc
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import arrays, example_of, held, unpacked, weights
from data import data_path
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import OTHER_KINDS, other_trace, small_trace

import minibert
from minibert.analysis import logit_lens
from minibert.layers.config import Config
from minibert.model import Model
from minibert.trace.edit import zero
from minibert.viz import Page, view
from minibert.viz.vectors import Coded, coded

KINDS = ("bert", "gpt2", *OTHER_KINDS)


def far(key: torch.Tensor) -> torch.Tensor:
    """A number that cancels in the softmax, and makes halves and bytes coarse."""
    key[:, 0] += 100
    return key


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_a_page_holds_gives_the_weights_and_vectors_of_its_trace(seed):
    random = Random(seed)
    kind, n_tokens = random.choice(KINDS), random.choice((1, 2, 11, 33))
    small = kind in ("bert", "gpt2")
    trace = small_trace(n_tokens, causal=kind == "gpt2") if small else other_trace(kind, n_tokens)
    edit = random.choice(({}, {("probs", 1): zero}, {("key", 0): far}))
    large = random.random() < 0.5
    trace = trace.rerun(edit) if edit else trace
    layers, heads = (
        sorted(random.sample(range(n), random.randint(1, n)))
        for n in (trace.config.n_layers, trace.config.n_heads)
    )
    edited = ("probs", 1) in edit and 1 in layers
    exact = [(layer, head) for layer in layers for head in heads if random.random() < 0.2]
    with pytest.MonkeyPatch.context() as patch:
        if large:
            in_bytes(patch)
        page = saved(view(trace, layers=layers, heads=heads, **({"exact": exact} if exact else {})))
    about = example_of(page)
    assert (about["layers"], about["heads"], about["edited"]) == (layers, heads, edited)
    for layer in layers:
        for place, head in enumerate(heads):
            at = trace[layer, head]
            found = unpacked(page, "probs", layer)[place] if edited else weights(page, layer, head)
            tolerance = 4e-3 if large or edited else 1.2e-3
            np.testing.assert_allclose(found, at.probs[0], atol=tolerance)
            # A page in bytes holds the values of exact heads alone.
            values = ("value",) if not large or (layer, head) in exact else ()
            for name in ("query", "key", *values):
                numbers = getattr(at, name)[0].numpy()
                # A byte is a hundredth of the largest, a half has 11 digits of two.
                off = np.abs(numbers).max() * (0.0051 if large else 2**-11) + 6e-8
                off = 0 if (layer, head) in exact else off
                np.testing.assert_allclose(held(page, name, layer, head), numbers, atol=off, rtol=0)


class TestLength:
    def long(self, n_tokens: int, causal: bool = False) -> Any:
        return small_trace(n_tokens, causal=causal, n_positions=600)

    @pytest.mark.parametrize(
        ("n_tokens", "causal", "held"),
        [(256, False, True), (257, False, False), (257, True, True), (513, True, False)],
    )
    def test_weights_of_a_long_text_are_left_to_the_browser(self, n_tokens, causal, held):
        trace = self.long(n_tokens, causal)
        page = view(trace)
        assert bool(arrays(page, "probs")) is held
        assert example_of(page)["causal"] is causal
        np.testing.assert_allclose(weights(page, 2, 1), trace[2, 1].probs[0], atol=1.2e-3)
        assert arrays(view(trace, vectors=False), "probs")

    def test_thumbnails_hold_the_largest_weight_of_each_block(self):
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

    def test_a_page_is_small_and_takes_at_most_twice_its_size_to_make(self):
        sizes = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_mlp": 8, "vocab_size": 41}
        config = Config(**sizes, n_positions=512, family="bert", task="none", n_segments=0)
        model = Model.from_config(config, seed=7)
        for n_tokens, most in ((16, 500_000), (128, 4_000_000)):
            page = view(model.trace([i % 41 for i in range(n_tokens)]))
            assert page.size <= most
            assert len(arrays(page, "query")) == len(arrays(page, "key")) == 12
        trace = model.trace([i % 41 for i in range(512)])
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
        # value alone would take half as much again.
        assert not arrays(page, "value")
        assert "above 16.0 MB" in " ".join(example_of(page)["notes"])


class TestLens:
    def test_it_holds_what_each_layer_would_predict(self):
        model = minibert.load("tiny-bert")
        trace = model.trace(["the horse ran", "a boat"])
        lens = example_of(view(trace, sentences=[1]))["lens"]
        expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
        length = trace.tokens.lengths[1]
        assert lens["points"] == list(expected.rows)
        by_rank = np.array([expected.texts(1, rank) for rank in range(5)])
        assert lens["strings"] == np.moveaxis(by_rank, 0, -1).tolist()
        np.testing.assert_allclose(lens["probs"], expected.probs[:, 1, :length], atol=1e-4)

    def test_it_can_be_left_out_and_a_model_without_words_has_none(self):
        trace = minibert.load("tiny-bert").trace("a boat")
        assert example_of(view(trace, lens=False))["lens"] is None
        example = example_of(view(small_trace()))
        assert example["lens"] is None
        assert "no head over words" in example["notes"][0]
        assert not example_of(view(small_trace(), lens=False))["notes"]

    def test_one_that_takes_long_is_made_only_when_asked_for(self, monkeypatch):
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
def large(monkeypatch):
    in_bytes(monkeypatch)


def in_bytes(patch: pytest.MonkeyPatch) -> None:
    """Every page counts as one that would be large in half precision."""
    patch.setattr("minibert.viz.viewing._SMALL_PAGE", 0)
    patch.setattr("minibert.viz.viewing._BYTES_A_TOKEN", 0)


def test_numbers_beyond_half_precision_are_not_coded():
    assert coded(np.full((1, 2, 3), 1e30, np.float32)) is None


@pytest.mark.usefixtures("large")
class TestWeights:
    @pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "all-MiniLM-L6-v2"])
    @pytest.mark.parametrize("text", TEXTS, ids=["short", "long"])
    def test_of_trained_models_they_are_within_four_thousandths(self, name, text):
        known = name if name.startswith("tiny") else data_path("models", name)
        trace = minibert.load(known).trace(text)
        page = view(trace, layers=[0, 3])
        assert {one["coding"] for one in arrays(page, "query") if one["head"] is None} == {"steps"}
        for layer in (0, 3):
            for head in range(trace.config.n_heads):
                expected = trace[layer, head].probs[0].float().numpy()
                np.testing.assert_allclose(weights(page, layer, head), expected, atol=4e-3)

    def test_a_head_that_a_byte_would_spoil_has_some_bits_more(self):
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


@pytest.fixture(scope="module", params=list(OTHER_KINDS))
def other(request):
    return other_trace(request.param)


def saved(page: Page) -> Any:
    """The page with its text made once."""
    return SimpleNamespace(html=page.html)


def test_every_head_of_a_group_is_as_fine_as_the_finest():
    # Head 1 looks evenly at all, whatever its key is; it shares the key of head 0.
    trace = other_trace("llama").rerun({("key", 0): far, ("query", 0, 1): 0.0})
    page = saved(view(trace))
    names = ("query rest", "query", "key rest", "key")
    finer = {
        name: {one["head"] for one in arrays(page, name) if one["layer"] == 0} - {None}
        for name in names
    }
    assert finer["query rest"] | finer["query"] == {0, 1}
    assert finer["key rest"] | finer["key"] == {0}


def test_the_page_knows_how_query_and_key_were_turned(other):
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
