"""What `view` refuses before it starts, and how it says so."""

from typing import Any

import pytest
from attention_pages import fake_trace, softmax
from small_traces import small_trace

from minibert.errors import AttentionError
from minibert.viz import view


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"view": "heads"}, "view='heads': there are head, model"),
            ({"view": "neuron", "vectors": False}, "needs query and key"),
            ({"view": "layers"}, "vocabulary head"),
            ({"lens": True}, "lens=True: "),
            ({"exact": (0, 7)}, "exact names layer 0, head 7"),
            ({"exact": (0, 1), "heads": [0]}, "exact names layer 0, head 1"),
            ({"exact": 3}, "exact=3, expected"),
            ({"exact": [(0, 1, 2)]}, r"exact=\[\(0, 1, 2\)\], expected"),
            ({"exact": (0, 1), "overview_only": True}, "overview_only=True leaves out"),
        ],
    )
    def test_arguments_that_do_not_fit_are_named(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(AttentionError, match=message):
            view(small_trace(), **arguments)

    @pytest.mark.parametrize(
        ("traces", "message"),
        [
            ([], "traces is empty"),
            ({}, "traces is empty"),
            (softmax((1, 2, 3, 3)), "ndarray, expected what model.trace"),
            ([small_trace, None], "traces holds function"),
            (None, "traces holds NoneType"),
        ],
    )
    def test_what_is_no_trace_is_refused(self, traces: Any, message: str) -> None:
        with pytest.raises(AttentionError, match=message):
            view(traces)

    def test_a_vector_that_is_no_number_is_found(self) -> None:
        trace = fake_trace()
        trace.vectors[1, 2, 0, 3, 4, 0] = float("nan")
        with pytest.raises(AttentionError, match=r"trace\[2\].key\[0\].*head 3, position 4"):
            view(trace)
