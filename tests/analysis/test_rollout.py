"""Rollout against products of whole matrices, and its row against its matrix."""

from typing import Any

import numpy as np
import pytest
import torch
from small_traces import KINDS, LAYERS, small_trace

from minibert.analysis import flow as module
from minibert.analysis.flow import rollout, rollout_of
from minibert.errors import TraceError
from minibert.trace.read import Trace

REDUCE = {"mean": np.mean, "max": np.max, "min": np.min}


def whole_product(trace: Trace, reduce: str, residual: float, last: int | None) -> Any:
    """Abnar and Zuidema's recursion with every matrix of every layer, in float64."""
    probs = trace.stack("probs").double().numpy()[: None if last is None else last + 1]
    matrices = (1 - residual) * REDUCE[reduce](probs, axis=2) + residual * np.eye(probs.shape[-1])
    matrices /= matrices.sum(-1, keepdims=True)
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce", sorted(REDUCE))
@pytest.mark.parametrize(
    ("residual", "layer", "position"), [(0.25, None, 7), (0.5, 1, -1), (0.75, 0, 0), (1, 2, -11)]
)
def test_rollout_is_the_product_of_the_layers(
    residual: float, layer: int | None, position: int, reduce: str, kind: str
) -> None:
    trace = small_trace(**KINDS[kind])
    options: Any = {"reduce": reduce, "residual": residual, "layer": layer}
    expected = whole_product(trace, reduce, residual, layer)
    found = rollout(trace, **options)
    np.testing.assert_allclose(found.values, expected, atol=1e-6)
    np.testing.assert_allclose(found.values.sum(-1), 1, atol=1e-6)
    row = rollout_of(trace, position, **options)
    assert row.values.shape == ((LAYERS if layer is None else layer + 1), 1, 11)
    np.testing.assert_allclose(row.values[0], expected[:, position], atol=1e-6)
    np.testing.assert_allclose(row.values.sum(-1), 1, atol=1e-6)
    assert row.positions == (position % 11,)
    assert row.tokens == found.tokens == trace.tokens.strings


def test_the_rows_on_the_way_are_the_rollout_through_the_upper_layers() -> None:
    trace = small_trace()
    probs = trace.stack("probs").double().numpy().mean(2)
    matrices = 0.5 * probs + 0.5 * np.eye(11)
    row = rollout_of(trace, 7).values
    np.testing.assert_allclose(row[2], matrices[2][:, 7], atol=1e-6)
    np.testing.assert_allclose(row[1], (matrices[2] @ matrices[1])[:, 7], atol=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace()
    whole, row = rollout(trace).values, rollout_of(trace, 3).values
    monkeypatch.setattr(module, "_NUMBERS", 3 * 2 * 11)
    torch.testing.assert_close(rollout(trace).values, whole)
    torch.testing.assert_close(rollout_of(trace, 3).values, row)


def test_one_position_reads_few_rows_at_a_time_and_one_of_the_last_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = small_trace()
    monkeypatch.setattr(module, "_NUMBERS", 4 * 2 * 11)
    read, asked = trace.read, []

    def watched(name: str, layer: int, heads: slice, queries: slice = slice(None)) -> Any:
        value = read(name, layer, heads, queries)
        asked.append((layer, value.shape[2]))
        return value

    monkeypatch.setattr(trace, "read", watched)
    rollout_of(trace, 3, reduce="max")
    assert asked == [(2, 1), *[(layer, rows) for layer in (1, 0) for rows in (4, 4, 3)]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_heads_of_one_position_never_makes_a_matrix(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = small_trace(**KINDS[kind])
    expected = whole_product(trace, "mean", 0.25, None)[:, 8]
    read = trace.read

    def watched(name: str, *where: Any) -> Any:
        assert name in ("query", "key")
        return read(name, *where)

    monkeypatch.setattr(trace, "read", watched)
    row = rollout_of(trace, 8, residual=0.25)
    np.testing.assert_allclose(row.values[0], expected, atol=1e-6)


@pytest.mark.parametrize("reduce", REDUCE)
def test_edited_probs_are_what_is_rolled_out(reduce: str) -> None:
    plain = small_trace()
    edited = plain.rerun({("probs", 1): lambda probs: probs.roll(1, -1)})
    expected = whole_product(edited, reduce, 0.5, None)[:, 4]
    found = rollout_of(edited, 4, reduce=reduce).values
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    assert not found[1].allclose(rollout_of(plain, 4, reduce=reduce).values[1])


def test_a_trace_of_the_lower_layers_is_rolled_out_as_far_as_it_goes() -> None:
    whole = small_trace()
    lower = whole.model.trace(whole.tokens, until=1)
    torch.testing.assert_close(rollout(lower).values, rollout(whole, layer=1).values)
    with pytest.raises(TraceError, match="Layer 2 was not computed"):
        rollout(lower, layer=2)


def test_no_graph_is_left_behind() -> None:
    trace = small_trace()
    trace.model.requires_grad_()
    fresh = trace.model.trace(trace.tokens)
    assert not rollout(fresh).values.requires_grad
    assert not rollout_of(fresh, 0).values.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce": "median"}, "reduce='median': expected one of 'mean', 'max', 'min'"),
        ({"residual": -0.5}, "residual=-0.5: expected a weight from 0 to 1"),
        ({"residual": float("nan")}, "residual=nan: expected a weight from 0 to 1"),
        ({"residual": 0, "reduce": "min"}, "give the residual some weight"),
        ({"layer": 3}, "There is no layer 3; expected 0 to 2"),
    ],
)
def test_choices_that_do_not_exist_are_refused(options: Any, message: str) -> None:
    trace = small_trace()
    for call in (rollout, lambda *given, **named: rollout_of(*given, 0, **named)):
        with pytest.raises(TraceError, match=message):
            call(trace, **options)
