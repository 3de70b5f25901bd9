"""attn_implementation="minibert" computes what the model's own attention computes, or refuses."""

import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AlignTextConfig,
    AlignTextModel,
    BartForConditionalGeneration,
    BigBirdPegasusConfig,
    BigBirdPegasusForCausalLM,
    GitConfig,
    GitForCausalLM,
)

from minibert.errors import AttentionError
from minibert.transformers_attention import attention
from tests.attached.interface_calls import check, drawn
from tests.attached.live_models import bart, bert_mlm, gpt2, ids, llama, made
from tests.attached.test_measuring import MODELS

OWN = {"gemma2": "eager", "gpt_oss": "eager"}


@given(st.integers(0, 2**40))
def test_any_call_has_the_numbers_of_float64(seed: int) -> None:
    check(drawn(random.Random(seed)))


@pytest.mark.parametrize("cache", ["dynamic", "static", "quantized"])
@pytest.mark.parametrize("name", [*MODELS, "bart"])
def test_the_same_words_are_written_with_every_cache(name: str, cache: str) -> None:
    model = MODELS[name]() if name in MODELS else bart(BartForConditionalGeneration)
    if cache == "quantized" and name in ("mistral", "gemma2", "gpt_oss", "bart"):
        pytest.skip("transformers quantises no cache with windows or of two stacks")
    options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    options |= {"pad_token_id": 0, "cache_implementation": cache}
    if cache == "quantized":
        options["cache_config"] = {"backend": "fp8"}
    mask = torch.ones_like(ids())
    mask[0, :3] = 0
    written = []
    for way in (OWN.get(name, "sdpa"), "minibert"):
        model.set_attn_implementation(way)
        written += [
            model.generate(ids(), **options),
            model.generate(ids(), attention_mask=mask, **options),
        ]
    assert torch.equal(written[0], written[2])
    assert torch.equal(written[1], written[3])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_training_and_texts_packed_or_padded_on_the_right(name: str) -> None:
    model = bert_mlm() if name == "bert" else MODELS[name]()
    mask = torch.ones_like(ids())
    mask[1, 4:] = 0
    given: list[dict[str, Any]] = [{"input_ids": ids(), "attention_mask": mask}]
    if name != "bert":
        starts = torch.cat([torch.arange(3), torch.arange(4)])[None]
        # With a cache transformers does not see that texts are packed.
        given.append({"input_ids": ids(1), "position_ids": starts, "use_cache": False})
    for inputs in given:
        found = []
        for way in ("eager", "minibert"):
            model.set_attn_implementation(way)
            model.zero_grad()
            logits = model(**inputs).logits
            kept = logits[mask.bool()] if "attention_mask" in inputs else logits
            kept.square().mean().backward()
            grads = [one.grad for one in model.parameters() if one.grad is not None]
            found.append([kept.detach(), *grads])
        for own, ours in zip(*found, strict=True):
            assert (own - ours).abs().max() <= 2e-5 * max(1, float(own.abs().max()))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_texts_packed_by_cu_seq_lens_are_those_texts_alone(name: str) -> None:
    # transformers' own eager attention of gpt_oss does not look at where a packed text begins.
    model = MODELS[name]()
    alone = [model(text, use_cache=False).logits for text in (ids(1)[:, :3], ids(1)[:, 3:])]
    model.set_attn_implementation("minibert")
    starts = torch.cat([torch.arange(3), torch.arange(4)])[None]
    ends = torch.tensor([0, 3, 7], dtype=torch.int32)
    packed = model(ids(1), position_ids=starts, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    assert (packed.logits - torch.cat(alone, 1)).abs().max() < 2e-5


def test_what_is_not_known_is_refused_by_its_name() -> None:
    model = gpt2(attn_pdrop=0.5).train()
    model.set_attn_implementation("minibert")
    with pytest.raises(AttentionError, match=r"GPT2Attention drops attention weights, dropout=0.5"):
        model(ids())
    model.eval()
    with pytest.raises(AttentionError, match="GPT2Attention gives its attention block_indices=Ten"):
        model(ids(), block_indices=torch.ones(1))
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(AttentionError, match=r"as torch.float32, torch.bfloat16"):
        attention(torch.nn.Linear(1, 1), query, query.bfloat16(), query, None)
    with torch.autocast("cpu"):
        z, _ = attention(torch.nn.Linear(1, 1), query, query.bfloat16(), query, None)
    assert z.dtype == torch.bfloat16
    for ends in ([1, 3], [0, 2, 1, 3], [0, 4], []):
        with pytest.raises(AttentionError, match="rising numbers from 0 to at most 3"):
            attention(
                torch.nn.Linear(1, 1), query, query, query, None, cu_seq_lens_q=torch.tensor(ends)
            )
    with pytest.raises(AttentionError, match="Linear gives a mask that is function"):
        attention(torch.nn.Linear(1, 1), query, query, query, lambda b, h, q, k: q >= k)  # type: ignore[arg-type]


def test_weights_are_given_to_a_model_that_asks_for_them() -> None:
    model = llama()
    model.set_attn_implementation("minibert")
    found = model(ids(), output_attentions=True).attentions
    model.set_attn_implementation("eager")
    own = model(ids(), output_attentions=True).attentions
    for mine, its in zip(found, own, strict=True):
        assert (mine - its).abs().max() < 1e-5


#: In a process of its own: torch.compile does not know the checks of shapes that the tests install.
PROGRAM = """
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, StaticCache
import minibert, minibert.transformers_attention
from tests.attached.live_models import ids, llama, made
from tests.attached.test_measuring import SIZES

layers = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
for model in (llama(num_hidden_layers=1), made(Gemma2ForCausalLM, Gemma2Config, SIZES, layers)):
    model.set_attn_implementation("eager")
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    own = model.generate(ids(), max_new_tokens=65, **options)
    model.set_attn_implementation("minibert")
    graphs = []
    def count(graph, example):
        graphs.append(graph)
        return graph
    step = torch.compile(model.forward, fullgraph=True, backend=count)
    cache = StaticCache(config=model.config, max_cache_len=80)
    with torch.no_grad():
        logits = model(ids(), past_key_values=cache, use_cache=True).logits
        text = [ids(), logits[:, -1:].argmax(-1)]
        for _ in range(64):
            logits = step(text[-1], past_key_values=cache, use_cache=True).logits
            text.append(logits[:, -1:].argmax(-1))
    assert len(graphs) == 1, len(graphs)
    assert torch.equal(torch.cat(text, 1), own), type(model)
    try:
        with minibert.measuring(model), torch.no_grad():
            model(ids(), past_key_values=(cache := StaticCache(model.config, max_cache_len=80)))
            step(text[-1], past_key_values=cache, use_cache=True)
    except minibert.TraceError as error:
        assert "8 tokens, of which the first 7 were measured" in str(error), error
    else:
        raise AssertionError("a compiled step was not measured, and nothing said so")
    torch.compiler.reset()
"""


def test_64_compiled_steps_with_a_static_cache_are_one_graph() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True, text=True, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_models_that_do_not_support_sdpa_get_their_masks_in_full() -> None:
    # Their modules do not say whether they are causal, or say what does not hold.
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    text |= {"intermediate_size": 40, "initializer_range": 0.3}
    decoder = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 4}
    decoder |= {"decoder_ffn_dim": 40, "init_std": 0.3, "max_position_embeddings": 64}
    vision = {name: text[name] for name in text if name != "initializer_range"}
    for model in (
        # Its own attention adds the mask, without the interface.
        made(GitForCausalLM, GitConfig, text, {"vision_config": vision | {"image_size": 32}}),
        made(AlignTextModel, AlignTextConfig, text, {}),
        made(BigBirdPegasusForCausalLM, BigBirdPegasusConfig, decoder, {}),
    ):
        found = []
        for way in ("eager", "minibert"):
            model.set_attn_implementation(way)
            with torch.no_grad():
                found.append(model(ids())[0])
        assert (found[0] - found[1]).abs().max() < 1e-5
    # BridgeTower calls attention causal that looks both ways, and gives it no mask.
    module = next(one for one in model.modules() if hasattr(one, "is_causal"))
    module.is_causal = True
    query = torch.randn(1, 2, 5, 4)
    both_ways = (query @ query.mT / 2).softmax(-1) @ query
    for function in (attention, torch.compile(attention, fullgraph=True, backend="eager")):
        z, _ = function(module, query, query, query, None)
        assert (z.transpose(1, 2) - both_ways).abs().max() < 1e-5
