"""The forms in which code written for BertViz calls head_view and model_view, on small models.

Each gives a page with the weights that the model gave, or is refused by the name of an argument.
That BertViz puts the same into its own pages is in test_bertviz_suite.py.
"""

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import example_of, header_of, names, unpacked
from torch import Tensor

from minibert.errors import AttentionError
from minibert.viz import Page, head_view, model_view
from minibert.viz.neuron_view import get_attention, show

transformers = pytest.importorskip("transformers")

LAYERS, HEADS, TOKENS = 3, 2, 7
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
    extra = {"decoder_input_ids": ids[:, :5]} if name == "bart" else {}
    return model(input_ids=ids, attention_mask=mask, **extra)


def attention(name: str = "bert", **options: Any) -> Layers:
    # Since transformers 5 the last part of BERT's output is an empty cross_attentions.
    return outputs(name, **options).attentions


def assert_holds(page: Page, given: Any, index: int = 0, scale: float = 1) -> None:
    """Every layer of the page has the weights that were given for it."""
    about = example_of(page, index)
    for layer in about["layers"]:
        expected = given[layer].detach().float().numpy()[0][about["heads"]]
        shown = unpacked(page, "probs", layer, index=index)
        np.testing.assert_allclose(shown * scale, expected, atol=4e-3 * scale)


def notes(page: Page) -> str:
    return " ".join(example_of(page)["notes"])


FORMS = {
    "a tuple, as transformers gives it": lambda given: given,
    "a list": list,
    "layers on top of one another": torch.stack,
    "layers of one sentence on top of one another": lambda given: torch.cat(given),
    "arrays": lambda given: [layer.detach().numpy() for layer in given],
    "half precision": lambda given: [layer.half() for layer in given],
    "bfloat16": lambda given: [layer.bfloat16() for layer in given],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("function", [head_view, model_view])
def test_attention_in_any_of_its_forms_gives_its_weights(function: Any, form: Any) -> None:
    given = form(attention())
    page = function(given, names(TOKENS))
    assert_holds(
        page, [torch.as_tensor(layer).reshape(1, HEADS, TOKENS, TOKENS) for layer in given]
    )
    assert example_of(page)["layers"] == list(range(LAYERS))
    assert notes(page) == ""


class TestWeightsThatDoNotAddUpToOne:
    def test_padded_rows_are_drawn_as_the_model_gave_them(self) -> None:
        for name, side in (("bert", "right"), ("gpt2", "left"), ("gpt2", "right")):
            page = head_view(attention(name, padding=side), names(TOKENS))
            assert_holds(page, attention(name, padding=side))
            assert notes(page) == ""

    def test_rows_that_a_mask_has_emptied_hold_nothing_and_the_page_says_so(self) -> None:
        mask = torch.ones(TOKENS)
        mask[-2:] = 0
        emptied = [layer * mask[:, None] for layer in attention(padding="right")]
        page = head_view(emptied, names(TOKENS))
        assert_holds(page, emptied)
        assert not unpacked(page, "probs", 0)[:, -2:].any()
        assert "the sums are from 0 to 1." in notes(page)

    def test_a_model_in_training_mode_has_its_weights_divided_by_the_largest(self) -> None:
        given = attention(training=True)
        largest = max(layer.max().item() for layer in given)
        assert largest > 1.5
        page = head_view(given, names(TOKENS))
        assert_holds(page, given, scale=largest)
        assert f"All of them are divided by the largest weight, {largest:.4g}." in notes(page)
        assert "a model in training mode" in notes(page)

    def test_smaller_ones_are_not_scaled(self) -> None:
        given = [layer * 0.3 for layer in attention()]
        page = model_view(given, names(TOKENS))
        assert_holds(page, given)
        assert "from 0.3 to 0.3. They are drawn as they were given" in notes(page)

    def test_columns_in_the_place_of_rows_are_refused(self) -> None:
        turned = [layer.transpose(-1, -2) for layer in attention()]
        with pytest.raises(AttentionError, match=r"in attention the columns .* swap the last two"):
            head_view(turned, names(TOKENS))


class TestLayersAndHeads:
    def test_negative_numbers_count_from_the_end(self) -> None:
        given = attention()
        page = model_view(given, names(TOKENS), include_layers=[-1, 0], include_heads=[-1])
        assert example_of(page)["layers"] == [0, LAYERS - 1]
        assert example_of(page)["heads"] == [HEADS - 1]
        assert_holds(page, given)
        page = head_view(given, names(TOKENS), layer=-1, heads=[-1], include_layers=[-1])
        assert header_of(page)["start"] == f"layer={LAYERS - 1}&heads={HEADS - 1}"

    @pytest.mark.parametrize("heads", [1, np.int64(1), torch.tensor(1), [1], (1,), range(1, 2)])
    def test_heads_may_be_one_number(self, heads: Any) -> None:
        page = head_view(attention(), names(TOKENS), heads=heads)
        assert header_of(page)["start"] == "heads=1"

    def test_a_number_alone_is_one_layer_or_head_of_the_page(self) -> None:
        page = model_view(attention(), names(TOKENS), include_layers=2, include_heads=0)
        assert (example_of(page)["layers"], example_of(page)["heads"]) == ([2], [0])

    def test_the_first_head_is_a_choice_and_no_head_is_none(self) -> None:
        page = head_view(attention(), names(TOKENS), layer=0, heads=0)
        assert header_of(page)["start"] == "layer=0&heads=0"
        with pytest.raises(AttentionError, match="heads is empty; leave it out"):
            head_view(attention(), names(TOKENS), heads=[])


class TestEncoderAndDecoder:
    @pytest.mark.parametrize("function", [head_view, model_view])
    def test_each_side_has_its_own_layers_and_tokens(self, function: Any) -> None:
        given = outputs("bart")
        page = function(
            encoder_attention=given.encoder_attentions,
            decoder_attention=given.decoder_attentions,
            cross_attention=given.cross_attentions,
            encoder_tokens=names(TOKENS),
            decoder_tokens=[f"d{i}" for i in range(5)],
        )
        for index, name in enumerate(("encoder", "decoder", "cross")):
            layers = given[f"{name}_attentions"]
            assert example_of(page, index)["layers"] == list(range(len(layers)))
            assert_holds(page, layers, index)
        assert [example_of(page, i)["causal"] for i in range(3)] == [False, True, False]

    def test_a_layer_that_one_side_has_not_is_refused_by_its_name(self) -> None:
        given = outputs("bart")
        with pytest.raises(AttentionError, match=r"include_layers=\[2\], but there are 2"):
            model_view(
                encoder_attention=given.encoder_attentions,
                decoder_attention=given.decoder_attentions,
                encoder_tokens=names(TOKENS),
                decoder_tokens=names(5),
                include_layers=[2],
            )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (), "give outputs.attentions"),
        (lambda: (outputs("bert").last_hidden_state,), "output_attentions=True"),
        (lambda: outputs("bert").last_hidden_state, "output_attentions=True"),
        (lambda: [None] * LAYERS, "output_attentions=True"),
        (lambda: [layer * 9 - 4 for layer in attention()], "before the softmax"),
        (lambda: [layer * torch.nan for layer in attention()], "cut it away"),
        (lambda: torch.stack([layer.repeat(2, 1, 1, 1) for layer in attention()]), "2 sentences"),
        (lambda: [layer[..., :-1] for layer in attention()], "7 queries and 6 keys"),
    ],
)
def test_what_is_no_attention_of_one_text_is_refused_with_what_to_do(
    given: Any, message: str
) -> None:
    with pytest.raises(AttentionError, match=message):
        head_view(given(), names(TOKENS))


def test_the_page_for_those_who_come_from_bertviz_names_every_parameter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bertviz.md").read_text(encoding="utf-8")
    for function in (head_view, model_view, show, get_attention):
        for name in inspect.signature(function).parameters:
            assert re.search(rf"\b{name}\b", page), name
