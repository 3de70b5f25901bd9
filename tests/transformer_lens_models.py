"""The weights of a transformers model in TransformerLens, of whichever version is installed.

3.9 is the last version with a hooked model of its own, HookedTransformer; 4.3 wraps those of
transformers in a bridge. Weights are processed only as the caller asks.
"""

from copy import deepcopy
from importlib.metadata import version
from typing import Any

import pytest
import tokenizers
import torch
import transformers

# What HookedTransformer.from_pretrained does to weights.
PROCESSING = ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases")


def transformer_lens(*, major: int | None = None) -> Any:
    """The package; the test is skipped where it is absent or another version."""
    lens = pytest.importorskip("transformer_lens")
    if major not in (None, installed := int(version("transformer_lens").split(".")[0])):
        pytest.skip(f"about TransformerLens {major}, and {installed} is installed")
    return lens


def hooked(theirs: Any, **processing: bool) -> Any:
    """HookedTransformer with the weights of a GPT-2."""
    lens = transformer_lens(major=3)
    from transformer_lens.pretrained import weight_conversions as convert

    hf = theirs.config
    config = lens.HookedTransformerConfig(
        n_layers=hf.num_hidden_layers,
        d_model=hf.hidden_size,
        n_ctx=hf.max_position_embeddings,
        d_head=hf.hidden_size // hf.num_attention_heads,
        n_heads=hf.num_attention_heads,
        d_mlp=hf.n_inner,
        d_vocab=hf.vocab_size,
        act_fn=hf.activation_function,
        normalization_type="LN",
        eps=hf.layer_norm_epsilon,
        attention_dir="causal",
        # Processing asks for it.
        original_architecture=type(theirs).__name__,
        dtype=torch.float32,
        device="cpu",
        use_attn_result=True,
    )
    model = lens.HookedTransformer(config)
    state = convert.convert_gpt2_weights(theirs, config)
    off = dict.fromkeys(PROCESSING, False)
    model.load_and_process_state_dict(state, **off | processing)
    return model


def hooked_rotary(theirs: Any, dtype: torch.dtype) -> Any:
    """HookedTransformer with the weights of a Pythia, Llama or Gemma 2, without a network."""
    lens = transformer_lens(major=3)
    from transformer_lens.pretrained import weight_conversions as convert

    hf, kind = theirs.config, theirs.config.model_type
    heads = hf.num_attention_heads
    d_head = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    options: dict[str, Any] = {
        "normalization_type": "RMS",
        "final_rms": True,
        "gated_mlp": True,
        "n_key_value_heads": getattr(hf, "num_key_value_heads", None),
        "rotary_dim": d_head,
    }
    converter = {"llama": convert.convert_llama_weights, "gemma2": convert.convert_gemma_weights}
    if kind == "gpt_neox":
        converter[kind] = convert.convert_neox_weights
        share = hf.rope_parameters["partial_rotary_factor"]
        options = {
            "normalization_type": "LN",
            "parallel_attn_mlp": hf.use_parallel_residual,
            "rotary_dim": round(share * d_head),
        }
    if kind == "gemma2":
        options |= {
            "use_normalization_before_and_after": True,
            "attn_scale": hf.query_pre_attn_scalar**0.5,
            "attn_scores_soft_cap": hf.attn_logit_softcapping,
            "output_logits_soft_cap": hf.final_logit_softcapping,
            "window_size": hf.sliding_window,
            "use_local_attn": True,
            "attn_types": [
                {"sliding_attention": "local", "full_attention": "global"}[each]
                for each in hf.layer_types
            ],
        }
    config = lens.HookedTransformerConfig(
        n_layers=hf.num_hidden_layers,
        d_model=hf.hidden_size,
        n_ctx=hf.max_position_embeddings,
        d_head=d_head,
        n_heads=heads,
        d_mlp=hf.intermediate_size,
        d_vocab=hf.vocab_size,
        act_fn=hf.hidden_activation if kind == "gemma2" else hf.hidden_act,
        eps=hf.layer_norm_eps if kind == "gpt_neox" else hf.rms_norm_eps,
        positional_embedding_type="rotary",
        rotary_adjacent_pairs=False,
        rotary_base=hf.rope_parameters["rope_theta"],
        original_architecture=type(theirs).__name__,
        dtype=dtype,
        device="cpu",
        use_attn_result=True,
        **options,
    )
    model = lens.HookedTransformer(config)
    off = dict.fromkeys(PROCESSING, False)
    model.load_and_process_state_dict(converter[kind](theirs, config), **off)
    return model


def bridge(theirs: Any) -> Any:
    """TransformerLens 4's wrapper around a copy of a GPT-2 of transformers."""
    transformer_lens(major=4)
    from transformer_lens.model_bridge import TransformerBridge

    # A name is asked for, and a tokenizer under that name fetched, unless there is one.
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<eos>": 0}, unk_token="<eos>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    # A copy: the bridge puts modules of its own into the model.
    return TransformerBridge.boot_transformers(
        "gpt2", hf_model=deepcopy(theirs), tokenizer=tokenizer, device="cpu"
    )
