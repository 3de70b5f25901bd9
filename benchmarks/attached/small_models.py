"""Small random models of every type that transformers has, by their configs' usual field names.

config class ──known fields shrunk──▶ config ──▶ model ──inputs its forward names──▶ a run
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8
#: What a field is set to where a config has it and it is a whole number or None.
_FIELDS: tuple[tuple[int, str], ...] = (
    (
        WIDTH,
        "hidden_size d_model n_embd embed_dim encoder_hidden_size decoder_hidden_size dim "
        "embedding_size projection_dim projector_hidden_size text_hidden_size out_hidden_size "
        "output_hidden_size output_dim hidden_dim embedding_dim model_dim emb_dim width "
        "shared_embed_dim encoder_hidden_dim fusion_hidden_size mask_feature_size "
        "feature_size text_embed_dim d_embed word_embed_proj_dim cross_attention_hidden_size "
        "encoder_embed_dim decoder_embed_dim channels bottleneck_features pooler_output_size "
        "image_embed_dim aux_channels_dim",
    ),
    (
        HEADS,
        "num_attention_heads num_heads n_head n_heads encoder_attention_heads attention_heads "
        "decoder_attention_heads decoder_num_attention_heads num_key_value_heads_full "
        "encoder_num_attention_heads vision_heads",
    ),
    (2, "num_key_value_heads n_head_kv multi_query_group_num"),
    (
        LAYERS,
        "num_hidden_layers num_layers n_layer n_layers depth encoder_layers decoder_layers "
        "num_decoder_layers decoder_num_layers decoder_num_hidden_layers num_encoder_layers "
        "encoder_num_layers vision_layers num_blocks num_mtp_layers",
    ),
    (
        48,
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff mlp_dim n_inner "
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "dense_intermediate_size encoder_intermediate_size decoder_intermediate_size "
        "dim_feedforward hidden_dim_ffn feed_forward_size intermediate_size_mlp",
    ),
    (VOCABULARY, "vocab_size text_vocab_size"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    (2, "num_experts_per_tok n_group topk_group index_n_heads"),
    (1, "n_group topk_group first_k_dense_replace n_shared_experts"),
    (128, "max_position_embeddings n_positions max_seq_len"),
    (8, "head_dim d_kv qk_nope_head_dim v_head_dim index_head_dim"),
    (8, "qk_rope_head_dim"),
    (16, "q_lora_rank kv_lora_rank"),
    (4, "index_topk sliding_window"),
    (20, "max_source_positions"),
    (IMAGE, "image_size pretrain_image_size"),
    (16, "num_conv_pos_embeddings"),
    (2, "num_conv_pos_embedding_groups"),
    (0, "pad_token_id"),
    (1, "bos_token_id decoder_start_token_id"),
    (2, "eos_token_id forced_eos_token_id"),
    (PATCH, "patch_size"),
)
SIZES = {name: size for size, names in _FIELDS for name in names.split()}
#: The same for lists: every entry.
LISTS: dict[str, int] = {"depths": 1, "num_heads": 2, "num_attention_heads": 2, "conv_dim": WIDTH}
WIDTH_LISTS = ("hidden_sizes", "embed_dims", "embed_dim", "encoder_hidden_sizes", "dims")
#: What is changed of that, in the order in which it is tried; None leaves a field as it is.
PROFILES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": HEADS},
    {"head_dim": None},
    {"mrope_section": [2, 1, 1]},
    {"mrope_section": [2, 1, 1], "num_key_value_heads": HEADS, "head_dim": None},
    dict.fromkeys(("patch_size", "image_size")),
    {"image_size": None},
    dict.fromkeys(("embed_dim", "embedding_size", "dim", "width", "channels")),
    dict.fromkeys(("num_hidden_layers", "num_layers", "depths", "depth")),
    dict.fromkeys(("sliding_window", "index_topk", "q_lora_rank", "kv_lora_rank")),
    {"num_key_value_heads": HEADS, "head_dim": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    {"num_attention_heads": 2, "num_heads": 2, "num_key_value_heads": 2},
    {"num_experts_per_tok": 1, "num_key_value_heads": HEADS},
    {"hidden_size": 64, "head_dim": 16, "num_key_value_heads": HEADS},
    dict.fromkeys(SIZES.keys() - {"num_hidden_layers", "vocab_size", "intermediate_size"}),
    dict.fromkeys(SIZES.keys() - {"num_hidden_layers"}),
)


def small_configs(kind: type) -> Iterator[Any]:
    """Small configs of a class, one for each profile that it takes."""
    seen: set[str] = set()
    for profile in PROFILES:
        try:
            config = kind(**_shrunk(kind, profile))
        except Exception:
            continue
        config._attn_implementation = "eager"
        # Profiles of what the class does not have give the same config.
        if (written := repr(config)) not in seen:
            seen.add(written)
            yield config


def _shrunk(kind: type, profile: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a small config, those of the configs inside it included."""
    default = kind()
    found: dict[str, Any] = {}
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(vars(default))
    for name in names:
        value = getattr(default, name, None)
        size = profile.get(name, SIZES.get(name))
        if isinstance(value, bool) or (size is None and name in profile):
            continue
        if isinstance(value, int) and size is not None:
            found[name] = min(value, size) if "token_id" not in name else size
        elif isinstance(value, list | tuple) and value and isinstance(value[0], int):
            found |= _shrunk_list(name, value)
    if "mrope_section" in profile and isinstance(getattr(default, "rope_parameters", 0), dict):
        section = {"mrope_section": profile["mrope_section"]}
        found["rope_parameters"] = {**default.rope_parameters, **section}
    for name in getattr(kind, "sub_configs", {}):
        inside = getattr(default, name, None)
        if inside is not None:
            of_inside = _shrunk(type(inside), profile)
            found[name] = {"model_type": inside.model_type, **of_inside}
    return found


def _shrunk_list(name: str, value: Any) -> dict[str, Any]:
    if name in LISTS:
        return {name: type(value)([LISTS[name]] * len(value))}
    if name in WIDTH_LISTS:
        return {name: type(value)([max(8, one * WIDTH // value[0]) for one in value])}
    if name == "image_size":
        return {name: type(value)([IMAGE] * len(value))}
    return {}


def candidates(kind: type) -> Iterator[type[nn.Module]]:
    """The model classes of a config class, the bare model first."""
    module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    found = [
        one
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, nn.Module)
        and getattr(one, "config_class", None) is kind
        and one.__module__ == module.__name__
        and "pretrained" not in name.lower()
    ]
    names = {one: one.__name__ for one in found}
    order = sorted(found, key=lambda one: (not names[one].endswith("Model"), len(names[one])))
    return iter(order)


def inputs_for(model: nn.Module) -> Iterator[Mapping[str, Tensor]]:
    """Inputs that the model may take, by the names in its forward: text, then pictures, sound."""
    taken = set(inspect.signature(model.forward).parameters)
    config: Any = model.config
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 50, (2, 7), generator=generator)
    text = {"input_ids": ids}
    if "bbox" in taken:
        text["bbox"] = torch.zeros(2, 7, 4, dtype=torch.long)
    if "decoder_input_ids" in taken and getattr(config, "is_encoder_decoder", False):
        text["decoder_input_ids"] = ids[:, :5].flip(1)
    pictures = list(_pictures(config, generator))
    sounds = list(_sounds(config, generator))
    if "input_ids" in taken:
        yield text
        yield {"input_ids": ids}
    decoder = {name: text[name] for name in ("decoder_input_ids",) if name in text}
    for name, values in (
        ("pixel_values", pictures),
        ("pixel_values_videos", pictures),
        ("input_features", sounds),
        ("input_values", sounds),
    ):
        for value in values if name in taken else ():
            yield {name: value, **decoder}
            if "input_ids" in taken:
                yield {**text, name: value}
    if "inputs_embeds" in taken or "hidden_states" in taken:
        name = "inputs_embeds" if "inputs_embeds" in taken else "hidden_states"
        yield {name: torch.randn(2, 7, WIDTH, generator=generator)}


def _pictures(config: Any, generator: torch.Generator) -> Iterator[Tensor]:
    inside = [getattr(config, name, None) for name in getattr(type(config), "sub_configs", {})]
    of = next((one for one in (config, *inside) if hasattr(one, "image_size")), config)
    size = getattr(of, "image_size", IMAGE)
    size = max(size) if isinstance(size, list | tuple) else size
    channels = next((getattr(of, name) for name in ("num_channels", "in_channels", "in_chans")
                     if isinstance(getattr(of, name, None), int)), 3)  # fmt: skip
    if not isinstance(size, int) or size > 256:
        size = 64
    for side in dict.fromkeys((size, 64, 224)):
        yield torch.randn(2, channels, side, side, generator=generator)
    frames = getattr(config, "num_frames", None) or 4
    yield torch.randn(2, frames, channels, size, size, generator=generator)
    # A row a patch, as the models of many resolutions take them.
    yield torch.randn(16, channels * PATCH * PATCH, generator=generator)


def _sounds(config: Any, generator: torch.Generator) -> Iterator[Tensor]:
    bins = next((getattr(config, name) for name in
                 ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel")
                 if isinstance(getattr(config, name, None), int)), 80)  # fmt: skip
    length = 2 * getattr(config, "max_source_positions", 20)
    yield torch.randn(2, bins, length, generator=generator)
    yield torch.randn(2, 40, bins, generator=generator)
    yield torch.randn(2, 4000, generator=generator)
    yield torch.randn(2, 1, 4000, generator=generator)
    yield torch.randn(2, 1024, 128, generator=generator)
