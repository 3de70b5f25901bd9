"""Rotary positions in config.json, of both eras, are those of transformers."""

import copy
from typing import Any

import pytest
import torch

from minibert.checkpoint.config import config_from_hf, config_to_hf
from tests.checkpoint.small_families import (
    CLASSES,
    FAMILIES,
    POSITIONS,
    as_json,
    hf_class,
    hf_model,
)

FACTORS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
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
