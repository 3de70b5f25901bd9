"""Every quantity of a trace is what its formula says, in every layer, head and window."""

from typing import Any

import pytest
import torch
from data import data_path

import minibert
from minibert.layers.layer import layer_quantities
from minibert.quantities import QUANTITIES
from minibert.trace.read import Trace
from tests.explicit_forward import MODELS, Explicit, exact
from tests.families import Sizes, as_tokens, batch
from tests.trace.editing import close

TEXTS = ["The strawberries were fresh, weren't they?", "No.", "leaves fall in autumn"]
BOTH = ("scores", "probs")


def minilm() -> Trace:
    model = minibert.load(data_path("models", "all-MiniLM-L6-v2"))
    return model.trace(model.tokenize(TEXTS, ["A second text."] * 3))


def sorter() -> Trace:
    model = minibert.load(data_path("models", "minigpt-nano-sort"))
    return model.trace(torch.randint(0, 3, (5, 11)))


def padded(family: str, **sizes: Any) -> Trace:
    return exact(family, MODELS[family], Sizes(**sizes)).trace(as_tokens(batch(family)))


TRACES: dict[str, Any] = {
    "MiniLM": minilm,
    "sorter": sorter,
    "gpt2, scaled by layer": lambda: padded("gpt2", scale_by_layer=True, heads=5),
    "albert": lambda: padded("albert", layers=5, layer_groups=2),
    "electra": lambda: padded("electra", activation="relu"),
}


@pytest.fixture(scope="module", params=TRACES)
def trace(request: pytest.FixtureRequest) -> Trace:
    torch.manual_seed(0)
    made: Trace = TRACES[request.param]()
    return made


@pytest.fixture(scope="module")
def gpt2() -> Trace:
    return padded("gpt2")


def test_every_quantity_is_that_of_the_pass_spelled_out(trace: Trace) -> None:
    explicit = Explicit(trace)
    assert close(trace.logits, explicit.logits.detach())
    for layer, at in enumerate(trace):
        for name in layer_quantities(trace.config):
            assert close(getattr(at, name), explicit[layer, name].detach()), (layer, name)
        assert (at.probs.masked_select(~trace.mask) == 0).all()


def test_a_head_is_its_slice_of_the_layer_and_a_layer_one_of_the_stack(trace: Trace) -> None:
    n_layers, n_heads = trace.config.n_layers, trace.config.n_heads
    for name in layer_quantities(trace.config):
        stacked = trace.stack(name)
        assert len(stacked) == len(trace) == n_layers
        for layer in (0, n_layers - 1):
            whole = getattr(trace[layer], name)
            assert torch.equal(stacked[layer], whole)
            axes = dict(zip(QUANTITIES[name].axes, whole.shape, strict=True))
            assert axes["batch"] == len(trace.tokens)
            assert axes.get("head", n_heads) == n_heads
            for head in (0, n_heads - 1):
                part = whole[:, head] if QUANTITIES[name].per_head else whole
                assert close(getattr(trace[layer, head], name), part)


WINDOWS = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(3, 7)),
    (slice(-3, None), slice(None, -2)),
    (slice(1, 9, 3), slice(None, None, 2)),
    (slice(4, 4), slice(None)),
]


def test_a_window_is_a_part_of_the_whole(gpt2: Trace) -> None:
    for trace in (gpt2, gpt2.rerun({}, keep=BOTH)):
        for name in BOTH:
            for queries, keys in WINDOWS:
                expected = getattr(trace[1], name)[:, :, queries, keys]
                got = trace[1].window(name, queries=queries, keys=keys)
                assert got.shape == expected.shape
                assert torch.allclose(got, expected)
                head = trace[1, 1].window(name, queries=queries, keys=keys)
                assert torch.allclose(head, expected[:, 1])
