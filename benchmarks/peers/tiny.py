"""tiny-gpt2 as a HookedTransformer, its tokenizer and its prompts; not counted as lines."""

import sys
import warnings

import torch
from torch import Tensor


def load() -> tuple:
    """(model, encode, decode) of the folder that is the first argument of the script."""
    import transformer_lens as lens
    import transformers
    from tokenizers import Tokenizer
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1], dtype=torch.float32)
    config = theirs.config
    wanted = lens.HookedTransformerConfig(
        n_layers=config.n_layer,
        d_model=config.n_embd,
        n_ctx=config.n_positions,
        d_head=config.n_embd // config.n_head,
        n_heads=config.n_head,
        d_mlp=config.n_inner or 4 * config.n_embd,
        d_vocab=config.vocab_size,
        act_fn="gelu_new",
        normalization_type="LN",
        eps=config.layer_norm_epsilon,
        attention_dir="causal",
        device="cpu",
    )
    model = lens.HookedTransformer(wanted)
    model.load_state_dict(convert_gpt2_weights(theirs, wanted), strict=False)
    words = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")

    def encode(text: str) -> Tensor:
        return torch.tensor([words.encode(text).ids])

    def decode(ids: list) -> str:
        return words.decode(ids)

    return model.eval(), encode, decode


def repeats(length: int, draws: int) -> Tensor:
    """The sequences of minibert's draws_for: different random tokens, and the same again."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")
    added = words.get_added_tokens_decoder()
    usable = torch.tensor([i for i in range(words.get_vocab_size()) if i not in added])
    generator = torch.Generator().manual_seed(0)
    half = torch.stack(
        [usable[torch.randperm(len(usable), generator=generator)[:length]] for _ in range(draws)]
    )
    return torch.cat((half, half), 1)
