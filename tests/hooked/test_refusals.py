"""What a hooked model refuses, and what the error says."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from minibert.errors import MinibertError
from minibert.transformer_lens import HookedTransformer, evals, utils

TEXT = "The river was wide."


@cache
def hooked() -> HookedTransformer:
    return HookedTransformer.from_pretrained_no_processing("tiny-gpt2")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: HookedTransformer(nn.Linear(1, 1)), "expected a model of"),
        (lambda m: HookedTransformer.from_pretrained("tiny-bert"), "does not continue"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", n_devices=2), "one device"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", fold="x"), "no option fold"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", fold_ln=1), "fold_ln"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", dtype="x"), "dtype"),
        (lambda m: m.add_hook("blocks.0.hook_query", print), "no hook point"),
        (lambda m: m.add_hook("hook_embed", 3), "expected a function"),
        (lambda m: m.hook_dict["hook_embed"].add_hook(print, dir="up"), 'expected "fwd"'),
        (lambda m: m.hook_dict["hook_embed"].layer(), "belongs to no layer"),
        (lambda m: m.run_with_cache(TEXT, names_filter="hook_embedd"), "no hook point"),
        (lambda m: m.run_with_cache(TEXT, names_filter=3), "expected a name"),
        (lambda m: m.run_with_cache(TEXT, incl_bwd=True), 'return_type="loss"'),
        (lambda m: m.run_with_cache([TEXT, TEXT], remove_batch_dim=True), "expected one"),
        (lambda m: m(TEXT, return_type="logit"), "return_type"),
        (lambda m: m(TEXT, padding_side="left"), "padding_side"),
        (lambda m: m(TEXT, attention_mask=torch.ones(1, 2)), "for ids of"),
        (lambda m: m([[5, 6, 7]], attention_mask=[[0, 1, 1]]), "real tokens of each"),
        (lambda m: m(TEXT, stop_at_layer=9), "there are 4 layers"),
        (lambda m: m(torch.zeros(1, 2, 3), start_at_layer=1), "expected the stream"),
        (lambda m: m(torch.zeros(1, 2)), "expected ids"),
        (lambda m: m.set_ungroup_grouped_query_attention(True), "not offered"),
        (lambda m: m.blocks[0](1), "cannot be called"),
        (lambda m: m.load_state_dict({}), "Load weights with"),
        (lambda m: setattr(m.cfg, "n_ctx", 3), "cannot be set"),
        (lambda m: m.get_token_position(" the", TEXT, mode="middle"), "mode"),
        (lambda m: m.get_token_position(9, "a"), "does not occur"),
        (lambda m: m.generate("a", max_new_tokens=500), r"\d+ positions"),
        (lambda m: m.generate(["a", "a b c"]), "several lengths"),
        (lambda m: m.accumulated_bias(9), "there are 4 layers"),
        (lambda m: m.all_composition_scores("O"), "expected Q, K or V"),
        (lambda m: utils.get_act_name("k", -1), "get_act_name"),
        (evals.induction_loss, "vocabulary has 6656"),
        (lambda m: utils.sample_logits(torch.zeros(1, 2), top_p=2.0), "top_p"),
        (
            lambda m: m.run_with_hooks(TEXT, fwd_hooks=[("hook_embed", lambda x, hook: x[0])]),
            "expected a tensor of the shape",
        ),
    ],
)
def test_what_is_wrong_is_an_error_that_says_so(call: Any, message: str) -> None:
    with pytest.raises(MinibertError, match=message):
        call(hooked())
    hooked().reset_hooks(including_permanent=True)
    assert not any(point.has_hooks() for point in hooked().hook_points())


def test_a_helper_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="has no get_dataset"):
        _ = utils.get_dataset
