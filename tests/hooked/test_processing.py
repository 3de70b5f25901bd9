"""What processing of weights does to the numbers, and what gives them of a model as it is.

The rows of docs/transformer_lens.md about it, one test a row. That TransformerLens processes the
same way is tested in test_hooks.py.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import VOCABULARY, Sizes, hf_model
from tests.hooked.models import ours_of

LAYERS = 3
STREAM = ("embed", "pos_embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


@cache
def theirs() -> Any:
    return hf_model("gpt2", "GPT2LMHeadModel", Sizes(activation="gelu_new"))


@cache
def ours() -> Model:
    return from_transformers(theirs())


def ids() -> Tensor:
    return torch.randint(2, VOCABULARY, (1, 13), generator=torch.Generator().manual_seed(4))


def caches(processing: str) -> tuple[Mapping[str, Tensor], dict[str, Tensor], set[str]]:
    """A plain cache, that after one step of processing, and the names that it changed."""
    _, plain = ours_of(theirs()).run_with_cache(ids())
    mine = dict(plain)
    _, known = ours_of(theirs(), **{processing: True}).run_with_cache(ids())
    their = dict(known)
    assert their.keys() == mine.keys()
    changed = {name for name, value in their.items() if not close(mine[name], value)}
    return mine, their, {name.split("hook_")[-1] for name in changed}


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, atol=1e-5, rtol=0)


def centred(value: Tensor) -> Tensor:
    return value - value.mean(-1, keepdim=True)


def test_fold_ln_changes_weights_and_what_enters_the_unembedding_alone() -> None:
    mine, their, changed = caches("fold_ln")
    assert changed == {"in"}
    # The last LayerNorm's weight and bias are in W_U then.
    assert close(mine["ln_final.hook_normalized"], their["unembed.hook_in"])


def test_center_writing_weights_takes_the_mean_of_every_stream_away() -> None:
    mine, their, changed = caches("center_writing_weights")
    assert changed == {"result", *STREAM}
    for name, value in their.items():
        if name.split("hook_")[-1] in changed:
            assert close(centred(mine[name]), value), name


def test_center_unembed_takes_the_mean_of_the_logits_away() -> None:
    mine, their, changed = caches("center_unembed")
    assert changed == {"out"}
    assert close(centred(mine["unembed.hook_out"]), their["unembed.hook_out"])


def test_fold_value_biases_takes_them_out_of_what_a_head_reads_and_writes() -> None:
    mine, their, changed = caches("fold_value_biases")
    assert changed == {"result", "v", "z"}
    for layer in range(LAYERS):
        attention = ours().body.layers[layer].attention
        biases = attention.b_V
        for name in (f"blocks.{layer}.attn.hook_{letter}" for letter in "vz"):
            assert close(mine[name] - biases, their[name])
        result = f"blocks.{layer}.attn.hook_result"
        written = torch.einsum("hd,hdm->hm", biases, attention.W_O)
        assert close(mine[result] - written, their[result])
