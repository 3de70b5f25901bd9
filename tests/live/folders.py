"""Small folders of every family that a page reads, as transformers writes, and hostile ones."""

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import RobertaProcessing

import minibert
from tests.vocabularies import ALBERT_MARKS, byte_fallback, unigram

__all__ = ["DRAWN", "HOSTILE", "drawn_folder"]

_BERT = ("Model", "ForMaskedLM", "ForSequenceClassification")
_DECODER = ("Model", "ForCausalLM", "ForSequenceClassification")
_ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh"]
_LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 16, "rope_theta": 500.0},
}
_TURNS = [
    {"rope_type": "default", "rope_theta": 300.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    _LLAMA3,
]
_LLAMA = {
    "hidden_act": ["silu", "gelu"],
    "num_key_value_heads": [1, 3],
    "tie_word_embeddings": [True, False],
    "rope_parameters": _TURNS,
    "rms_norm_eps": [1e-6, 1e-3],
}
_BIAS = {"attention_bias": [True, False]}
_ENCODER = {
    "hidden_act": _ACTIVATIONS,
    "type_vocab_size": [1, 2, 3],
    "layer_norm_eps": [1e-12, 1e-3],
}
_TURNS_BY_TYPE = [
    {"full_attention": one, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    for one in _TURNS[:2]
]
_GEMMA = _LLAMA | _BIAS | {"head_dim": [4, 8]}
_GEMMA_2 = _GEMMA | {
    "hidden_activation": ["gelu_pytorch_tanh", "silu"],
    "query_pre_attn_scalar": [3, 8],
    "final_logit_softcapping": [None, 0.5],
    "sliding_window": [3],
}
#: model_type -> the prefix of its classes, their ends, and what fields are drawn from.
DRAWN: dict[str, tuple[str, tuple[str, ...], dict[str, list[Any]]]] = {
    "bert": (
        "Bert",
        (*_BERT, "LMHeadModel", "ForPreTraining"),
        _ENCODER | {"tie_word_embeddings": [True, False]},
    ),
    "roberta": ("Roberta", _BERT, _ENCODER | {"type_vocab_size": [1]}),
    "distilbert": ("DistilBert", _BERT, {"activation": ["gelu", "relu"]}),
    "gpt2": (
        "GPT2",
        ("Model", "LMHeadModel", "ForSequenceClassification"),
        {
            "activation_function": _ACTIVATIONS,
            "n_inner": [None, 22],
            "scale_attn_weights": [True, False],
            "scale_attn_by_inverse_layer_idx": [True, False],
            "tie_word_embeddings": [True, False],
            "layer_norm_epsilon": [1e-5, 1e-2],
        },
    ),
    "gpt_neox": (
        "GPTNeoX",
        _DECODER,
        _BIAS
        | {
            "use_parallel_residual": [True, False],
            "rope_parameters": [one | {"partial_rotary_factor": 0.5} for one in _TURNS],
            "tie_word_embeddings": [True, False],
            "layer_norm_eps": [1e-5, 1e-2],
        },
    ),
    "llama": ("Llama", _DECODER, _LLAMA | _BIAS | {"head_dim": [4, 8], "mlp_bias": [True, False]}),
    "mistral": ("Mistral", _DECODER, _LLAMA | {"sliding_window": [3, None]}),
    "qwen2": (
        "Qwen2",
        _DECODER,
        _LLAMA
        | {"use_sliding_window": [True, False], "sliding_window": [3], "max_window_layers": [1]},
    ),
    "qwen3": ("Qwen3", _DECODER, _LLAMA | _BIAS | {"head_dim": [4, 8]}),
    "olmo2": ("Olmo2", ("Model", "ForCausalLM"), _LLAMA | _BIAS),
    "electra": (
        "Electra",
        _BERT,
        _ENCODER | {"embedding_size": [6, 12], "tie_word_embeddings": [True, False]},
    ),
    "albert": (
        "Albert",
        (*_BERT, "ForPreTraining"),
        _ENCODER | {"embedding_size": [6, 12], "num_hidden_groups": [2], "num_hidden_layers": [3]},
    ),
    "gemma": ("Gemma", _DECODER, _GEMMA),
    "gemma2": ("Gemma2", _DECODER, _GEMMA_2 | {"attn_logit_softcapping": [None, 0.5]}),
    "gemma3_text": (
        "Gemma3",
        ("TextModel", "ForCausalLM", "TextForSequenceClassification"),
        _GEMMA_2 | {"rope_parameters": _TURNS_BY_TYPE},
    ),
    "modernbert": (
        "ModernBert",
        _BERT,
        {
            "hidden_activation": _ACTIVATIONS,
            "classifier_activation": _ACTIVATIONS,
            "rope_parameters": _TURNS_BY_TYPE,
            "local_attention": [2, 4],
            "global_attn_every_n_layers": [2, 3],
            "classifier_pooling": ["mean"],
            **{
                f"{name}_bias": [True, False]
                for name in ("norm", "attention", "mlp", "decoder", "classifier")
            },
        },
    ),
}
_WORD_PIECE = ("bert", "distilbert", "electra", "albert")
_SIZES = {
    **{"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"intermediate_size": 22, "max_position_embeddings": 40, "vocab_size": 0},
}
_OLD_NAMES = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "vocab_size"),
    "distilbert": (
        "dim",
        "n_layers",
        "n_heads",
        "hidden_dim",
        "max_position_embeddings",
        "vocab_size",
    ),
}


def drawn_folder(model_type: str, folder: Path, seed: int, end: str = "") -> Any:
    """The transformers model that the folder now holds, as float32.

    The seed says the number type too, and whether there are several files: 0 is float32 in one.
    """
    draw = random.Random(seed)
    prefix, ends, fields = DRAWN[model_type]
    end = end or draw.choice(ends)
    tokenizer = _tokenizer(model_type)
    vocabulary = max(tokenizer.get_vocab().values()) + 1 + draw.choice((0, 3))
    names = _OLD_NAMES.get(model_type, _SIZES)
    given = dict(zip(names, _SIZES.values(), strict=True)) | {"vocab_size": vocabulary}
    given |= {name: draw.choice(values) for name, values in fields.items()}
    given |= {"initializer_range": 0.3, "num_labels": 3, "pad_token_id": None}
    if model_type in (*_WORD_PIECE, "roberta"):
        given["pad_token_id"] = tokenizer.token_to_id("<pad>") or 0
        # RoBERTa's positions begin behind it.
        given["max_position_embeddings"] += given["pad_token_id"]
    if end == "LMHeadModel" and model_type == "bert":
        given["is_decoder"] = True
    config = transformers.AutoConfig.for_model(model_type, **given)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + end)(config).eval()
    for parameter in model.parameters():
        # Biases begin at 0 and norms at 1, where a swapped one would not show.
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    dtype = (torch.float32, torch.float16, torch.bfloat16)[seed % 3]
    # Not its buffers: those of rotation stay exact.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder, max_shard_size="8KB" if seed % 2 else "5GB")
    tokenizer.save(str(folder / "tokenizer.json"))
    return model.float()


def _tokenizer(model_type: str) -> Tokenizer:
    if model_type in ("llama", "mistral", "gemma", "gemma2"):
        return byte_fallback(prepended=model_type[0] != "g")
    if model_type == "albert":
        return unigram(transformers.AlbertTokenizer, ALBERT_MARKS)
    masked = model_type in _WORD_PIECE
    embedded = minibert.load("tiny-bert" if masked else "tiny-gpt2").tokenizer
    assert embedded is not None
    tokenizer = Tokenizer.from_str(embedded.to_json())
    if model_type == "roberta":
        tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
        ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("</s>", "<s>")]
        tokenizer.post_processor = RobertaProcessing(*ends)
    return tokenizer


def _rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Another header in front of the same numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])


SCRIPT = "<img src=x onerror=document.title='run'>"
WORD = "transformer.wte.weight"
Damage = Callable[[Path], Any]
#: What is done to the folder of a drawn gpt2, and what is said of it.
HOSTILE: dict[str, tuple[Damage, str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "there is no config.json"),
    "not JSON": (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "is not a JSON object"),
    "another family": (
        lambda p: _rewritten(p / "config.json", lambda c: c.update(model_type="__proto__")),
        'model_type is "__proto__"; expected one of albert',
    ),
    "a million layers": (
        lambda p: _rewritten(p / "config.json", lambda c: c.update(n_layer=10**6)),
        "1000000 layers; expected at most 512",
    ),
    "another width": (
        lambda p: _rewritten(p / "config.json", lambda c: c.update(n_embd=24)),
        "has the shape .* as config.json says",
    ),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "there is no model.safetensors"),
    "ten gigabytes of header": (
        lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 10**10) + b"{}"),
        "its header has 10000000000 bytes, and it has 10",
    ),
    "no length": (
        lambda p: (p / "model.safetensors").write_bytes(b"{}"),
        "has 0 bytes, and it has 2",
    ),
    "half a file": (
        lambda p: (p / "model.safetensors").write_bytes(
            (p / "model.safetensors").read_bytes()[:-5000]
        ),
        "ends before .* does; fetch it again",
    ),
    "header of no JSON": (
        lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"\xff{}}"),
        "the header of model.safetensors is not JSON",
    ),
    "a name that is a script": (
        lambda p: _header(p / "model.safetensors", lambda h: h.update({SCRIPT: h[WORD]})),
        f'the weights have "{re.escape(SCRIPT)}", which a gpt2 model does not have',
    ),
    "a tensor less": (
        lambda p: _header(p / "model.safetensors", lambda h: h.pop(WORD)),
        "the weights have no wte.weight",
    ),
    "offsets outside": (
        lambda p: _header(
            p / "model.safetensors", lambda h: h[WORD].update(data_offsets=[0, 2**60])
        ),
        "is damaged|ends before",
    ),
    "a shape of other bytes": (
        lambda p: _header(p / "model.safetensors", lambda h: h[WORD].update(data_offsets=[0, 4])),
        "has 4 bytes; expected",
    ),
    "whole numbers": (
        lambda p: _header(p / "model.safetensors", lambda h: h[WORD].update(dtype="I32")),
        "holds I32; expected float32, float16 or bfloat16",
    ),
    "an entry of null": (
        lambda p: _header(p / "model.safetensors", lambda h: h.update({WORD: None})),
        "the entry of .* is damaged",
    ),
    "NaN": (
        lambda p: (p / "model.safetensors").write_bytes(
            (p / "model.safetensors").read_bytes()[:-4] + b"\xff\xff\xff\xff"
        ),
        "holds values that are NaN or infinite",
    ),
    "a shard elsewhere": (
        lambda p: (p / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {WORD: "../model.safetensors"}})
        ),
        'names "../model.safetensors", which is not in the folder',
    ),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "there is no tokenizer.json"),
    "Unigram": (
        lambda p: _rewritten(
            p / "tokenizer.json",
            lambda t: t.update(model={"type": "Unigram", "unk_id": 1, "vocab": [["the", -1.0]]}),
        ),
        "has a vocabulary that is damaged",
    ),
    "another model": (
        lambda p: _rewritten(p / "tokenizer.json", lambda t: t.update(model={"type": "WordLevel"})),
        'is a "WordLevel" tokenizer; expected BPE of bytes, Unigram or WordPiece',
    ),
    "BPE of characters": (
        lambda p: _rewritten(p / "tokenizer.json", lambda t: t.update(pre_tokenizer=None)),
        "that does not have all bytes",
    ),
    "another normalizer": (
        lambda p: _rewritten(p / "tokenizer.json", lambda t: t.update(normalizer={"type": "Nmt"})),
        'the normalizer is "Nmt"',
    ),
    "no table of characters": (
        lambda p: _rewritten(
            p / "tokenizer.json",
            lambda t: t.update(
                normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}
            ),
        ),
        "the precompiled normalizer is damaged",
    ),
    "too many ids": (
        lambda p: _rewritten(
            p / "tokenizer.json", lambda t: t["model"]["vocab"].update(word=10**6)
        ),
        "has 1000001 ids and the model has rows for",
    ),
}
