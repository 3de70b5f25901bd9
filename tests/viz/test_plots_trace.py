"""Figures of a trace: one head, every head, statistics by layer."""

from typing import Any

import numpy as np
import pytest
import torch
from figure_texts import image, misplaced, named
from small_traces import HEADS, LAYERS, small_trace

from minibert.errors import TraceError
from minibert.text.tokens import Tokens
from minibert.viz import plots
from minibert.viz.plots.trace import STATISTICS

N = 7


@pytest.fixture(scope="module")
def trace() -> Any:
    return small_trace(N)


def test_a_head_is_drawn_with_its_probs(trace: Any) -> None:
    panel = plots.attention_map(trace, 2, -1).axes[0]
    assert np.array_equal(image(panel), trace[2, 1].probs[0].double().numpy())
    assert panel.get_title(loc="left") == "Attention of head 2-1"
    assert named(panel, "x") == list(trace.tokens.strings[0])


def test_every_head_of_the_chosen_layers_is_drawn(trace: Any) -> None:
    panel = plots.attention_grid(trace, layers=[2, 0]).axes[0]
    for number, (layer, head) in enumerate((a, b) for a in (2, 0) for b in range(HEADS)):
        wanted = trace[layer, head].probs[0].double().numpy()
        assert np.array_equal(image(panel, number), wanted)
    assert named(panel, "y") == ["2", "0"]
    assert len(plots.attention_grid(trace).axes[0].images) == LAYERS * HEADS


def test_statistics_are_means_over_the_rows_that_have_them(trace: Any) -> None:
    probs = trace.stack("probs")[:, 0].double().numpy()
    wanted = {
        "entropy": -(probs * np.log(probs)).sum(-1).mean(-1),
        "previous": probs[..., range(1, N), range(N - 1)].mean(-1),
        "next": probs[..., range(N - 1), range(1, N)].mean(-1),
        "self": probs[..., range(N), range(N)].mean(-1),
        "first": probs[..., 0].mean(-1),
    }
    for name, values in wanted.items():
        assert plots.head_statistic(trace, name).numpy() == pytest.approx(values, abs=1e-6)
    assert set(wanted) | {"special"} == set(STATISTICS)


def test_statistics_of_padded_sentences_leave_the_padding_out(trace: Any) -> None:
    ids = torch.tensor([[3, 5, 7, 11, 13], [2, 4, 6, 0, 0]])
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    together = trace.model.trace(Tokens.from_ids(ids, mask=mask))
    alone = trace.model.trace(ids[1:, :3])
    for name in ("entropy", "previous", "next", "self", "first"):
        found = plots.head_statistic(together, name, sentence=1)
        torch.testing.assert_close(found, plots.head_statistic(alone, name))


def test_a_dot_stands_for_each_head_and_a_line_for_their_mean() -> None:
    values = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan], [3.0, torch.nan]])
    figure = plots.by_layer(values, title="Entropy", unit="nats")
    panel = figure.axes[0]
    points = panel.collections[0].get_offsets()
    assert points[~np.ma.getmaskarray(points).any(1)].tolist() == [[0, 1], [0, 2], [2, 3]]
    (line,) = (line for line in panel.lines if line.get_label() == "mean")
    assert line.get_xydata().tolist() == [[0, 1.5], [2, 3]]
    assert not misplaced(figure)


def test_what_is_not_there_is_an_error(trace: Any) -> None:
    for wrong in (
        lambda: plots.attention_map(trace, 3, 0),
        lambda: plots.attention_map(trace, 0, 0, sentence=1),
        lambda: plots.attention_grid(trace, layers=[]),
        lambda: plots.attention_grid(trace, layers=[5]),
        lambda: plots.attention_grid(trace, sentence=1),
        lambda: plots.head_statistic(trace, "kurtosis"),
        lambda: plots.head_statistic(trace, "special"),
        lambda: plots.head_statistic(small_trace(1), "previous"),
        lambda: plots.by_layer(torch.full((2, 2), torch.nan)),
    ):
        with pytest.raises(TraceError):
            wrong()
