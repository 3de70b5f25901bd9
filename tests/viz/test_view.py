"""What a page holds of a trace or of plain attention, and what is refused before work starts.

How the file is put together is in test_document.py, what a browser makes of it in browser/.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import (
    HOSTILE,
    arrays,
    example_of,
    header_of,
    names,
    softmax,
    undigited,
    unpacked,
)
from data import data_path
from small_traces import small_trace

import minibert
from minibert.errors import AttentionError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.trace.read import Trace
from minibert.viz import Page, attention_page, view
from minibert.viz.document import header_json
from minibert.viz.payload import encode_probs, pack_layer

LAYERS, HEADS, TOKENS = 4, 4, 7


@cache
def pairs() -> Trace:
    """Two pairs of texts, of different lengths."""
    firsts, seconds = ["the unthinkable horse", "a boat"], ["rain falls", "it sank"]
    return minibert.load().trace(firsts, seconds)


def decoded(page: Page, layer: int, index: int = 0) -> np.ndarray:
    return unpacked(page, "probs", layer, index=index)


class TestPayload:
    def test_no_probability_moves_by_more_than_four_thousandths(self):
        halfway = ((np.arange(255) + 0.5) / 255) ** 2
        probs = np.concatenate([np.linspace(0, 1, 1_000_001), halfway, np.nextafter(halfway, 0)])
        error = np.abs((encode_probs(probs) / 255.0) ** 2 - probs)
        assert error.max() <= 4e-3
        assert error[probs <= 0.01].max() <= 4e-4

    def test_causal_zeros_are_not_shipped(self):
        probs = softmax((1, HEADS, TOKENS, TOKENS), causal=True)
        cells = zlib.decompress(undigited(pack_layer(0, probs[0]).data))
        assert len(cells) == HEADS * TOKENS * (TOKENS + 1) // 2
        np.testing.assert_allclose(
            decoded(attention_page(probs, names(TOKENS)), 0), probs[0], atol=4e-3
        )

    def test_a_header_cannot_end_its_element_and_loses_nothing(self):
        written = header_json({"tokens": list(HOSTILE)})
        assert written.isascii()
        assert not set("<>&\x00") & set(written)
        assert json.loads(written) == {"tokens": list(HOSTILE)}


def test_the_header_says_what_the_trace_says():
    trace = pairs()
    page, tokens = view(trace, title="A title"), trace.tokens
    assert view(trace, title="A title").html == page.html
    assert header_of(page)["title"] == "A title"
    header = example_of(page)
    assert header["model"] == "tiny-bert"
    assert header["texts"] == ["the unthinkable horse", "rain falls"]
    assert {"n_layers": LAYERS, "n_heads": HEADS, "d_head": 32}.items() <= header["sizes"].items()
    shown = header["tokens"]
    assert shown["text"] == list(tokens.strings[0])
    pieces = [raw.startswith("##") for raw in tokens.raw[0]]
    assert any(pieces)
    assert shown["piece"] == list(map(int, pieces))
    both = zip(tokens.raw[0], pieces, strict=True)
    assert shown["raw"] == [raw if piece else None for raw, piece in both]
    assert shown["special"] == list(map(int, tokens.special[0]))
    assert shown["segment"] == tokens.segments[0, : tokens.lengths[0]].tolist()
    without = minibert.load().trace(replace(tokens, texts=()))
    assert example_of(view(without))["texts"] == ["the unthinkable horse", "rain falls"]


def test_chosen_sentences_layers_and_heads_keep_their_numbers():
    trace = pairs()
    page = view(trace, sentences=[1], layers=[2, 0], heads=[3, 1], vectors=False)
    assert [entry["layer"] for entry in arrays(page, "probs")] == [0, 2]
    assert example_of(page)["heads"] == [1, 3]
    assert example_of(page)["tokens"]["text"] == list(trace.tokens.strings[1])
    n = trace.tokens.lengths[1]
    np.testing.assert_allclose(decoded(page, 2), trace[2].probs[1, [1, 3], :n, :n], atol=4e-3)


@pytest.mark.parametrize(
    ("texts", "cut"),
    [
        (("one two three four five six seven",), True),
        (("one two \n\u200b",), False),
        (("one two", "a second text that is longer by far"), True),
        (("a first text that is longer by far", "one two"), True),
        (("one two", "three"), False),
    ],
)
@pytest.mark.parametrize("told", [0, 1])
def test_it_says_whether_the_text_is_cut(told, texts, cut):
    tokenizer = minibert.Tokenizer.from_folder(data_path("models", "all-MiniLM-L6-v2"))
    tokens = tokenizer(*texts, truncate=True, max_positions=7)
    # As of a model that does not tell the texts apart.
    tokens = replace(tokens, segments=tokens.segments * told)
    sizes = {"n_positions": 7, "n_layers": 1, "n_heads": 1, "d_model": 4, "d_mlp": 4}
    config = Config("bert", "none", tokenizer.vocab_size, **sizes, n_segments=2)
    trace = Model.from_config(config, tokenizer=tokenizer).trace(tokens)
    assert example_of(view(trace))["cut"] is cut


def test_attention_of_transformers_and_marks_of_tokenizers_are_read():
    probs = softmax((LAYERS, 2, HEADS, TOKENS, TOKENS))
    tokens = ["<s>", "Ġbrown", "▁the", "##s", "##", "[CLS]", "[MASK]"]
    page = attention_page(tuple(map(torch.from_numpy, probs)), tokens, sentence=1)
    np.testing.assert_allclose(decoded(page, 1), probs[1, 1], atol=4e-3)
    shown = example_of(page)["tokens"]
    assert shown["text"] == ["<s>", " brown", " the", "s", "##", "[CLS]", "[MASK]"]
    assert shown["special"] == [1, 0, 0, 0, 0, 1, 0]
    assert shown["piece"] == [0, 0, 0, 1, 0, 0, 0]
    for dtype in (torch.float16, torch.bfloat16):
        attention_page(torch.randn(2, 3, 211, 211).softmax(-1).to(dtype), names(211))


ATTENTION: list[tuple[Any, str]] = [
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
    ([softmax((0, 5, 7, 7))], "attention.0.: there is no sentence 0"),
    ("attention", "not a table of numbers"),
]
STRINGS: list[tuple[Any, str]] = [
    (names(6), "tokens has 6 strings, attention has 7 positions"),
    ([], "tokens has 0 strings"),
    ("a string", "tokens must be a list of strings"),
    (7, "tokens must be a list of strings"),
    ([*names(6), 3], r"tokens\[6\] is 3, expected a string"),
]


def test_plain_attention_that_does_not_fit_is_refused():
    for attention, message in ATTENTION:
        with pytest.raises(AttentionError, match=message):
            attention_page(attention, names(7))
    for tokens, message in STRINGS:
        with pytest.raises(AttentionError, match=message):
            attention_page(softmax((LAYERS, HEADS, 7, 7)), tokens)
    for start in (0, 7, -1):
        with pytest.raises(AttentionError, match=f"sentence_b_start={start}"):
            attention_page(softmax((1, 2, 7, 7)), names(7), sentence_b_start=start)


VIEW: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
    (pairs, {"sentences": [2]}, "sentences: there is no sentence 2; expected 0 to 1"),
    (pairs, {"sentences": []}, "sentences is empty"),
    (pairs, {"sentences": True}, "sentences: sentence True: expected a whole number"),
    (pairs, {"layers": [4]}, "layers: there is no layer 4; expected 0 to 3"),
    (pairs, {"heads": [0, -5]}, "heads: there is no head -5; expected 0 to 3"),
    (small_trace, {"view": "heads"}, r"view='heads'.*: there are head, model"),
    (small_trace, {"view": "neuron", "vectors": False}, "needs query and key"),
    (small_trace, {"view": "layers"}, "vocabulary head"),
    (small_trace, {"lens": True}, "lens=True: "),
    (small_trace, {"exact": (0, 7)}, "exact names layer 0, head 7"),
    (small_trace, {"exact": (0, 1), "heads": [0]}, "exact names layer 0, head 1"),
    (small_trace, {"exact": 3}, "exact=3, expected"),
    (small_trace, {"exact": [(0, 1, 2)]}, r"exact=\[\(0, 1, 2\)\], expected"),
    (list, {}, "traces is empty"),
    (dict, {}, "traces is empty"),
    (lambda: softmax((1, 2, 3, 3)), {}, "ndarray, expected what model.trace"),
    (lambda: [small_trace, None], {}, "traces holds function"),
    (lambda: None, {}, "traces holds NoneType"),
]


def test_what_view_cannot_show_is_refused_by_the_name_of_its_argument():
    for made, arguments, message in VIEW:
        with pytest.raises(AttentionError, match=message):
            view(made(), **arguments)
    for name, place, message in (
        ("probs", (0, 3, 1, 6), r"trace\[2\].*nan at head 3, query 1, key 6"),
        ("key", (0, 3, 4, 0), r"trace\[2\].key\[0\].*head 3, position 4"),
    ):
        broken = minibert.load().trace(pairs().tokens, keep=("probs",))
        getattr(broken[2], name)[place] = torch.nan
        with pytest.raises(AttentionError, match=message):
            view(broken)
