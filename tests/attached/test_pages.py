"""Pages of live models, BertViz' functions on them, and docs/attach.md, which runs."""

import base64
import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

import minibert
from minibert import AttentionError, TraceError
from minibert.trace.edit import hide
from minibert.viz import head_view
from minibert.viz.neuron_view import show
from tests.attached.live_models import bart, bert, ids, llama
from tests.test_documents import ELSEWHERE, blocks_of


def test_windows_and_soft_caps_are_on_the_page_and_a_position_bias_is_told() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 59, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12}
    config = Gemma2Config(
        hidden_size=48, num_key_value_heads=2, intermediate_size=40, sliding_window=3,
        initializer_range=0.3, attn_logit_softcapping=5.0, attn_implementation="eager", **sizes,
    )  # fmt: skip
    for one in minibert.attach(Gemma2ForCausalLM(config).eval()).trace(ids()).view().examples:
        assert not one.about["edited"]
        assert (one.about["windows"], one.about["soft_cap"]) == ([[2, 0], None], 5.0)
        assert one.about["sizes"]["n_kv_heads"] == 2
    model = T5Model(
        T5Config(vocab_size=59, d_model=48, num_layers=2, num_heads=4, d_kv=12, d_ff=40)
    )
    trace = minibert.attach(model.eval()).trace(input_ids=ids(), decoder_input_ids=ids())
    for one in trace.view(stack="encoder").examples:
        assert one.about["edited"]
        assert one.about["apart"].startswith("The weights of this model have a position bias")
    edited = minibert.attach(llama()).trace(ids(), edit={("scores", 1): hide(0, positions=-1)})
    assert all(e.about["edited"] and "apart" not in e.about for e in edited.view().examples)


def test_bertviz_functions_take_what_is_attached() -> None:
    folder = Path(minibert.__file__).parent / "embedded"
    text = "The horse ran away."
    with_bert = minibert.attach(
        AutoModel.from_pretrained(folder / "tiny-bert", dtype=torch.float32).eval(),
        tokenizer=AutoTokenizer.from_pretrained(folder / "tiny-bert"),
    )
    trace = with_bert.trace(text)
    page = head_view(trace.attentions, trace.tokens.raw[0], html_action="return")
    assert len(page.examples[0].about["tokens"]["text"]) == trace[0].probs.shape[-1]
    shown = show(with_bert, None, None, text, "The boy followed.", html_action="return")
    assert not shown.examples[0].about["edited"]
    with pytest.raises(AttentionError, match=r"model_type='gpt2', but the model is bert"):
        show(with_bert, "gpt2", None, text)


def vit() -> ViTModel:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 44}
    config = ViTConfig(image_size=(24, 40), patch_size=8, intermediate_size=40, **sizes)
    return ViTModel(config).eval()


def test_a_page_of_a_picture_has_its_patches_and_the_picture_itself() -> None:
    picture = torch.randint(0, 256, (24, 40, 3), dtype=torch.uint8)
    pixels = picture.permute(2, 0, 1)[None] / 255
    trace = minibert.attach(vit()).trace(pixel_values=pixels)
    page = trace.view(image=picture)
    [one] = page.examples
    assert page.view == "text"
    names = one.about["tokens"]["text"]
    assert names[:3] == ["[0]", "row 0, column 0", "row 0, column 1"]
    assert names[-1] == "row 2, column 4"
    image = one.about["image"]
    assert (image["first"], image["rows"], image["columns"]) == (1, 3, 5)
    # Another reader of PNG files finds the pixels that were given.
    file = base64.b64decode(image["source"].removeprefix("data:image/png;base64,"))
    assert torch.equal(decode_png(file), picture)
    assert "image" not in trace.view().examples[0].about


def decode_png(file: bytes) -> torch.Tensor:
    """The pixels of a file, by Pillow."""
    image = pytest.importorskip("PIL.Image")
    return torch.from_numpy(np.array(image.open(io.BytesIO(file))))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(24, 40, 3), r"found float32 of shape \(24, 40, 3\); expected \(height, width"),
        ([np.zeros((4, 4), np.uint8)] * 2, "2 given, and pixel_values have 1"),
    ],
)
def test_what_is_no_picture_of_the_model_is_refused(image: Any, message: str) -> None:
    trace = minibert.attach(vit()).trace(pixel_values=torch.zeros(1, 3, 24, 40))
    with pytest.raises(TraceError, match=message):
        trace.view(image=image)
    with pytest.raises(TraceError, match="was given no pixel_values"):
        minibert.attach(bert()).trace(ids()).view(image=image)


def test_a_page_shows_real_tokens_and_the_vectors_give_the_weights() -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    page = minibert.attach(llama()).trace(ids(), attention_mask=mask).view(view="neuron")
    assert [len(one.about["tokens"]["text"]) for one in page.examples] == [4, 7]
    assert all(one.about["causal"] and not one.about["edited"] for one in page.examples)
    bert_page = minibert.attach(bert()).trace(ids()).view()
    assert not any(one.about["causal"] or one.about["edited"] for one in bert_page.examples)
    trace = minibert.attach(bart()).trace(input_ids=ids(), decoder_input_ids=ids(2, 5))
    assert len(trace.view(stack="decoder.self").examples) == 2
    with pytest.raises(TraceError, match="as many queries as keys"):
        trace.view(stack="decoder.cross")


def test_the_page_runs_and_prints_what_it_says() -> None:
    names: dict[str, Any] = {}
    blocks = blocks_of(ELSEWHERE)
    assert len(blocks) == 11
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, "attach.md", "exec"), names)
        assert printed.getvalue() == block.printed, block.code
