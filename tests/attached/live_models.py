"""Small random models of transformers, for the tests of `minibert.attach`."""

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

VOCABULARY = 59


def ids(batch: int = 2, position: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(5, VOCABULARY, (batch, position), generator=generator)


def made(kind: Any, config: Any, sizes: dict[str, Any], changes: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return kind(config(**({"vocab_size": VOCABULARY} | sizes | changes))).eval()


def llama(**changes: Any) -> LlamaForCausalLM:
    """3 layers, 6 heads that share 2 key-value heads of width 8."""
    sizes = {
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "hidden_size": 48, "intermediate_size": 40, "initializer_range": 0.3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return made(LlamaForCausalLM, LlamaConfig, sizes, changes)


def bert(kind: type = BertModel, **changes: Any) -> Any:
    sizes = {
        "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 44,
        "intermediate_size": 40, "initializer_range": 0.3, "max_position_embeddings": 64,
    }  # fmt: skip
    return made(kind, BertConfig, sizes, changes)


def bert_mlm() -> BertForMaskedLM:
    return bert(BertForMaskedLM)


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 44, "n_positions": 64, "initializer_range": 0.3}
    return made(GPT2LMHeadModel, GPT2Config, sizes, changes)


def bart(kind: type = BartModel, **changes: Any) -> Any:
    sizes = {
        "d_model": 44, "encoder_layers": 2, "decoder_layers": 3, "init_std": 0.3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40, "max_position_embeddings": 64,
    }  # fmt: skip
    return made(kind, BartConfig, sizes, changes)
