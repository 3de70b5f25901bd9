"""Live models of transformers, the parts of them that the tests read, and texts."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
)

import minibert
from tests.attached import live_models

EMBEDDED = Path(minibert.__file__).parent / "embedded"
MODELS: dict[str, Any] = {"tiny-bert": AutoModelForPreTraining, "tiny-gpt2": AutoModelForCausalLM}
SIZES: dict[str, Any] = {"vocab_size": 6656, "initializer_range": 0.3}
# Of each layer how far a query looks back, itself not counted; None: as far as it can.
BACK = {"gemma3": (4, None, 4), "modernbert": (None, 3, 3)}


def tokenizer_of(name: str) -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED / name)


def embedded(name: str) -> Any:
    """An embedded model as transformers loads it."""
    return MODELS[name].from_pretrained(EMBEDDED / name, dtype=torch.float32).eval()


def bert(**options: Any) -> Any:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 33}
    return live_models.bert(BertForMaskedLM, **sizes, **SIZES, **options)


def gpt2(**options: Any) -> Any:
    return live_models.gpt2(n_head=3, n_embd=33, **SIZES, **options)


def bart() -> Any:
    sizes = {"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    return live_models.bart(vocab_size=6656, max_position_embeddings=48, **sizes)


def gpt_oss(**options: Any) -> Any:
    """Sinks, grouped heads, and a window of 8 in every other layer."""
    torch.manual_seed(0)
    config = GptOssConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        hidden_size=32, intermediate_size=16, num_local_experts=2, num_experts_per_tok=1,
        sliding_window=8, max_position_embeddings=64, pad_token_id=0, **SIZES, **options,
    )  # fmt: skip
    return GptOssForCausalLM(config).eval()


def gemma3() -> Any:
    """Windows of 5 keys in layers 0 and 2."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=6656, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, intermediate_size=24, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=64, initializer_range=0.2, query_pre_attn_scalar=16,
        attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


def modernbert() -> Any:
    """3 keys to either side in layers 1 and 2."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=6656, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=24, local_attention=6, global_attn_every_n_layers=3,
        max_position_embeddings=64, initializer_range=0.2, attn_implementation="eager",
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return ModernBertForMaskedLM(config).eval()


def seen_by(name: str, layer: int, n: int) -> Any:
    """True where a query of the layer of a model with windows sees a key, (query, key)."""
    query, key = np.indices((n, n))
    back = n if BACK[name][layer] is None else BACK[name][layer]
    ahead = 0 if name == "gemma3" else back
    return (key >= query - back) & (key <= query + ahead)


def attentions(live: Any, ids: torch.Tensor, stack: str | None, **given: Any) -> torch.Tensor:
    """(layer, head, query, key) as transformers gives them."""
    names = {"encoder": "encoder_attentions", "decoder.self": "decoder_attentions"}
    given |= {"decoder_input_ids": ids} if stack in names else {}
    with torch.no_grad():
        out = live(ids, output_attentions=True, **given)
    return torch.cat(out[names.get(stack or "", "attentions")]).double()


def value_norms(live: Any, ids: torch.Tensor, stack: str | None, **given: Any) -> Any:
    """‖f(x)‖ of each layer, head and key, f(x) = (x·W_V + b_V)·W_O of the head (Kobayashi 2020)."""
    side = "decoder" if stack == "decoder.self" else "encoder"
    given |= {"decoder_input_ids": ids} if stack else {}
    with torch.no_grad():
        out = live(ids, output_hidden_states=True, **given)
        hidden = out[f"{side}_hidden_states"] if stack else out.hidden_states
        found = []
        for of, x in zip(_layers(live, side, bool(stack)), hidden, strict=False):
            values, weight, n_heads = of(x)
            per_head = values[0].unflatten(-1, (n_heads, -1))
            out_per_head = weight.unflatten(1, (n_heads, -1))
            found.append(torch.einsum("khd,ohd->hko", per_head, out_per_head).norm(dim=-1))
    return torch.stack(found).double().numpy()


def _layers(live: Any, side: str, named: bool) -> Any:
    """Of each layer what gives its values, its output's weight (out, in), and its heads."""
    if named:
        for layer in getattr(live, side).layers:
            at = layer.self_attn
            yield lambda x, at=at: (at.v_proj(x), at.out_proj.weight, at.num_heads)
    elif hasattr(live, "transformer"):
        for block in live.transformer.h:
            at = block.attn

            def of(x: Any, block: Any = block, at: Any = at) -> Any:
                return at.c_attn(block.ln_1(x)).chunk(3, -1)[2], at.c_proj.weight.T, at.num_heads

            yield of
    else:
        for layer in getattr(live, "bert", live).encoder.layer:
            at, out = layer.attention.self, layer.attention.output.dense

            def of(x: Any, at: Any = at, out: Any = out) -> Any:
                return at.value(x), out.weight, at.num_attention_heads

            yield of
