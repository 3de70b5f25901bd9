"""What queries share of their largest products, against vectors that are made to share them."""

from itertools import combinations

import pytest
import torch

import minibert
from minibert.analysis import shared_dimensions
from minibert.errors import TraceError
from minibert.trace.edit import replace
from minibert.trace.read import Trace
from tests.small_traces import small_trace


def by_hand(trace: Trace, layer: int, head: int, top: int) -> float:
    at = trace[layer, head]
    largest = []
    for position, row in enumerate(at.probs[0].tolist()):
        key = row.index(max(row))
        product = (at.query[0, position] * at.key[0, key]).tolist()
        order = sorted(range(len(product)), key=lambda d: -product[d])
        largest.append(set(order[:top]))
    pairs = list(combinations(largest, 2))
    return sum(len(one & other) / top for one, other in pairs) / len(pairs)


@pytest.mark.parametrize("causal", [False, True])
def test_every_head_is_what_the_pairs_say_one_by_one(causal: bool) -> None:
    trace = small_trace(7, causal=causal)
    found = shared_dimensions(trace, top=3)
    for layer in range(trace.config.n_layers):
        for head in range(trace.config.n_heads):
            expected = by_hand(trace, layer, head, 3)
            assert float(found.values[layer, head]) == pytest.approx(expected, abs=1e-6)
    assert found.chance == 3 / trace.config.d_head


def test_queries_that_are_the_same_share_all_and_opposite_ones_nothing() -> None:
    trace = small_trace(5)
    width = trace.config.d_head
    key = torch.ones(1, 2, 5, width)
    same = torch.arange(width).float().expand(1, 2, 5, width)
    for query, expected in (
        (same, 1.0),
        (torch.where(torch.arange(5)[:, None] % 2 > 0, same, -same), 0.4),
    ):
        edited = trace.rerun({("query", 0): replace(query), ("key", 0): replace(key)})
        # Of five queries 2 and 3 are alike: 1 + 3 pairs of 10 share all, the others nothing.
        assert float(shared_dimensions(edited, top=2).values[0, 1]) == pytest.approx(expected)


def test_sentences_of_a_batch_count_alike_and_padding_does_not() -> None:
    model = minibert.load("tiny-bert")
    texts = ["the horse ran away", "the boys were very tired and the girls were not"]
    each = [shared_dimensions(model.trace(text)).values for text in texts]
    both = shared_dimensions(model.trace(texts))
    assert torch.allclose(both.values, (each[0] + each[1]) / 2, atol=1e-3)
    assert minibert.axes_of(both) == {"values": ("layer", "head")}


def test_wrong_arguments_are_named() -> None:
    trace = small_trace(4)
    for top in (0, trace.config.d_head + 1, 1.5):
        with pytest.raises(TraceError, match="top"):
            shared_dimensions(trace, top=top)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="two tokens"):
        shared_dimensions(small_trace(1))
    with pytest.raises(TraceError, match="trace"):
        shared_dimensions("no trace")
