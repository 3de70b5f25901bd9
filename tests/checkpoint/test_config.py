"""A Config says what transformers' configuration says, both ways, or says what is wrong."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert.checkpoint.config import MODEL_TYPES, config_from_hf, config_to_hf
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from tests import families
from tests.checkpoint.small_families import (
    FAMILIES,
    POSITIONS,
    as_json,
    hf_class,
    hf_config,
    hf_model,
)
from tests.families import ARCHITECTURES, Sizes, sizes
from tests.rotary.classes import CLASSES

YARN = {"factor": 4.0, "original_max_position_embeddings": 8}


pytestmark = pytest.mark.usefixtures("unchecked")


def assert_fields(ours: Config, theirs: Any) -> None:
    """Our fields are transformers' attributes; its attribute_map has their names everywhere."""
    roberta = ours.model_type in ("roberta", "xlm-roberta", "camembert")
    reserved = theirs.pad_token_id + 1 if roberta else 0
    assert (ours.vocab_size, ours.d_model) == (theirs.vocab_size, theirs.hidden_size)
    assert (ours.n_layers, ours.n_heads) == (theirs.num_hidden_layers, theirs.num_attention_heads)
    assert ours.position_offset == reserved
    assert ours.n_positions == theirs.max_position_embeddings - reserved
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.labels == tuple(theirs.id2label[index] for index in range(theirs.num_labels))
    assert ours.model_type == theirs.model_type
    assert ours.d_head == theirs.hidden_size // theirs.num_attention_heads


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=sizes)
def test_a_drawn_config_survives_the_way_to_transformers_and_back(family, name, chosen):
    theirs, named = families.hf_config(family, chosen), {"architectures": [name]}
    ours = config_from_hf(as_json(theirs) | named)
    written = config_to_hf(ours)
    json.dumps(written)
    assert written["architectures"] == [name]
    assert config_from_hf(written) == ours
    again = type(theirs)(**copy.deepcopy(written))
    assert config_from_hf(as_json(again) | named) == ours
    for each in (theirs, again):
        assert_fields(ours, each)


SIZE_NAMES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "pad_token_id",
    "max_position_embeddings", "intermediate_size", "dim", "hidden_dim", "n_layers", "n_heads",
    "n_embd", "n_layer", "n_head", "n_positions",
)  # fmt: skip


@pytest.mark.parametrize("family", sorted({*MODEL_TYPES} - {"minibert"}))
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(family):
    """config.json holds what differs from the default only; defaults differ between families."""
    rotary = family in FAMILIES
    kind = hf_class(family) if rotary else getattr(transformers, families.CONFIGS[family])
    whole = as_json(kind()) | {"model_type": family}
    names = SIZE_NAMES[:4] if rotary else SIZE_NAMES
    short = {name: whole[name] for name in names if name in whole} | {"model_type": family}
    if not rotary:
        short |= json.loads(kind().to_json_string(use_diff=True))
    assert config_from_hf(short) == config_from_hf(whole)


BERT = {
    "model_type": "bert",
    "vocab_size": 41,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 31,
}


def test_a_task_can_be_asked_for_and_a_config_without_a_class_is_of_a_bare_body():
    about = BERT | {"architectures": ["BertForPreTraining"]}
    for task in ("none", "masked-lm", "sequence-classification"):
        config = config_from_hf(about, task=task)
        assert config.task == task
        assert config.pooler == (task != "masked-lm")
    gpt2 = as_json(families.hf_config("gpt2", Sizes()))
    for architectures in (None, []):
        assert config_from_hf(gpt2 | {"architectures": architectures}).task == "none"
    with pytest.raises(CheckpointError, match=r"gpt2.*'masked-lm'.*none, causal-lm"):
        config_from_hf(gpt2, task="masked-lm")
    with pytest.raises(CheckpointError, match=r"'poetry'.*masked-lm"):
        config_from_hf(BERT, task="poetry")
    for kind in (None, "regression", "multi_label_classification"):
        config = config_from_hf(BERT | {"problem_type": kind})
        assert config.problem_type == (kind or "")
        assert transformers.BertConfig(**config_to_hf(config)).problem_type == kind


GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 5}
# What is changed, and words that must stand in the message.
WRONG_BERT: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "t5"}, r"'t5'.*known are albert, bert, .*from Python: minibert\.attach\("),
    ({"model_type": "gemma3"}, r"'gemma3'.*texts and images.*gemma3_text"),
    ({"architectures": ["BertForMultipleChoice"]}, r"'BertForMultipleChoice'.*BertForMasked.*none"),
    ({"architectures": "BertModel"}, r"architectures.*'BertModel'"),
    ({"num_attention_heads": 4}, r"4 heads do not divide a width of 15"),
    ({"model_type": "gemma", "head_dim": 10**400}, r"head_dim is 10+.*below 2\*\*63"),
    ({"hidden_size": -15}, r"hidden_size is -15; expected a positive whole number"),
    ({"vocab_size": "41"}, r"vocab_size is '41'"),
    ({"vocab_size": None}, r"vocab_size is missing"),
    ({"max_position_embeddings": True}, r"max_position_embeddings is True"),
    ({"layer_norm_eps": "small"}, r"layer_norm_eps.*'small'"),
    ({"hidden_act": "mish"}, r"'mish' is not implemented; known are gelu"),
    ({"position_embedding_type": "relative_key"}, r"'relative_key'.*'absolute'"),
    ({"add_cross_attention": True}, r"cross attention"),
    (GPT2 | {"is_causal": False}, r"is_causal is False"),
    ({"id2label": ["a", "b"]}, r"id2label"),
    ({"pad_token_id": "0", "model_type": "roberta"}, r"pad_token_id.*'0'"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"quanti[sz].*gptq"),
    ({"model_type": "roberta", "max_position_embeddings": 2}, r"positions"),
    ({"model_type": "albert", "num_hidden_groups": 3}, r"3 layer groups for 2 layers"),
    ({"model_type": "albert", "inner_group_num": 2}, r"inner_group_num"),
    ({"is_decoder": "false"}, r"is_decoder is 'false'; expected true or false"),
    ({"hidden_size": 15 * 10**14}, r"d_model is 15\d+; expected at most"),
    ({"model_type": "albert", "num_hidden_layers": 10**9}, r"n_layers is 10+; expected at most"),
    ({"num_labels": 10**9}, r"num_labels is 10+; expected at most"),
    ({"problem_type": "guess"}, r"'guess'; expected one of single_label_classification"),
]


NESTED = {"full_attention": {"rope_type": "default"}}
WRONG_ROTARY: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, r"'su'.*longrope"),
    ("llama", {"rope_scaling": {"type": "linear"}}, r"factor is None.*positive"),
    ("llama", {"rope_scaling": {"type": "longrope"}}, r"short_factor is None"),
    ("llama", {"rope_parameters": NESTED}, r"full_attention.*all layers"),
    ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0.5"),
    ("llama", {"num_key_value_heads": 3}, r"4 heads cannot share 3"),
    ("llama", {"head_dim": 7}, r"dims.*even"),
    ("llama", {"per_layer_config": {"0": {}}}, r"per_layer_config"),
    ("mistral", {"sliding_window": 0}, r"sliding_window is 0"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, r"layer_types.*all layers"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, r"sliding_window.*turned off"),
    ("qwen2", {"layer_types": ["full_attention"]}, r"layer_types.*each of 3 layers"),
    ("gemma2", {"query_pre_attn_scalar": 0}, r"query_pre_attn_scalar is 0"),
    ("gemma2", {"sliding_window": None}, r"sliding_window is null"),
    ("gemma3_text", {"use_bidirectional_attention": True}, r"use_bidirectional_attention"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping"),
    ("phi3", {"rope_scaling": {"type": "yarn", **YARN}}, r"'yarn'.*default, longrope"),
    ("phi3", {"auto_map": {"AutoModel": "modeling_other.Phi3"}}, r"auto_map"),
    ("modernbert", {"classifier_pooling": "max"}, r"classifier_pooling is 'max'"),
    ("gpt_neox", {"head_dim": 8}, r"head_dim is 8"),
]


WRONG = [
    *((BERT | change, message) for change, message in WRONG_BERT),
    *(
        ({"model_type": family, **FAMILIES[family][1], **change}, message)
        for family, change, message in WRONG_ROTARY
    ),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_a_config_that_cannot_be_is_an_error_that_says_why(content, message):
    with pytest.raises(CheckpointError, match=f"(?s)config.*{message}"):
        config_from_hf(content)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 50) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@pytest.mark.parametrize("family", sorted({*MODEL_TYPES} - {"minibert"}))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_config_the_answer_is_a_config_or_a_checkpoint_error(family, data):
    rotary = family in FAMILIES
    chosen = hf_config(family) if rotary else families.hf_config(family, Sizes())
    whole = as_json(chosen) | {"architectures": [(families.CLASSES | CLASSES)[family][0]]}
    name = data.draw(st.sampled_from(sorted(whole)))
    whole[name] = data.draw(junk)
    try:
        config = config_from_hf(whole)
    except CheckpointError:
        return
    assert config_from_hf(config_to_hf(config)) == config
    hash(config)


def test_names_and_numbers_that_old_files_have_are_read_as_transformers_reads_them():
    def said(family: str, **changed: Any) -> Config:
        return config_from_hf({"model_type": family, **FAMILIES[family][1], **changed})

    assert said("gemma", hidden_act="gelu").activation == "gelu_tanh"
    assert said("gemma2", hidden_activation="gelu").activation == "gelu"
    assert said("gemma2", query_pre_attn_scalar=144).attention_scale(0) == 1 / 12
    assert said("gemma2", attn_logit_softcapping=None).attention_soft_cap is None
    scaled = config_to_hf(said("gemma2", query_pre_attn_scalar=10.5))
    assert scaled["query_pre_attn_scalar"] == 10.5
    assert said("gemma3_text", final_logit_softcapping=9.0).logit_soft_cap == 9.0
    assert said("llama", eos_token_id=[5, 7]).end_ids == (5, 7)
    assert said("gpt_neox", use_parallel_residual=False).parallel is False
    assert said("modernbert", classifier_pooling="mean").pooling == "mean"
    code = "modeling_phi3.Phi3ForCausalLM"
    assert said("phi3", auto_map={"AutoModelForCausalLM": code}).family == "phi3"


def test_choices_that_a_family_has_no_place_for_are_not_written():
    mistral, qwen = (
        config_from_hf({"model_type": family, **FAMILIES[family][1]})
        for family in ("mistral", "qwen2")
    )
    with pytest.raises(CheckpointError, match="some layers have windows"):
        config_to_hf(replace(mistral, windows=(5, 0, 5)))
    with pytest.raises(CheckpointError, match="windows of 3, 5"):
        config_to_hf(replace(qwen, windows=(5, 0, 3)))
    assert qwen.rotary is not None
    with pytest.raises(CheckpointError, match="turns 4 of 6"):
        config_to_hf(replace(qwen, rotary=replace(qwen.rotary, dims=4)))


FACTORS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
# What stands in a config.json of transformers 4 (what is written is in the words of 5), and how
# long a text may be: linear and dynamic scalings stretch it, yarn from the length of its training.
TURNS: list[tuple[str, dict[str, Any], int]] = [
    ("llama", {"rope_theta": 500.0}, POSITIONS),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}, 77),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 700.0}, 62),
    ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, POSITIONS),
    (
        "llama",
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 16}},
        POSITIONS,
    ),
    ("llama", {"rope_scaling": {"type": "yarn", **YARN, "factor": 2.0}}, POSITIONS),
    ("qwen2", {"rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 1e6}, 32),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 0.7}}, 32),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": None}}, POSITIONS),
    ("gpt_neox", {"rotary_pct": 0.7, "rotary_emb_base": 300}, POSITIONS),
    ("gpt_neox", {"rotary_pct": 0.67, "rope_scaling": {"type": "linear", "factor": 2.0}}, 62),
    ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}}, POSITIONS),
    (
        "phi3",
        {
            "rope_scaling": {"type": "longrope", **FACTORS},
            "original_max_position_embeddings": 8,
            "rope_theta": 200.0,
        },
        POSITIONS,
    ),
    ("llama", {"rope_scaling": {"type": "longrope", **FACTORS, "factor": 4.0}}, POSITIONS),
    ("gemma3_text", {"rope_theta": 700.0, "rope_local_base_freq": 30.0}, POSITIONS),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, POSITIONS),
    ("modernbert", {"global_rope_theta": 700.0, "local_rope_theta": 30.0}, POSITIONS),
]


@pytest.mark.parametrize(("family", "said", "longest"), TURNS)
def test_rotary_positions_of_both_eras_are_those_of_transformers(family, said, longest):
    name = CLASSES[family][0]
    usual = {k: v for k, v in FAMILIES[family][1].items() if k not in said and k != "rotary_pct"}
    content = {"model_type": family, **usual, **copy.deepcopy(said)}
    config = config_from_hf(content)
    assert config.n_positions == longest
    model = hf_model(family, name, **{"rotary_pct": 0.25, **copy.deepcopy(said)})
    assert config_from_hf(as_json(model.config) | {"architectures": None}) == config
    assert config_from_hf(config_to_hf(config)) == config
    written = hf_class(family)(**copy.deepcopy(config_to_hf(config)))
    assert config_from_hf(as_json(written) | {"architectures": None}) == config
    for layer in range(config.n_layers):
        rotary = config.rotary_of(layer)
        assert rotary is not None
        for length in (5, 3 * POSITIONS):
            at = torch.arange(length)[None]
            table = model.rotary_emb
            kinds = [model.config.layer_types[layer]] if hasattr(table, "layer_types") else []
            cosine, sine = table(torch.zeros(1, dtype=torch.float64), at, *kinds)
            frequencies = torch.tensor(rotary.frequencies(length) * 2, dtype=torch.float64)
            angles = at[0, :, None] * frequencies
            # Their angles are products of float32, which at position 92 are off by 1e-5.
            expected = {"atol": 5e-5, "rtol": 0}
            torch.testing.assert_close(cosine[0], angles.cos() * rotary.amplitude, **expected)
            torch.testing.assert_close(sine[0], angles.sin() * rotary.amplitude, **expected)
