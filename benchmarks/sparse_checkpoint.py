"""A checkpoint in the layout of a large Llama whose files are nearly all holes.

Every tensor begins with random numbers, by which a loader is judged; a hole reads as zeros and
takes no room on the disk.
"""

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

LLAMA_3_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 896,
    "vocab_size": 8016,
}
SHARDS = 4
#: Numbers at the beginning of each tensor that are not zero.
MARKED = 64
#: minibert refuses files of which less than a sixteenth is stored.
STORED = 1 / 12

#: How each tensor begins, by its name in the checkpoint.
Marks = dict[str, list[float]]


def shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama by their names in a checkpoint."""
    width, wide = sizes["hidden_size"], sizes["intermediate_size"]
    keys = width // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (sizes["vocab_size"], width)}
    for layer in range(sizes["num_hidden_layers"]):
        within = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (wide, width),
            "mlp.up_proj": (wide, width),
            "mlp.down_proj": (width, wide),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in within.items()}
    return found | {"model.norm.weight": (width,), "lm_head.weight": (sizes["vocab_size"], width)}


def write(folder: Path, sizes: Mapping[str, int]) -> tuple[Marks, int]:
    """Write the checkpoint: how each tensor begins, and the bytes of all."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    marks, tensors = {}, shapes(sizes)
    total = sum(map(math.prod, tensors.values())) * 2
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(SHARDS)]
    written = 0
    for name, shape in tensors.items():
        shards[min(written * SHARDS // total, SHARDS - 1)][name] = shape
        written += math.prod(shape) * 2
    where = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        where |= dict.fromkeys(shard, file)
        marks |= write_shard(folder / file, shard, generator)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    about = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(about))
    return marks, total


def write_shard(
    path: Path, tensors: Mapping[str, tuple[int, ...]], generator: torch.Generator
) -> Marks:
    header, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + math.prod(shape) * 2
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    marks = {}
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        size = file.tell() + end
        # Room on the disk that nothing is written to.
        os.posix_fallocate(file.fileno(), 0, int(size * STORED))
        file.truncate(size)
        for name, about in header.items():
            values = torch.randn(MARKED, generator=generator).mul(0.02).to(torch.bfloat16)
            file.seek(8 + len(text) + about["data_offsets"][0])
            file.write(values.view(torch.int16).numpy().tobytes())
            marks[name] = values.tolist()
    return marks
