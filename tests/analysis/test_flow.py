"""Attention flow against networkx's maximum flow, and against closed forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_traces import small_trace

from minibert.analysis.flow import attention_flow, maximum_flow
from minibert.errors import TraceError
from tests.circuit_models import model_pair
from tests.families import Sizes, batch
from tests.test_model import as_tokens

networkx = pytest.importorskip("networkx")


def flow_by_networkx(matrices: Any, source: int, sink: int) -> float:
    graph = networkx.DiGraph()
    graph.add_nodes_from([(0, source), (len(matrices), sink)])
    for level, matrix in enumerate(matrices):
        for (above, below), capacity in np.ndenumerate(matrix):
            if capacity > 0:
                graph.add_edge((level, above), (level + 1, below), capacity=float(capacity))
    return networkx.maximum_flow_value(graph, (0, source), (len(matrices), sink))


@given(
    depth=st.integers(1, 5),
    size=st.integers(1, 6),
    seed=st.integers(0, 2**20),
    kind=st.sampled_from(["dense", "sparse", "causal", "whole"]),
    data=st.data(),
)
def test_the_maximum_flow_is_that_of_networkx(
    depth: int, size: int, seed: int, kind: str, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    matrices = generator.random((depth, size, size))
    if kind == "sparse":
        matrices *= generator.random(matrices.shape) < 0.4
    if kind == "causal":
        matrices = np.tril(matrices)
    if kind == "whole":
        # Ties, and edges that are filled to the brim together.
        matrices = generator.integers(0, 3, matrices.shape).astype(float)
    source, sink = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    found = maximum_flow(list(matrices), source, sink)
    assert found == pytest.approx(flow_by_networkx(matrices, source, sink), abs=1e-12)


def test_flow_may_have_to_be_taken_back_from_a_path() -> None:
    # Greedy paths take 0 > 0 > 0 > 0 first; the best flow needs its middle edges otherwise.
    first, last = np.zeros((2, 2)), np.zeros((2, 2))
    first[0] = [1, 1]
    last[:, 0] = [1, 1]
    middle = np.array([[1.0, 1.0], [1.0, 0.0]])
    assert maximum_flow([first, middle, last], 0, 0) == 2


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_flow_of_a_model_is_that_of_networkx_on_its_probs(family: str) -> None:
    _, model = model_pair(family, Sizes(layers=3, heads=2, d_head=5))
    tokens = as_tokens(batch(family))[1]
    trace = model.trace(tokens)
    probs = trace.stack("probs")[:, 0].numpy().mean(1)
    matrices = (0.5 * probs + 0.5 * np.eye(probs.shape[-1]))[::-1]
    for position in (0, 4):
        found = attention_flow(trace, position)
        expected = [flow_by_networkx(matrices, position, key) for key in range(probs.shape[-1])]
        np.testing.assert_allclose(found.values[0], expected, atol=1e-6)
        np.testing.assert_allclose(found.shares[0], expected / np.sum(expected), atol=1e-6)
        assert found.positions == (position,)
        assert found.tokens == trace.tokens.strings


def test_one_layer_is_its_mixing_and_two_layers_meet_in_the_middle() -> None:
    trace = small_trace(5)
    probs = trace.stack("probs")[:, 0].double().numpy().max(1)
    matrices = 0.25 * probs * 3 + 0.25 * np.eye(5)
    matrices /= matrices.sum(-1, keepdims=True)
    options: Any = {"reduce": "max", "residual": 0.25}
    one = attention_flow(trace, 3, layer=0, **options).values[0]
    np.testing.assert_allclose(one, matrices[0][3], atol=1e-6)
    two = attention_flow(trace, -2, layer=1, **options).values[0]
    middle = np.minimum(matrices[1][3][:, None], matrices[0]).sum(0)
    np.testing.assert_allclose(two, middle, atol=1e-6)


def test_long_texts_are_refused() -> None:
    long = small_trace(67, n_positions=71)
    with pytest.raises(TraceError, match=r"67 tokens is 67 maximum flows .* expected at most 64"):
        attention_flow(long, 0)
    with pytest.raises(TraceError, match="residual=2: expected"):
        attention_flow(small_trace(5), 0, residual=2)
