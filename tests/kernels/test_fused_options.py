"""Every option of the forward in Triton, drawn together, against NumPy float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fused_truth import assert_right
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import AttentionError

pytest.importorskip("triton")

STATISTICS = ("row_max", "max_prob", "entropy", "argmax", "received")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Vectors, options and wants, as NumPy arrays and plain numbers."""
    numbers = np.random.default_rng(draw(st.integers(0, 9999)))
    K = draw(st.sampled_from([1, 17, 65]))
    Q = draw(st.sampled_from([K, K, 1, 20]))
    B, key_heads, group = 2, draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 8]))
    H, D = key_heads * group, draw(st.sampled_from([8, 20]))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    shapes = (H, Q, D), (key_heads, K, D), (key_heads, K, draw(st.sampled_from([D, 12, 40])))
    vectors = tuple(numbers.standard_normal((B, *shape)).astype(dtype) for shape in shapes)
    some = lambda name, made: {name: made} if draw(st.booleans()) else {}  # noqa: E731
    side = st.sampled_from([None, 0, 1, 7, K])
    options = {"scale": draw(st.sampled_from([0.3, -0.4, 1.0])), "causal": draw(st.booleans())}
    options |= some("window", (draw(side), draw(side)))
    options |= some("lengths", numbers.integers(0, K + 1, B))
    options |= some("soft_cap", draw(st.sampled_from([1.0, 20.0])))
    slopes = numbers.random((B, H) if draw(st.booleans()) else H)
    options |= some("alibi_slopes", slopes.astype(np.float32))
    options |= some("sinks", 3 * numbers.standard_normal(H).astype(np.float32))
    if options["causal"]:
        options |= some("prefix", numbers.integers(0, K + 1, B))
    if draw(st.integers(0, 3)) == 0:
        options["mask"] = numbers.random((B, 1, Q, K)) < 0.6
        options["bias"] = numbers.standard_normal((1, H, Q, K)).astype(dtype)
    want: dict[str, Any] = {name: () for name in STATISTICS if draw(st.booleans())}
    want |= some("key_mass", (0, K - 1)) | some("offset_mass", (-1, 0, 3)) | some("map", (5,))
    return vectors, options, want


def tensors(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.tensor(one, device=DEVICE) if isinstance(one, np.ndarray) else one
        for name, one in options.items()
    }


def arrays(found: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: one.cpu().numpy() for name, one in found.items()}


@given(calls(), st.sampled_from([None, (16, 16, 4, 1), (16, 32, 4, 1), (32, 16, 4, 1)]))
@settings(max_examples=40)
def test_any_options_together_are_right(call, cut):
    from minibert.kernels.fused.attention import attend
    from minibert.kernels.fused.columns import received_and_map
    from minibert.kernels.fused.forward import forward
    from minibert.kernels.fused.launch import Config, Options

    vectors, options, want = call
    given = [torch.tensor(one, device=DEVICE) for one in vectors]
    if cut is None:
        found = attend(*given, want=want, **tensors(options))
    else:
        told = Options(**{"window": (None, None)} | tensors(options))
        found = forward(*given, told, want=want, config=Config(*cut))
        found |= received_and_map(
            *given[:2], told, lse=found["lse"], want=want, config=Config(*cut)
        )
    assert_right(arrays(found), vectors, want, **options)


@st.composite
def sentences(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Queries and keys of each sentence, and options."""
    sizes = st.lists(st.tuples(*[st.sampled_from([0, 1, 17, 40])] * 2), min_size=1, max_size=4)
    drawn = draw(sizes.filter(lambda one: sum(q for q, _ in one) * sum(k for _, k in one)))
    options: dict[str, Any] = {"scale": 0.3, "causal": draw(st.booleans())}
    side = st.sampled_from([None, 1, 7])
    options["window"] = draw(st.one_of(st.none(), st.tuples(side, side)))
    options["soft_cap"] = draw(st.sampled_from([None, 2.0]))
    return (*zip(*drawn, strict=True), options)


@given(sentences(), st.booleans())
@settings(max_examples=10)
def test_packed_sentences_are_as_each_alone(drawn, same):
    from minibert.kernels.fused.attention import attend

    queries, keys, options = drawn
    if same:
        queries = keys
    numbers = np.random.default_rng(len(queries))
    shapes = (4, sum(queries), 8), (2, sum(keys), 8), (2, sum(keys), 20)
    vectors = [numbers.standard_normal((1, *shape)).astype(np.float32) for shape in shapes]
    options |= {"sinks": numbers.random(4).astype(np.float32)}
    options |= {"alibi_slopes": numbers.random(4).astype(np.float32)}
    want = dict.fromkeys(STATISTICS, ()) | {"offset_mass": (-1, 2)}
    given = [torch.tensor(one, device=DEVICE) for one in vectors]
    lengths = {"packed": queries} | ({} if same else {"packed_keys": keys})
    found = arrays(attend(*given, want=want, **lengths, **tensors(options)))
    edges = [np.cumsum([0, *one]) for one in (queries, keys)]
    for number in range(len(queries)):
        if queries[number] * keys[number] == 0:
            continue
        rows, columns = (slice(one[number], one[number + 1]) for one in edges)
        alone = vectors[0][:, :, rows], *(one[:, :, columns] for one in vectors[1:])
        own = {n: one[:, :, columns if n == "received" else rows] for n, one in found.items()}
        assert_right(own, alone, want, **options)


@pytest.mark.parametrize("after", [0, 9])
def test_blocks_outside_the_window_are_not_read(after):
    from minibert.kernels.fused.columns import received_and_map
    from minibert.kernels.fused.forward import forward
    from minibert.kernels.fused.launch import Config, Options

    numbers = np.random.default_rng(0)
    vectors = numbers.standard_normal((3, 1, 2, 160, 8)).astype(np.float32)
    options, want = {"scale": 0.3, "window": (20, after)}, {"entropy": (), "received": ()}
    right = forward(*torch.tensor(vectors, device=DEVICE), Options(**options), want=want)
    # The block of the queries 80 to 95 sees the keys 60 to 95 + after, in blocks of 16.
    first, last = 48, 96 + 16 * math.ceil(after / 16)
    spoiled = torch.tensor(vectors).to(DEVICE)
    spoiled[1:, :, :, :first] = math.nan
    spoiled[1:, :, :, last:] = math.nan
    config = Config(16, 16, 4, 1)
    found = forward(*spoiled, Options(**options), want=want, config=config)
    for name in ("z", "lse", "entropy"):
        ours, theirs = found[name][:, :, 80:96].cpu(), right[name][:, :, 80:96].cpu()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    # The keys 80 to 95 are seen by the queries 80 − after to 115.
    given = torch.tensor(vectors).to(DEVICE)
    whole = received_and_map(
        *given[:2], Options(**options), lse=right["lse"].to(DEVICE), want=want, config=config
    )["received"]
    given[0, :, :, : 80 - 16 * math.ceil(after / 16)] = math.nan
    given[0, :, :, 128:] = math.nan
    part = received_and_map(
        *given[:2], Options(**options), lse=right["lse"].to(DEVICE), want=want, config=config
    )["received"]
    assert torch.equal(part[:, :, 80:96], whole[:, :, 80:96])


def test_nothing_is_made_on_the_host_at_the_second_call():
    from minibert.kernels.fused.attention import attend

    vectors = torch.randn(3, 1, 2, 30, 8, device=DEVICE).unbind()
    lengths = torch.tensor([20], device=DEVICE)
    calls = [
        {"lengths": lengths, "want": {"map": (3,), "received": (), "key_mass": (0,)}},
        {"packed": (10, 20), "want": {"received": (), "offset_mass": (-1,)}},
    ]
    for call in calls:
        attend(*vectors, scale=0.3, **call)
    made = torch.tensor

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a tensor was made on the host")

    torch.tensor = refused
    try:
        for call in calls:
            attend(*vectors, scale=0.3, **call)
    finally:
        torch.tensor = made


def test_the_map_of_packed_sentences_is_refused():
    from minibert.kernels.fused.attention import attend

    vectors = torch.randn(3, 1, 1, 4, 8, device=DEVICE).unbind()
    with pytest.raises(AttentionError, match="sentence by sentence"):
        attend(*vectors, packed=(1, 3), scale=1.0, want={"map": (2,)})
