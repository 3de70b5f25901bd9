"""Relevance on a page: what each form comes to in the header, and which are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import FakeTrace, example_of, fake_trace, header_of
from small_traces import small_trace

import minibert
from minibert.analysis import gradient_x_attention, integrated_embeddings, relevance_of
from minibert.analysis.flow import relevance
from minibert.errors import AttentionError
from minibert.trace.read import Trace
from minibert.viz import Page, view


@pytest.fixture(scope="module")
def model() -> minibert.Model:
    return minibert.load()


@pytest.fixture(scope="module")
def trace(model: minibert.Model) -> Trace:
    """Two sentences of 8 and 5 tokens, and the gradient of a number of both."""
    trace = model.trace(["the horse quickly ran away .", "the boat turned"], grad=True)
    trace.backward(trace.logits[:, 1].amax(-1).sum())
    return trace


@pytest.fixture
def fake() -> FakeTrace:
    """Two sentences of 7 and 5 tokens."""
    return fake_trace()


def shown(page: Page, index: int = 0) -> dict[str, Any]:
    return dict(example_of(page, index)["relevance"])


class TestWhatThePageHolds:
    def test_relevance_of_all_positions_has_a_row_each(self, trace: Trace) -> None:
        found = relevance(trace)
        header = shown(view(trace, relevance=found), 1)
        assert (header["of"], header["values"]) == (0, None)
        np.testing.assert_allclose(header["rows"], found.values[1, :5, :5], rtol=1e-4)

    def test_integrated_gradients_are_summed_over_each_embedding(
        self, model: minibert.Model
    ) -> None:
        trace = model.trace("the boat turned")
        found = integrated_embeddings(trace, lambda one: one.logits[:, 1, 7].sum(), steps=4)
        header = shown(view(trace, relevance=found))
        assert header["name"] == "integrated gradients"
        np.testing.assert_allclose(header["values"], found.values[0].sum(-1), rtol=1e-4)

    @pytest.mark.parametrize("form", [list, np.array, torch.tensor])
    def test_an_array_of_any_kind_is_taken_as_it_is(self, fake: FakeTrace, form: Any) -> None:
        page = view(fake, sentences=[1], relevance=form([0.0, 1.5, -2.25, 3.0, 0.125]))
        assert shown(page)["values"] == [0, 1.5, -2.25, 3, 0.125]

    def test_the_page_opens_with_it_in_its_text_view(self, fake: FakeTrace) -> None:
        page = view(fake, sentences=[1], relevance=[0, 1, 2, 3, 4], view="text")
        assert header_of(page)["start"] == "shade=relevance"
        assert header_of(view(fake))["start"] == ""

    def test_several_traces_have_one_each_or_none(self, fake: FakeTrace) -> None:
        other = small_trace(6)
        listed = view([fake, other], sentences=[0], relevance=[None, np.arange(6)])
        assert example_of(listed)["relevance"] is None
        assert shown(listed, 1)["values"] == [0, 1, 2, 3, 4, 5]
        named = view({"a": other, "b": other}, relevance={"b": np.arange(6)})
        assert example_of(named)["relevance"] is None
        assert shown(named, 1)["values"] == [0, 1, 2, 3, 4, 5]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (np.zeros(4), r"shape \(4,\), the text has 5 tokens: expected \(5,\), or \(5, 5\)"),
            (np.zeros((5, 4)), r"shape \(5, 4\)"),
            (np.zeros((1, 5, 5)), r"shape \(1, 5, 5\)"),
            (np.array([0, 1, np.nan, 0, 0]), r"relevance is nan at \(2,\)"),
            ("text", "relevance is str, expected what relevance"),
            ([[1, 2], [3]], "relevance is list, expected what relevance"),
            (object(), "relevance is object, expected what relevance"),
        ],
    )
    def test_what_does_not_fit_the_text(self, fake: FakeTrace, given: Any, message: str) -> None:
        with pytest.raises(AttentionError, match=message):
            view(fake, sentences=[1], relevance=given)

    def test_an_array_for_a_page_of_several_sentences(self, fake: FakeTrace) -> None:
        with pytest.raises(AttentionError, match=r"choose one with sentences=\[i\]"):
            view(fake, relevance=np.zeros(7))

    def test_a_number_for_each_weight(self, trace: Trace) -> None:
        with pytest.raises(AttentionError, match="relevance_of"):
            view(trace, relevance=gradient_x_attention(trace))

    def test_the_result_of_another_text(self, model: minibert.Model, trace: Trace) -> None:
        other = model.trace(["the boat turned", "the horse quickly ran away ."])
        with pytest.raises(AttentionError, match="of another text"):
            view(other, relevance=relevance_of(trace, 0))

    def test_another_form_than_that_of_the_traces(self, fake: FakeTrace) -> None:
        with pytest.raises(AttentionError, match="a list of 2, None"):
            view([fake, fake], relevance=[np.zeros(7)])
        with pytest.raises(AttentionError, match=r"as for traces a name each: \{'a'"):
            view({"a": fake}, relevance=np.zeros(7))
        with pytest.raises(AttentionError, match=r"names 'c', traces has \['a'\]"):
            view({"a": fake}, relevance={"c": np.zeros(7)})

    def test_a_table_of_a_long_text(self) -> None:
        long = small_trace(521, n_positions=521)
        with pytest.raises(AttentionError, match="the row of one query"):
            view(long, relevance=np.zeros((521, 521)), overview_only=True)
