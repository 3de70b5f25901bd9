"""head_view, model_view and show: what code written for BertViz passes, and what comes of it."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import arrays, example_of, header_of, names, softmax, unpacked
from data import data_path
from small_traces import small_trace

import minibert
from minibert.errors import AttentionError
from minibert.viz import Page, head_view, model_view
from minibert.viz.neuron_view import show

LAYERS, HEADS = 3, 2
N_ENCODER, N_DECODER = 7, 5


def layers(n_queries: int, n_keys: int, *, causal: bool = False) -> list[torch.Tensor]:
    """One tensor (1, head, query, key) a layer, as transformers returns them."""
    probs = softmax((LAYERS, 1, HEADS, n_queries, n_keys), causal=causal, seed=n_queries)
    return list(torch.from_numpy(probs))


def start_of(page: Page) -> str:
    return header_of(page)["start"]


SELF = {"attention": layers(7, 7), "tokens": names(7)}
SIDES: dict[str, Any] = {
    "encoder_attention": layers(N_ENCODER, N_ENCODER),
    "decoder_attention": layers(N_DECODER, N_DECODER, causal=True),
    "cross_attention": layers(N_DECODER, N_ENCODER),
    "encoder_tokens": [f"e{i}" for i in range(N_ENCODER)],
    "decoder_tokens": [f"d{i}" for i in range(N_DECODER)],
}


class TestSignatures:
    def test_they_are_those_of_bertviz(self) -> None:
        sides = "encoder_attention decoder_attention cross_attention encoder_tokens decoder_tokens"
        text = "attention tokens sentence_b_start prettify_tokens"
        expected = {
            head_view: f"{text} layer heads {sides} include_layers html_action",
            model_view: f"{text} display_mode {sides} include_layers include_heads html_action",
            show: "model model_type tokenizer sentence_a sentence_b display_mode layer head "
            "html_action",
        }
        for function, parameters in expected.items():
            assert list(inspect.signature(function).parameters) == parameters.split()


class TestHeadView:
    def test_it_holds_the_attention_and_opens_the_head_view(self) -> None:
        page = head_view(SELF["attention"], SELF["tokens"], 3)
        assert header_of(page)["view"] == "head"
        assert example_of(page)["tokens"]["segment"] == [0, 0, 0, 1, 1, 1, 1]
        for layer, probs in enumerate(SELF["attention"]):
            np.testing.assert_allclose(unpacked(page, "probs", layer), probs[0], atol=4e-3)

    def test_marks_of_tokenizers_stay_when_asked_for(self) -> None:
        tokens = ["Ġa", "▁b", "##c", "d</w>", "e", "f", "</w>"]
        shown = [
            example_of(head_view(SELF["attention"], tokens, prettify_tokens=prettify))["tokens"]
            for prettify in (True, False)
        ]
        assert shown[0]["text"] == [" a", " b", "c", "d", "e", "f", "</w>"]
        assert shown[1]["text"] == tokens

    def test_layer_and_heads_are_what_it_opens_with(self) -> None:
        assert start_of(head_view(**SELF, layer=2, heads=[1])) == "layer=2&heads=1"
        assert start_of(head_view(**SELF, heads=[0, 1])) == "heads=0.1"
        assert start_of(head_view(**SELF)) == ""

    def test_the_page_is_returned_with_the_name_of_its_text_there(self) -> None:
        page = head_view(**SELF, html_action="return")
        assert page.data == page.html == head_view(**SELF, html_action="view").html


class TestEncoderDecoder:
    def test_each_kind_of_attention_is_an_example(self) -> None:
        examples = header_of(head_view(**SIDES))["examples"]
        assert [one["name"] for one in examples] == ["Encoder", "Decoder", "Decoder → Encoder"]
        assert [one["causal"] for one in examples] == [False, True, False]
        assert examples[0]["key_tokens"] is None
        assert examples[2]["tokens"]["text"] == SIDES["decoder_tokens"]
        assert examples[2]["key_tokens"]["text"] == SIDES["encoder_tokens"]

    def test_one_kind_alone_is_enough(self) -> None:
        wanted = ("cross_attention", "encoder_tokens", "decoder_tokens")
        page = head_view(**{name: SIDES[name] for name in wanted})
        assert [one["name"] for one in header_of(page)["examples"]] == ["Decoder → Encoder"]

    def test_a_long_side_gets_thumbnails_of_its_shape(self) -> None:
        page = head_view(
            cross_attention=layers(3, 70), encoder_tokens=names(70), decoder_tokens=names(3)
        )
        assert arrays(page, "thumbnails")[0]["shape"] == [LAYERS, HEADS, 3, 64]


class TestModelView:
    def test_it_opens_the_model_view_in_the_dark(self) -> None:
        page = model_view(**SELF)
        assert header_of(page)["view"] == "model"
        assert start_of(page) == "theme=dark"
        assert start_of(model_view(**SELF, display_mode="light")) == "theme=light"


class TestErrors:
    @pytest.mark.parametrize("function", [head_view, model_view])
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "no attention is given"),
            ({"attention": [], "tokens": names(7)}, "attention is empty"),
            ({"attention": SELF["attention"]}, "tokens is not given; attention's query axis has 7"),
            (SELF | {"tokens": names(6)}, "tokens has 6 strings, attention's query axis has 7"),
            (SELF | {"html_action": "show"}, "html_action='show', expected \"view\""),
            (SELF | {"include_layers": [3]}, r"include_layers=\[3\], but there are 3"),
            (SELF | {"include_layers": []}, "include_layers is empty"),
            (SELF | {"sentence_b_start": 7}, "sentence_b_start=7"),
            (SELF | {"encoder_tokens": ["a"]}, "encoder_tokens is of an encoder"),
            (SELF | SIDES, "encoder_attention is of an encoder"),
            (SIDES | {"tokens": names(7)}, "tokens belongs to attention"),
            (SIDES | {"sentence_b_start": 2}, "sentence_b_start belongs to attention"),
            (SIDES | {"encoder_tokens": names(6)}, "encoder_tokens has 6 strings, encoder_att"),
            (SIDES | {"decoder_tokens": None}, "decoder_tokens is not given"),
            (SIDES | {"cross_attention": layers(7, 5)}, "decoder_tokens has 5 strings, cross_att"),
            (SIDES | {"decoder_attention": layers(5, 7)}, r"decoder_attention\[0\] has 5 queries"),
            (
                SIDES | {"encoder_attention": [*layers(7, 7), *layers(6, 6)]},
                r"encoder_attention\[3\] has .* must be alike",
            ),
            (
                SELF | {"attention": [layer.repeat(2, 1, 1, 1) for layer in layers(7, 7)]},
                r"attention\[0\] holds 2 sentences, expected one",
            ),
            (
                SELF | {"attention": [layer * np.nan for layer in layers(7, 7)]},
                r"attention\[0\] is nan",
            ),
        ],
    )
    def test_each_names_its_argument(
        self, function: Any, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(AttentionError, match=message):
            function(**arguments)

    def test_what_it_opens_with_must_be_on_the_page(self) -> None:
        for arguments, message in (
            ({"layer": 3}, r"layer=3 is not on the page, which holds \[0, 1, 2\]"),
            ({"layer": 0, "include_layers": [1]}, r"layer=0 .* holds \[1\]"),
            ({"heads": [2]}, r"heads=2 .* holds \[0, 1\]"),
            ({"heads": "a"}, r"heads=\['a'\], expected whole numbers"),
            ({"layer": "a"}, r"layer=\['a'\], expected"),
        ):
            with pytest.raises(AttentionError, match=message):
                head_view(**SELF, **arguments)
        with pytest.raises(AttentionError, match="display_mode='black'"):
            model_view(**SELF, display_mode="black")
        with pytest.raises(AttentionError, match="include_heads"):
            model_view(**SELF, include_heads=[2])


class TestShow:
    def test_it_opens_the_neurons_of_a_model(self) -> None:
        model = minibert.load("tiny-bert")
        page = show(model, None, None, "the horse", "a boat", layer=2, head=1)
        assert header_of(page)["view"] == "neuron"
        assert start_of(page) == "layer=2&heads=1&theme=dark"
        assert example_of(page)["texts"] == ["the horse", "a boat"]
        query = model.trace("the horse", "a boat")[2].query[0]
        np.testing.assert_array_equal(unpacked(page, "query", 2), query.half().numpy())

    def test_it_takes_what_bertviz_takes(self) -> None:
        transformers = pytest.importorskip("transformers")
        folder = str(data_path("models", "all-MiniLM-L6-v2"))
        theirs = transformers.AutoModel.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        page = show(theirs, "bert", tokenizer, "Strawberries", "rain falls", "light")
        trace = minibert.load(folder).trace("Strawberries", "rain falls")
        shown = example_of(page)["tokens"]
        assert shown["text"] == list(trace.tokens.strings[0])
        assert shown["special"] == [int(special) for special in trace.tokens.special[0]]
        assert shown["segment"] == trace.tokens.segments[0].tolist()
        np.testing.assert_allclose(
            unpacked(page, "key", 5), trace[5].key[0].numpy(), atol=1e-2, rtol=1e-2
        )

    def test_wrong_arguments_are_named(self) -> None:
        model = minibert.load("tiny-bert")
        for arguments, message in (
            ((model, None, None), "sentence_a=None"),
            ((model, None, None, ""), "sentence_a=''"),
            ((small_trace(), "bert", None, "a"), "tokenizer is not given"),
        ):
            with pytest.raises(AttentionError, match=message):
                show(*arguments)
        with pytest.raises(AttentionError, match="layer=9 is not on the page"):
            show(model, None, None, "the horse", layer=9)
