"""The families with rotary positions: their tensors are those of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from minibert.checkpoint.config import config_from_hf
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
from tests.checkpoint.small_families import (
    CASES,
    CLASSES,
    LABELS,
    as_json,
    hf_config,
    hf_model,
)

Shapes = dict[str, tuple[int, ...]]


def norm(name: str, width: int, config: Config) -> Shapes:
    biased = config.norm == "layer" and config.norm_bias
    return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if biased else {})


def linear(name: str, out: int, into: int, bias: bool) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def layer_shapes(config: Config, layer: int) -> Shapes:
    """The parameters of one layer by our names."""
    here = f"body.groups.{layer}"
    queries, keys = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    shapes: Shapes = {}
    for name, rows in (("query", queries), ("key", keys), ("value", keys)):
        shapes |= linear(f"{here}.attention.{name}", rows, config.d_model, config.query_bias)
    shapes |= linear(f"{here}.attention.output", config.d_model, queries, config.output_bias)
    if config.query_key_norm != "none":
        by_head = config.query_key_norm == "head"
        for name, width in (("query", queries), ("key", keys)):
            norm_width = config.d_head if by_head else width
            shapes |= norm(f"{here}.attention.{name}_norm", norm_width, config)
    for name in ("gate", "up") if config.gated else ("up",):
        shapes |= linear(f"{here}.mlp.{name}", config.d_mlp, config.d_model, config.mlp_bias)
    shapes |= linear(f"{here}.mlp.down", config.d_model, config.d_mlp, config.mlp_bias)
    if config.norm_place in ("before", "both"):
        if layer or config.first_norm:
            shapes |= norm(f"{here}.attention_norm", config.d_model, config)
        shapes |= norm(f"{here}.mlp_norm", config.d_model, config)
    if config.norm_place in ("output", "both"):
        shapes |= norm(f"{here}.attention_output_norm", config.d_model, config)
        shapes |= norm(f"{here}.mlp_output_norm", config.d_model, config)
    return shapes


def wanted(config: Config) -> Shapes:
    """Every parameter of a model of ours, by what its Config says; a tied decoder is none."""
    shapes: Shapes = {"body.word.weight": (config.vocab_size, config.d_model)}
    if config.embed_norm:
        shapes |= norm("body.embed_norm", config.d_model, config)
    for layer in range(config.n_layers):
        shapes |= layer_shapes(config, layer)
    shapes |= norm("body.final_norm", config.d_model, config)
    if config.family == "modernbert" and config.task != "none":
        shapes |= linear("head.transform", config.d_model, config.d_model, config.head_bias)
        shapes |= norm("head.norm", config.d_model, config)
    if config.task in ("causal-lm", "masked-lm"):
        bias = config.task == "masked-lm" and config.decoder_bias
        decoder = linear("head.decoder", config.vocab_size, config.d_model, bias)
        shapes |= {k: v for k, v in decoder.items() if k.endswith("bias") or not config.tied}
    elif config.task != "none":
        n_out = 2 if config.task == "question-answering" else LABELS
        last_token = config.causal and config.task == "sequence-classification"
        shapes |= linear("head.classifier", n_out, config.d_model, not last_token)
    return shapes


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
