"""Families with rotary positions: config.json, positions and tensors of transformers."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from minibert.checkpoint.config import config_from_hf, config_to_hf
from minibert.checkpoint.files import open_checkpoint, open_state_dict
from minibert.checkpoint.weights import (
    check_names,
    fit,
    has_own_decoder,
    sources,
    to_checkpoint,
    to_state_dict,
)
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.model import Model
from tests.checkpoint.small_families import (
    CASES,
    CLASSES,
    FAMILIES,
    POSITIONS,
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
    scaled = config_to_hf(said("gemma2", query_pre_attn_scalar=10.5))
    assert scaled["query_pre_attn_scalar"] == 10.5
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


FACTORS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
# What stands in config.json, in the words of transformers 4 or 5.
TURNS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_theta": 500.0}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 700.0}),
    ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
    (
        "llama",
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 16}},
    ),
    (
        "llama",
        {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3},
            "original_max_position_embeddings": 8,
        },
    ),
    ("qwen2", {"rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 1e6}),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 0.7}}),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": None}}),
    (
        "mistral",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 30.0, **YARN, "truncate": False}},
    ),
    (
        "mistral",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                **YARN,
                "mscale": 1.3,
                "mscale_all_dim": 0.6,
                "beta_fast": 8,
                "beta_slow": 0.5,
            }
        },
    ),
    ("gpt_neox", {"rotary_pct": 0.7, "rotary_emb_base": 300}),
    ("gpt_neox", {"rotary_pct": 0.67, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("gpt_neox", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.7}}),
    ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}}),
    (
        "phi3",
        {
            "rope_scaling": {"type": "longrope", **FACTORS},
            "original_max_position_embeddings": 8,
            "rope_theta": 200.0,
        },
    ),
    (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 2.0],
                "long_factor": [2.0, 5.0],
                "partial_rotary_factor": 0.75,
            },
            "original_max_position_embeddings": 8,
        },
    ),
    ("llama", {"rope_scaling": {"type": "longrope", **FACTORS, "factor": 4.0}}),
    ("gemma3_text", {"rope_theta": 700.0, "rope_local_base_freq": 30.0}),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 90.0, **YARN},
                "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
            }
        },
    ),
    ("modernbert", {"global_rope_theta": 700.0, "local_rope_theta": 30.0}),
    ("modernbert", {"rope_parameters": {"sliding_attention": {"rope_theta": 77.0}}}),
]


@pytest.mark.parametrize(("family", "said"), TURNS)
def test_rotary_positions_of_both_eras_are_those_of_transformers(
    family: str, said: dict[str, Any]
) -> None:
    name = CLASSES[family][0]
    usual = {k: v for k, v in FAMILIES[family][2].items() if k not in said and k != "rotary_pct"}
    content = {"model_type": family, **usual, **copy.deepcopy(said)}
    config = config_from_hf(content)
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
            angles = at[0, :, None] * torch.cat([rotary.frequencies(length)] * 2)
            # Their angles are products of float32, which at position 92 are off by 1e-5.
            expected = {"atol": 5e-5, "rtol": 0}
            torch.testing.assert_close(cosine[0], angles.cos() * rotary.amplitude, **expected)
            torch.testing.assert_close(sine[0], angles.sin() * rotary.amplitude, **expected)


@pytest.mark.parametrize(
    ("family", "said", "n_positions"),
    [
        ("llama", {}, POSITIONS),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}, 77),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 62),
        ("llama", {"rope_scaling": {"type": "llama3", **LLAMA3}}, POSITIONS),
        ("llama", {"rope_scaling": {"type": "yarn", **YARN}}, 32),
        ("llama", {"rope_scaling": {"type": "yarn", **YARN, "factor": 2.0}}, POSITIONS),
        ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}}, POSITIONS),
        ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}}, POSITIONS),
    ],
)
def test_a_stretched_model_reads_longer_texts(
    family: str, said: dict[str, Any], n_positions: int
) -> None:
    content = {"model_type": family, **FAMILIES[family][2], **said}
    assert config_from_hf(content).n_positions == n_positions


def wanted(config: Config) -> dict[str, tuple[int, ...]]:
    """Every parameter of a model of ours; a tied decoder is none."""
    with torch.device("meta"):
        return {name: tuple(one.shape) for name, one in Model(config).named_parameters()}


@pytest.mark.parametrize(("family", "name", "changed"), CASES)
def test_every_tensor_of_transformers_is_a_parameter_of_ours_and_comes_back(
    family: str, name: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    model = hf_model(family, name, **changed)
    config = config_from_hf(as_json(model.config))
    live = model.state_dict()
    shapes = wanted(config)
    # fit raises for every tensor that is missing, unexpected or of another shape.
    check_names(config, open_state_dict(live), where=name)
    entries = open_state_dict({k: v for k, v in live.items() if not is_tied(config, k)})
    found = fit(config, shapes, entries, where=name)
    views = {ours: source.view(entry.load()) for ours, (source, entry) in found.items()}
    assert {ours: tuple(view.shape) for ours, view in views.items()} == shapes
    for ours, (source, entry) in found.items():
        shared = (
            views[ours].untyped_storage().data_ptr() == entry.load().untyped_storage().data_ptr()
        )
        assert shared == source.is_view
    assert_same(to_state_dict(config, views), live)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert_same(to_checkpoint(config, views), stored)
    fit(config, shapes, open_checkpoint(tmp_path), where=name)


def is_tied(config: Config, name: str) -> bool:
    return config.tied and name in ("lm_head.weight", "decoder.weight")


def assert_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(mine[name], tensor), name


def test_only_rows_of_several_blocks_are_copied() -> None:
    copied = {
        family
        for family in CLASSES
        for source in sources(config_from_hf(as_json(hf_config(family)))).values()
        if not source.is_view
    }
    assert copied == {"gpt_neox"}


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "modernbert"])
def test_a_decoder_that_is_not_the_embedding_counts(family: str) -> None:
    name = next(name for name in CLASSES[family] if name.endswith(("CausalLM", "MaskedLM")))
    for tied in (False, True):
        model = hf_model(family, name, tie_word_embeddings=tied)
        config = config_from_hf(as_json(model.config))
        assert config.tied == tied
        assert has_own_decoder(config, open_state_dict(model.state_dict())) is not tied


def test_buffers_of_old_files_are_left_out() -> None:
    for family, extra in {
        "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
        "gpt_neox": [
            "gpt_neox.layers.1.attention.bias",
            "gpt_neox.layers.1.attention.masked_bias",
            "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
        ],
    }.items():
        model = hf_model(family, CLASSES[family][1])
        tensors = {**model.state_dict(), **dict.fromkeys(extra, torch.ones(1))}
        config = config_from_hf(as_json(model.config))
        fit(config, wanted(config), open_state_dict(tensors), where=family)
        tensors["gpt_neox.layers.1.attention.other"] = torch.ones(1)
        with pytest.raises(CheckpointError, match=r"unexpected  .*attention\.other"):
            fit(config, wanted(config), open_state_dict(tensors), where=family)
