"""The families with rotary positions: their config.json says what it says to transformers."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from minibert.checkpoint.config import config_from_hf, config_to_hf
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from tests.checkpoint.small_families import (
    CASES,
    CLASSES,
    FAMILIES,
    VOCABULARY,
    as_json,
    hf_class,
    hf_config,
    hf_model,
)

YARN = {"factor": 4.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(("family", "name", "changed"), CASES)
def test_a_config_survives_the_way_to_transformers_and_back(
    family: str, name: str, changed: dict[str, Any]
) -> None:
    content = as_json(hf_config(family, **changed)) | {"architectures": [name]}
    config = config_from_hf(content)
    written = config_to_hf(config)
    assert written["architectures"] == [name]
    assert config_from_hf(written) == config
    again = as_json(hf_class(family)(**copy.deepcopy(written)))
    assert config_from_hf(again | {"architectures": [name]}) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(family: str) -> None:
    whole = as_json(hf_class(family)())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    short = {name: whole[name] for name in sizes}
    assert config_from_hf({"model_type": family, **short}) == config_from_hf(whole)


WINDOWS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("mistral", {"sliding_window": None}),
    ("phi3", {"sliding_window": None}),
    ("phi3", {"sliding_window": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    ("qwen2", {"sliding_window": 4, "max_window_layers": 0}),
    (
        "qwen3",
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    ("gemma2", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
    ("gemma3_text", {"sliding_window_pattern": 3}),
    ("modernbert", {"local_attention": 5}),
    ("modernbert", {"local_attention": 1, "global_attn_every_n_layers": 3}),
    ("modernbert", {"layer_types": ["sliding_attention"] * 3}),
]


@pytest.mark.parametrize(("family", "said"), WINDOWS)
def test_each_layer_sees_what_it_sees_in_transformers(family: str, said: dict[str, Any]) -> None:
    model = hf_model(family, CLASSES[family][0], **said)
    config = config_from_hf(as_json(model.config))
    length = 11
    ids = torch.arange(4, 4 + length)[None] % VOCABULARY
    with torch.no_grad():
        patterns = model(ids, output_attentions=True).attentions
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    for layer, pattern in enumerate(patterns):
        before, after = config.window(layer) or (length, length)
        allowed = (key >= query - before) & (key <= query + after)
        allowed &= (key <= query) | torch.tensor(not config.causal)
        assert torch.equal(pattern[0].amin(0) > 0, allowed), f"layer {layer}"
        assert torch.equal(pattern[0].amax(0) > 0, allowed), f"layer {layer}"


def test_names_and_numbers_that_old_files_have_are_read_as_transformers_reads_them() -> None:
    def said(family: str, **changed: Any) -> Config:
        return config_from_hf({"model_type": family, **FAMILIES[family][2], **changed})

    assert said("gemma", hidden_act="gelu").activation == "gelu_tanh"
    assert said("gemma2", hidden_activation="gelu").activation == "gelu"
    assert said("gemma2", query_pre_attn_scalar=144).attention_scale(0) == 1 / 12
    assert said("gemma2", attn_logit_softcapping=None).attention_soft_cap is None
    assert said("gemma3_text", final_logit_softcapping=9.0).logit_soft_cap == 9.0
    assert said("llama", eos_token_id=[5, 7]).end_ids == (5, 7)
    assert said("gpt_neox", use_parallel_residual=False).parallel is False
    assert said("modernbert", classifier_pooling="mean").pooling == "mean"
    code = "modeling_phi3.Phi3ForCausalLM"
    assert said("phi3", auto_map={"AutoModelForCausalLM": code}).family == "phi3"


NESTED = {"full_attention": {"rope_type": "default"}}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, r"'su'.*longrope"),
    ("llama", {"rope_scaling": {"type": "linear"}}, r"factor is None.*positive"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": float("inf")}}, r"factor is inf"),
    ("llama", {"rope_scaling": [1]}, r"rope_scaling is \[1\].*dictionary"),
    ("llama", {"rope_scaling": {"type": "longrope"}}, r"short_factor is None"),
    ("llama", {"rope_parameters": NESTED}, r"full_attention.*all layers"),
    ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0.5"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor is 0.5"),
    ("llama", {"rope_theta": "big"}, r"rope_theta is 'big'"),
    ("llama", {"num_key_value_heads": 3}, r"4 heads cannot share 3"),
    ("llama", {"head_dim": 7}, r"dims.*even"),
    ("llama", {"is_causal": False}, r"is_causal is False"),
    ("llama", {"per_layer_config": {"0": {}}}, r"per_layer_config"),
    ("mistral", {"sliding_window": 0}, r"sliding_window is 0"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, r"layer_types.*all layers"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, r"sliding_window.*turned off"),
    ("qwen2", {"layer_types": ["full_attention"]}, r"layer_types.*each of 3 layers"),
    ("qwen2", {"layer_types": ["chunked_attention"] * 3}, r"layer_types.*sliding_attention"),
    ("gemma2", {"query_pre_attn_scalar": 0}, r"query_pre_attn_scalar is 0"),
    ("gemma2", {"sliding_window": None}, r"sliding_window is null"),
    ("gemma3_text", {"use_bidirectional_attention": True}, r"use_bidirectional_attention"),
    ("gemma3_text", {"sliding_window_pattern": 0}, r"sliding_window_pattern is 0"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping"),
    ("phi3", {"rope_scaling": {"type": "yarn", **YARN}}, r"'yarn'.*default, longrope"),
    ("phi3", {"auto_map": {"AutoModel": "modeling_other.Phi3"}}, r"auto_map"),
    ("modernbert", {"classifier_pooling": "max"}, r"classifier_pooling is 'max'"),
    ("modernbert", {"local_attention": -1}, r"local_attention is -1"),
    ("gpt_neox", {"head_dim": 8}, r"head_dim is 8"),
]


@pytest.mark.parametrize(("family", "change", "message"), WRONG)
def test_what_cannot_be_is_an_error_that_says_why(
    family: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"(?s)config.*{message}"):
        config_from_hf({"model_type": family, **FAMILIES[family][2], **change})


def test_choices_that_a_family_has_no_place_for_are_not_written() -> None:
    mistral, qwen = (
        config_from_hf({"model_type": family, **FAMILIES[family][2]})
        for family in ("mistral", "qwen2")
    )
    with pytest.raises(CheckpointError, match="some layers have windows"):
        config_to_hf(replace(mistral, windows=(5, 0, 5)))
    with pytest.raises(CheckpointError, match="windows of 3, 5"):
        config_to_hf(replace(qwen, windows=(5, 0, 3)))
    assert qwen.rotary is not None
    with pytest.raises(CheckpointError, match="turns 4 of 6"):
        config_to_hf(replace(qwen, rotary=replace(qwen.rotary, dims=4)))
