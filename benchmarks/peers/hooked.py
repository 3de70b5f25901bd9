"""The embedded models as TransformerLens has them; not counted as lines.

`HookedTransformer.from_pretrained` loads models that its table names, so these are made by hand.
"""

import warnings
from typing import Any

import torch
import transformers

from benchmarks.peers.given import model_folder


def config_of(theirs: Any) -> Any:
    """The shape of a GPT-2 or a BERT of transformers."""
    import transformer_lens as lens

    hf = theirs.config
    bert = hf.model_type == "bert"
    return lens.HookedTransformerConfig(
        n_layers=hf.num_hidden_layers,
        d_model=hf.hidden_size,
        n_ctx=hf.max_position_embeddings,
        d_head=hf.hidden_size // hf.num_attention_heads,
        n_heads=hf.num_attention_heads,
        d_mlp=hf.intermediate_size if bert else 4 * hf.hidden_size,
        d_vocab=hf.vocab_size,
        act_fn="gelu" if bert else "gelu_new",
        normalization_type="LN",
        eps=hf.layer_norm_eps if bert else hf.layer_norm_epsilon,
        attention_dir="bidirectional" if bert else "causal",
        device="cpu",
    )


def load(folder: str = "") -> Any:
    """The HookedTransformer or HookedEncoder of a folder, by default of the script's model."""
    import transformer_lens as lens
    from transformer_lens.pretrained import weight_conversions as convert

    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    folder = folder or model_folder()
    theirs = transformers.AutoModelForPreTraining.from_pretrained(folder, dtype=torch.float32)
    config = config_of(theirs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if theirs.config.model_type == "bert":
        model: Any = lens.HookedEncoder(config, tokenizer, move_to_device=False)
        state = convert.convert_bert_weights(theirs, config)
    else:
        model = lens.HookedTransformer(config)
        model.set_tokenizer(tokenizer)
        state = convert.convert_gpt2_weights(theirs, config)
    model.load_state_dict(state, strict=False)
    return model.eval()
