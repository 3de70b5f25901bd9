"""head_view, model_view and show: what code written for BertViz passes, and what comes of it.

Each call gives a page with the weights that the model gave, or is refused by the name of an
argument.
"""

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import example_of, header_of, names, softmax, unpacked
from small_traces import small_trace
from torch import Tensor

import minibert
from minibert.errors import AttentionError
from minibert.viz import Page, head_view, model_view
from minibert.viz.neuron_view import show

transformers = pytest.importorskip("transformers")

LAYERS, HEADS, TOKENS, DECODED = 3, 2, 7, 5
CONFIGS = {
    "bert": transformers.BertConfig(
        vocab_size=41, hidden_size=22, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=13, attention_probs_dropout_prob=0.5, output_attentions=True,
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=41, n_embd=22, n_layer=LAYERS, n_head=HEADS, output_attentions=True
    ),
    "bart": transformers.BartConfig(
        vocab_size=41, d_model=22, encoder_layers=LAYERS, decoder_layers=2, encoder_ffn_dim=13,
        decoder_ffn_dim=13, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        output_attentions=True,
    ),
}  # fmt: skip
Layers = tuple[Tensor, ...]


@cache
def outputs(name: str, *, training: bool = False, padding: str = "") -> Any:
    """What a random model with sharp attention says of ids; `padding` is a side with two pads."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(CONFIGS[name], attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    model.train(training)
    ids = torch.arange(5, 5 + TOKENS)[None]
    mask = torch.ones_like(ids)
    if padding:
        mask[:, slice(None, 2) if padding == "left" else slice(-2, None)] = 0
    extra = {"decoder_input_ids": ids[:, :DECODED]} if name == "bart" else {}
    return model(input_ids=ids, attention_mask=mask, **extra)


def attention(name: str = "bert", **options: Any) -> Layers:
    # Since transformers 5 the last part of BERT's output is an empty cross_attentions.
    return outputs(name, **options).attentions


def sides() -> dict[str, Any]:
    given = outputs("bart")
    return {
        f"{one}_attention": given[f"{one}_attentions"] for one in ("encoder", "decoder", "cross")
    } | {
        "encoder_tokens": [f"e{i}" for i in range(TOKENS)],
        "decoder_tokens": [f"d{i}" for i in range(DECODED)],
    }


def assert_holds(page: Page, given: Any, index: int = 0) -> None:
    """Every layer of the page has the weights that were given for it."""
    about = example_of(page, index)
    for layer in about["layers"]:
        expected = given[layer].detach().float().numpy()[0][about["heads"]]
        shown = unpacked(page, "probs", layer, index=index)
        np.testing.assert_allclose(shown, expected, atol=4e-3)


def start_of(page: Page) -> str:
    return header_of(page)["start"]


def test_parameters_are_those_of_bertviz_and_its_page_names_every_one():
    both = "encoder_attention decoder_attention cross_attention encoder_tokens decoder_tokens"
    text = "attention tokens sentence_b_start prettify_tokens"
    asked = "model model_type tokenizer sentence_a sentence_b"
    written = (Path(__file__).parents[2] / "docs" / "bertviz.md").read_text(encoding="utf-8")
    for function, parameters in {
        head_view: f"{text} layer heads {both} include_layers html_action",
        model_view: f"{text} display_mode {both} include_layers include_heads html_action",
        show: f"{asked} display_mode layer head html_action",
    }.items():
        assert list(inspect.signature(function).parameters) == parameters.split()
        assert all(re.search(rf"\b{name}\b", written) for name in parameters.split())


FORMS = [
    tuple, list, torch.stack, torch.cat,
    lambda given: [layer.detach().numpy() for layer in given],
    lambda given: [layer.half() for layer in given],
    lambda given: [layer.bfloat16() for layer in given],
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", [head_view, model_view])
def test_attention_in_any_of_its_forms_gives_its_weights(function, form):
    given = form(attention())
    page = function(given, names(TOKENS), 3)
    shape = (1, HEADS, TOKENS, TOKENS)
    assert_holds(page, [torch.as_tensor(layer).reshape(shape) for layer in given])
    assert header_of(page)["view"] == {head_view: "head", model_view: "model"}[function]
    assert example_of(page)["layers"] == list(range(LAYERS))
    assert example_of(page)["tokens"]["segment"] == [0, 0, 0, 1, 1, 1, 1]
    assert example_of(page)["notes"] == []


def test_rows_that_do_not_add_up_to_one_are_drawn_and_the_page_says_how():
    for name, side in (("bert", "right"), ("gpt2", "left"), ("gpt2", "right")):
        page = head_view(attention(name, padding=side), names(TOKENS))
        assert_holds(page, attention(name, padding=side))
        assert example_of(page)["notes"] == []
    smaller = [layer * 0.3 for layer in attention()]
    page = model_view(smaller, names(TOKENS))
    assert_holds(page, smaller)
    assert "from 0.3 to 0.3. They are drawn as they were given" in example_of(page)["notes"][0]


def test_layers_and_heads_count_from_either_end_and_may_be_one_number():
    given, tokens = attention(), names(TOKENS)
    page = model_view(given, tokens, include_layers=[-1, 0], include_heads=[-1])
    assert (example_of(page)["layers"], example_of(page)["heads"]) == ([0, LAYERS - 1], [HEADS - 1])
    assert_holds(page, given)
    page = head_view(given, tokens, layer=-1, heads=[-1], include_layers=[-1])
    assert start_of(page) == f"layer={LAYERS - 1}&heads={HEADS - 1}"
    for heads in (1, np.int64(1), torch.tensor(1), [1], (1,), range(1, 2)):
        assert start_of(head_view(given, tokens, heads=heads)) == "heads=1"
    assert start_of(head_view(given, tokens, layer=0, heads=0)) == "layer=0&heads=0"
    assert start_of(head_view(given, tokens)) == ""
    assert start_of(model_view(given, tokens)) == "theme=dark"
    page = head_view(given, tokens, html_action="return")
    assert page.data == page.html == head_view(given, tokens).html


@pytest.mark.parametrize("function", [head_view, model_view])
def test_each_side_of_an_encoder_and_decoder_has_its_own_layers_and_tokens(function):
    given = sides()
    page = function(**given)
    examples = header_of(page)["examples"]
    assert [one["name"] for one in examples] == ["Encoder", "Decoder", "Decoder → Encoder"]
    assert [one["causal"] for one in examples] == [False, True, False]
    for index, name in enumerate(("encoder", "decoder", "cross")):
        layers = given[f"{name}_attention"]
        assert examples[index]["layers"] == list(range(len(layers)))
        assert_holds(page, layers, index)
    assert examples[2]["tokens"]["text"] == given["decoder_tokens"]
    assert examples[2]["key_tokens"]["text"] == given["encoder_tokens"]


def plain(*shape: int) -> list[Tensor]:
    return list(torch.from_numpy(softmax((LAYERS, 1, HEADS, *shape))))


SELF = {"attention": plain(TOKENS, TOKENS), "tokens": names(TOKENS)}
REFUSED: list[tuple[Any, str]] = [
    ({}, "no attention is given"),
    ({"attention": [], "tokens": names(7)}, "attention is empty.* give outputs.attentions"),
    ({"attention": SELF["attention"]}, "tokens is not given; attention's query axis has 7"),
    (SELF | {"tokens": names(6)}, "tokens has 6 strings, attention's query axis has 7"),
    (SELF | {"html_action": "show"}, "html_action='show', expected \"view\""),
    (SELF | {"include_layers": [3]}, "include_layers: there is no layer 3"),
    (SELF | {"include_layers": []}, "include_layers is empty"),
    (SELF | {"sentence_b_start": 7}, "sentence_b_start=7"),
    (SELF | {"encoder_tokens": ["a"]}, "encoder_tokens is of encoder"),
    (lambda: SELF | sides(), "encoder_attention is of encoder"),
    (lambda: sides() | {"tokens": names(7)}, "tokens belongs to attention"),
    (lambda: sides() | {"sentence_b_start": 2}, "sentence_b_start belongs to attention"),
    (lambda: sides() | {"encoder_tokens": names(6)}, "encoder_tokens has 6 strings, encoder_att"),
    (lambda: sides() | {"decoder_tokens": None}, "decoder_tokens is not given"),
    (lambda: sides() | {"cross_attention": plain(7, 5)}, "decoder_tokens has 5 strings, cross_att"),
    (lambda: sides() | {"include_layers": [2]}, "include_layers: there is no layer 2"),
    ({"decoder_attention": plain(5, 7)}, r"decoder_attention\[0\] has 5 queries"),
    ({"encoder_attention": [*plain(7, 7), *plain(6, 6)]}, r"\[3\] has .* must be alike"),
]
GIVEN: list[tuple[Any, str]] = [
    (lambda: (outputs("bert").last_hidden_state,), "output_attentions=True"),
    (lambda: outputs("bert").last_hidden_state, "output_attentions=True"),
    (lambda: [None] * LAYERS, "output_attentions=True"),
    (lambda: [layer * 9 - 4 for layer in attention()], "before the softmax"),
    (lambda: [layer * torch.nan for layer in attention()], r"attention\[0\] is nan.* cut it away"),
    (lambda: torch.stack([layer.repeat(2, 1, 1, 1) for layer in attention()]), "2 sentences"),
    (lambda: [layer[..., :-1] for layer in attention()], "7 queries and 6 keys"),
    (lambda: attention(training=True), "weights with dropout"),
]


@pytest.mark.parametrize("function", [head_view, model_view])
def test_what_does_not_fit_is_refused_by_the_name_of_its_argument(function):
    for arguments, message in REFUSED:
        with pytest.raises(AttentionError, match=message):
            function(**(arguments() if callable(arguments) else arguments))
    for given, message in GIVEN:
        with pytest.raises(AttentionError, match=message):
            function(given(), names(TOKENS))


OPENED: list[tuple[Any, dict[str, Any], str]] = [
    (head_view, {"layer": 3}, "layer: there is no layer 3; expected 0 to 2"),
    (head_view, {"layer": 0, "include_layers": [1]}, r"layer=0 .* holds \[1\]"),
    (head_view, {"heads": [2]}, "heads: there is no head 2; expected 0 to 1"),
    (head_view, {"heads": []}, "heads is empty; leave it out"),
    (head_view, {"heads": "a"}, "heads: head 'a': expected a whole number"),
    (model_view, {"display_mode": "black"}, "display_mode='black'"),
    (model_view, {"include_heads": [2]}, "include_heads: there is no head 2"),
]


def test_what_a_page_opens_with_must_be_on_it():
    for function, arguments, message in OPENED:
        with pytest.raises(AttentionError, match=message):
            function(**SELF, **arguments)


class TestShow:
    @pytest.mark.parametrize("kind", ["ours", "attached", "transformers"])
    @pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
    def test_it_opens_the_neurons_of_a_model(self, name, kind):
        texts = ("the horse", "a boat") if name == "tiny-bert" else ("the horse",)
        folder = Path(minibert.__file__).parent / "embedded" / name
        ours = model = minibert.load(name)
        tokenizer = None
        if kind != "ours":
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        if kind == "attached":
            model, tokenizer = minibert.attach(model, tokenizer=tokenizer), None
        page = show(model, name.removeprefix("tiny-"), tokenizer, *texts, layer=2, head=1)
        assert header_of(page)["view"] == "neuron"
        assert start_of(page) == "layer=2&heads=1&theme=dark"
        about = example_of(page)
        assert about["texts"] == list(texts)
        trace = ours.trace(*texts)
        assert about["tokens"]["segment"] == trace.tokens.segments[0].tolist()
        for quantity in ("query", "key"):
            expected = getattr(trace[2], quantity)[0].numpy()
            np.testing.assert_allclose(unpacked(page, quantity, 2), expected, rtol=2e-3, atol=1e-4)

    def test_wrong_arguments_are_named(self):
        model, gpt2 = minibert.load("tiny-bert"), minibert.load("tiny-gpt2")
        for arguments, message in (
            ((model, None, None), "sentence_a=None"),
            ((model, None, None, ""), "sentence_a=''"),
            ((model, None, None, "a", 3), "sentence_b=3"),
            ((model, "xlnet", None, "a"), "model_type='xlnet', but the model is bert"),
            ((model, None, gpt2.tokenizer, "a"), "model has its own"),
            ((gpt2, None, None, "a", "b"), "sentence_b is given and gpt2 reads one text"),
            ((small_trace(), "bert", None, "a"), "tokenizer is not given"),
        ):
            with pytest.raises(AttentionError, match=message):
                show(*arguments)
        with pytest.raises(AttentionError, match="layer: there is no layer 9"):
            show(model, None, None, "the horse", layer=9)
