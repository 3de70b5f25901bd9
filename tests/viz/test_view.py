"""What a page holds of a trace or of plain attention, and what is refused.

How the file is put together is in test_document.py, what a browser makes of it in browser/.
"""

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import (
    HEADS,
    HOSTILE,
    LAYERS,
    TOKENS,
    WIDTH,
    FakeTrace,
    arrays,
    example_of,
    fake_trace,
    header_of,
    names,
    softmax,
    unpacked,
)
from data import data_path

import minibert
from minibert.errors import AttentionError
from minibert.viz import Page, attention_page, view
from minibert.viz.payload import encode_probs, header_json, pack_layer


@pytest.fixture
def trace() -> FakeTrace:
    return fake_trace()


def decoded(page: Page, layer: int, index: int = 0) -> np.ndarray:
    return unpacked(page, "probs", layer, index=index)


class TestPayload:
    def test_no_probability_moves_by_more_than_four_thousandths(self) -> None:
        halfway = ((np.arange(255) + 0.5) / 255) ** 2
        probs = np.concatenate([np.linspace(0, 1, 1_000_001), halfway, np.nextafter(halfway, 0)])
        error = np.abs((encode_probs(probs) / 255.0) ** 2 - probs)
        assert error.max() <= 4e-3
        assert error[probs <= 0.01].max() <= 4e-4

    def test_causal_zeros_are_not_shipped(self) -> None:
        probs = softmax((1, HEADS, TOKENS, TOKENS), causal=True)
        block = pack_layer(0, probs[0])
        cells = zlib.decompress(base64.b64decode(block.data))
        assert len(cells) == HEADS * TOKENS * (TOKENS + 1) // 2
        page = attention_page(probs, names(TOKENS))
        np.testing.assert_allclose(decoded(page, 0), probs[0], atol=4e-3)

    def test_a_header_cannot_end_its_element_and_loses_nothing(self) -> None:
        written = header_json({"tokens": list(HOSTILE)})
        assert written.isascii()
        assert not set("<>&\x00") & set(written)
        assert json.loads(written) == {"tokens": list(HOSTILE)}

    def test_the_same_trace_gives_the_same_bytes(self, trace: FakeTrace) -> None:
        assert view(trace).html == view(trace).html

    def test_the_weights_of_19_tokens_in_12_by_12_heads_fit_in_60_kilobytes(self) -> None:
        path = data_path("refs", "bert-base-uncased__store.npz")
        store = np.load(path, allow_pickle=False)
        tokens = [str(token) for token in store["tokens"]]
        page = attention_page(store["attn"], tokens, sentence_b_start=8, model="bert-base-uncased")
        assert page.examples[0].size <= 60_000
        for layer in range(12):
            np.testing.assert_allclose(decoded(page, layer), store["attn"][layer], atol=4e-3)


class TestView:
    def test_header_says_what_the_trace_says(self, trace: FakeTrace) -> None:
        page = view(trace, title="A title")
        assert header_of(page)["title"] == "A title"
        header = example_of(page)
        assert header["model"] == "fake"
        assert header["texts"] == ["Strawberries", "rain falls"]
        assert header["sizes"] == {"n_layers": LAYERS, "n_heads": HEADS, "d_head": WIDTH}
        assert header["tokens"]["text"] == list(trace.tokens.strings[0])
        assert header["tokens"]["raw"] == [None, None, "##berries", None, None, None, None]
        assert header["tokens"]["special"] == [1, 0, 0, 1, 0, 0, 1]
        assert header["tokens"]["segment"] == [0, 0, 0, 0, 1, 1, 1]
        assert header["tokens"]["piece"] == [0, 0, 1, 0, 0, 0, 0]

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("bert-base-uncased", "bert-base-uncased"),
            ("org/model", "org/model"),
            ("/home/someone/private/model/", "model"),
            ("../models/model", "model"),
            ("~/model", "model"),
        ],
    )
    def test_a_page_that_is_passed_on_names_no_folder(
        self, trace: FakeTrace, name: str, shown: str
    ) -> None:
        trace.model_name = name
        assert example_of(view(trace))["model"] == shown

    def test_chosen_layers_and_heads_keep_their_numbers(self, trace: FakeTrace) -> None:
        page = view(trace, layers=[2, 0], heads=[4, 1])
        header = example_of(page)
        assert [entry["layer"] for entry in arrays(page, "probs")] == [0, 2]
        assert header["heads"] == [1, 4]
        np.testing.assert_allclose(decoded(page, 2), trace.probs[2, 0, [1, 4]], atol=4e-3)

    @pytest.mark.parametrize(
        ("texts", "cut"),
        [
            (("one two three four five six seven",), True),
            (("one two",), False),
            (("one two \n\u200b",), False),
            (("one two", "a second text that is longer by far"), True),
            (("a first text that is longer by far", "one two"), True),
            (("one two", "three"), False),
        ],
    )
    @pytest.mark.parametrize("told", [0, 1])
    def test_it_says_whether_the_text_is_cut(
        self, trace: FakeTrace, told: int, texts: tuple[str, ...], cut: bool
    ) -> None:
        tokenizer = minibert.Tokenizer.from_folder(data_path("models", "all-MiniLM-L6-v2"))
        tokens = tokenizer(*texts, truncate=True, max_positions=7)
        # As of a model that does not tell the texts apart.
        trace.tokens = replace(tokens, segments=tokens.segments * told)
        length = tokens.lengths[0]
        trace.probs = torch.from_numpy(softmax((LAYERS, 1, HEADS, length, length)))
        assert example_of(view(trace))["cut"] is cut

    def test_a_real_trace_arrives_whole(self) -> None:
        model = minibert.load(str(data_path("models", "all-MiniLM-L6-v2")))
        trace = model.trace(["straw", "leaves fall"], ["berries", "autumn is marked by foliage"])
        for sentence, length in enumerate(trace.tokens.lengths):
            page = view(trace, sentences=[sentence])
            assert len(example_of(page)["tokens"]["text"]) == length
            assert example_of(page)["model"] == "all-MiniLM-L6-v2"
            for layer in range(6):
                probs = trace[layer].probs[sentence, :, :length, :length]
                np.testing.assert_allclose(decoded(page, layer), probs, atol=4e-3)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sentences": [2]}, r"sentences=2, but the trace holds 2"),
            ({"sentences": [-1]}, r"sentences=-1"),
            ({"sentences": []}, "sentences is empty"),
            ({"sentences": 1}, "sentences=1, expected a list"),
            ({"layers": [3]}, r"layers=\[3\], but there are 3"),
            ({"layers": []}, r"layers is empty"),
            ({"heads": [0, -1]}, r"heads=\[-1, 0\], but there are 5"),
            ({"heads": 2}, r"heads=2, expected a list"),
        ],
    )
    def test_arguments_that_do_not_fit_are_named(
        self, trace: FakeTrace, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(AttentionError, match=message):
            view(trace, **arguments)

    def test_a_weight_that_is_no_number_is_found(self, trace: FakeTrace) -> None:
        trace.probs[2, 0, 4, 1, 6] = float("nan")
        with pytest.raises(AttentionError, match=r"trace\[2\].*nan at head 4, query 1, key 6"):
            view(trace)


class TestAttentionPage:
    def test_takes_what_transformers_returns(self) -> None:
        probs = softmax((LAYERS, 2, HEADS, TOKENS, TOKENS))
        tuple_of_layers = tuple(torch.from_numpy(layer) for layer in probs)
        page = attention_page(tuple_of_layers, names(TOKENS), sentence=1)
        np.testing.assert_allclose(decoded(page, 1), probs[1, 1], atol=4e-3)

    def test_marks_of_tokenizers_become_readable(self) -> None:
        tokens = ["<s>", "Ġbrown", "▁the", "##s", "##", "[CLS]", "[MASK]"]
        page = attention_page(softmax((1, 2, 7, 7)), tokens)
        shown = example_of(page)["tokens"]
        assert shown["text"] == ["<s>", " brown", " the", "s", "##", "[CLS]", "[MASK]"]
        assert shown["special"] == [1, 0, 0, 0, 0, 1, 0]
        assert shown["piece"] == [0, 0, 0, 1, 0, 0, 0]

    @pytest.mark.parametrize(
        ("attention", "message"),
        [
            ([], "attention is empty"),
            (np.zeros((0, 2, 7, 7)), "attention is empty"),
            (softmax((5, 7, 7)), r"attention has shape \(5, 7, 7\), expected \(layer, head"),
            (softmax((3, 1, 5, 7, 7)), r"pick one sentence"),
            ([softmax((5, 7, 7))], r"attention\[0\] has shape .* expected \(batch, head"),
            ([None, None], "attention\\[0\\] is None.*eager"),
            (softmax((3, 5, 7, 11)), "7 queries and 11 keys"),
            ([softmax((1, 5, 7, 7)), softmax((1, 3, 7, 7))], r"attention\[1\].*must be alike"),
            (softmax((3, 5, 7, 7)) * 0.9, r"attention\[0\] adds up to 0\.9 at head 0, query 0"),
            (softmax((3, 5, 7, 7)) * 30, "before the softmax"),
            (np.full((3, 5, 7, 7), np.nan), r"nan at head 0"),
            ([softmax((0, 5, 7, 7))], "sentence=0, but attention.0. holds 0"),
            ("attention", "no table of numbers"),
        ],
    )
    def test_attention_that_is_none_is_refused(self, attention: Any, message: str) -> None:
        with pytest.raises(AttentionError, match=message):
            attention_page(attention, names(7))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_rows_count_as_one(self, dtype: torch.dtype) -> None:
        scores = torch.randn(2, 3, 211, 211)
        attention_page(scores.softmax(-1).to(dtype), names(211))

    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            (names(6), "tokens has 6 strings, attention has 7 positions"),
            ([], "tokens has 0 strings"),
            ("a string", "tokens must be a list of strings"),
            (7, "tokens must be a list of strings"),
            ([*names(6), 3], r"tokens\[6\] is 3, expected a string"),
        ],
    )
    def test_tokens_that_do_not_match_are_refused(self, tokens: Any, message: str) -> None:
        with pytest.raises(AttentionError, match=message):
            attention_page(softmax((LAYERS, HEADS, 7, 7)), tokens)

    @pytest.mark.parametrize("start", [0, 7, -1])
    def test_a_second_sentence_outside_the_tokens_is_refused(self, start: int) -> None:
        with pytest.raises(AttentionError, match=f"sentence_b_start={start}"):
            attention_page(softmax((1, 2, 7, 7)), names(7), sentence_b_start=start)
