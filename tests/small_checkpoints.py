"""Small random checkpoints in several files, as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 31,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
MODELS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**GROUPED)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
}


def saved(folder: Path, family: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the files of a small model hold; they are three or more."""
    torch.manual_seed(0)
    model = MODELS[family]().to(dtype)
    model.save_pretrained(folder, max_shard_size="30KB" if dtype.itemsize == 2 else "60KB")
    assert len(list(folder.glob("*.safetensors"))) >= 3
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for path in files for name, tensor in load_file(path).items()}
