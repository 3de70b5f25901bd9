"""Pages of live models, BertViz' functions on them, and docs/attach.md, which runs."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    T5Config,
    T5Model,
)

import minibert
from minibert import AttentionError, TraceError
from minibert.trace.edit import hide
from minibert.viz import head_view
from minibert.viz.neuron_view import show
from tests.attached.live_models import bart, bert, ids, llama
from tests.packages import REPOSITORY
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
    readme = [block for block in blocks_of(REPOSITORY / "README.md") if block.elsewhere]
    blocks = blocks_of(ELSEWHERE)
    assert (len(blocks), len(readme)) == (14, 1)
    for block in [*blocks, *readme]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, "attach.md", "exec"), names)
        assert printed.getvalue() == block.printed, block.code


def test_what_others_asked_for_runs() -> None:
    [block] = blocks_of(REPOSITORY / "docs" / "upstream.md")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.code, "upstream.md", "exec"), {})
    assert printed.getvalue() == block.printed
