"""Hooks, gradients, processing, patching and helpers, against TransformerLens' own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from minibert.transformer_lens import FactoredMatrix, evals, patching, utils
from tests.hooked.models import (
    FAMILIES,
    close,
    ids,
    lens_of,
    ours_of,
    pair,
    shifted,
    written,
)
from tests.transformer_lens_models import PROCESSING

pytest.importorskip("transformer_lens")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_on_each_point_changes_the_logits_by_the_same(family: str) -> None:
    ours, lens = pair(family)
    assert list(ours.hook_dict) == [name for name in ours.hook_dict if name in lens.hook_dict]
    with torch.no_grad():
        plain = ours(ids())
        # The others are switched off: test_inputs_peers.py.
        for name in ours.run_with_cache(ids())[1]:
            for hook in (shifted, written):
                hooks = [(name, hook)]
                got = ours.run_with_hooks(ids(), fwd_hooks=hooks)
                close(got, lens.run_with_hooks(ids(), fwd_hooks=hooks), name)
                assert not torch.equal(got, plain), name
        assert torch.equal(ours(ids()), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_written_where_they_are_masked_are_looked_at(family: str) -> None:
    ours, lens = pair(family)
    hooks = [("blocks.1.attn.hook_attn_scores", lambda value, hook: torch.zeros_like(value))]
    with torch.no_grad():
        close(
            ours.run_with_hooks(ids(), fwd_hooks=hooks),
            lens.run_with_hooks(ids(), fwd_hooks=hooks),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_counts_in_the_loss_unless_a_mask_names_it(family: str) -> None:
    ours, lens = pair(family)
    mask = torch.arange(11) < torch.tensor([[11], [6]])
    options: list[dict[str, Any]] = [{}, {"attention_mask": mask.long()}]
    with torch.no_grad():
        for given in options:
            for each in (False, True):
                got, wanted = (
                    model(ids(), return_type="loss", loss_per_token=each, **given)
                    for model in (ours, lens)
                )
                close(got, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_at_each_point_are_the_same(family: str) -> None:
    ours, lens = pair(family)
    loss, got = ours.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    wanted_loss, wanted = lens.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    close(loss.detach(), wanted_loss.detach())
    found = [name for name in wanted if name.endswith("_grad")]
    assert {name for name in got if name.endswith("_grad")} == set(found)
    # TransformerLens calls the norm in front of attention three times, for query, key and value,
    # and its cache keeps the gradient of one of them.
    whole: dict[str, Tensor] = {}

    def add(value: Tensor, hook: Any) -> None:
        whole[f"{hook.name}_grad"] = value + whole.get(f"{hook.name}_grad", 0)

    with lens.hooks(bwd_hooks=[(lambda name: ".ln1." in name, add)]):
        lens(ids(), return_type="loss").backward()
    assert len(whole) == 2 * ours.cfg.n_layers
    for name in found:
        close(got[name], whole.get(name, wanted[name]), name)


def test_a_backward_hook_changes_what_flows_on() -> None:
    ours, lens = pair("gpt2")
    found = []
    for model in (ours, lens):
        seen: list[Tensor] = []
        backward = [
            ("blocks.1.hook_resid_pre", lambda value, hook: (value * 2,)),
            ("blocks.0.hook_resid_post", lambda value, hook, seen=seen: seen.append(value.clone())),
        ]
        with model.hooks(bwd_hooks=backward):
            model(ids(), return_type="loss").backward()
        found.append(seen[0])
    close(*found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "flags",
    [
        *({flag: True} for flag in PROCESSING),
        dict.fromkeys(PROCESSING, True),
    ],
    ids=lambda flags: "+".join(flags),
)
def test_processed_weights_are_the_same(family: str, flags: dict[str, bool]) -> None:
    if family == "llama":
        # RMSNorm: TransformerLens warns and leaves it, ours refuses it.
        flags = {name: value for name, value in flags.items() if name != "center_writing_weights"}
        if not flags:
            pytest.skip("an RMSNorm does not take the mean away")
    ours, lens = pair(family, **flags)
    wanted = lens.state_dict()
    compared = 0
    for name, weight in ours.named_parameters():
        # TransformerLens keeps shared keys and values under other names.
        if name in wanted:
            close(weight.detach(), wanted[name], name)
            compared += 1
    assert compared > 10
    with torch.no_grad():
        logits, got = ours.run_with_cache(ids())
        wanted_logits, cache = lens.run_with_cache(ids())
        close(logits, wanted_logits)
        for name in cache:
            close(got[name], cache[name], name)
        for mode in ("Q", "K", "V"):
            close(ours.all_composition_scores(mode), lens.all_composition_scores(mode), mode, 1e-4)
    for name in ("normalization_type", "n_params", "act_fn", "d_vocab", "n_ctx", "eps"):
        assert getattr(ours.cfg, name) == getattr(lens.cfg, name), name


def test_even_factors_are_those_of_transformer_lens_up_to_signs() -> None:
    ours, lens = pair("gpt2", refactor_factored_attn_matrices=True)
    with torch.no_grad():
        close(ours(ids()), lens(ids()))
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K"):
            close(getattr(ours, name).abs(), getattr(lens, name).abs(), name, 1e-4)


PATCHES = [name for name in dir(patching) if name.startswith("get_act_patch_")]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_patching_functions_give_the_same(family: str) -> None:
    from transformer_lens import patching as their_patching

    ours, lens = pair(family)
    # Four positions: a pass for every query and key is slow in both.
    clean, corrupted = ids(1)[:, :4], ids(2)[:, :4]

    def metric(logits: Tensor) -> Tensor:
        return (logits[:, -1, 7] - logits[:, -1, 13]).mean()

    with torch.no_grad():
        _, cache = ours.run_with_cache(clean)
        _, their_cache = lens.run_with_cache(clean)
        for name in PATCHES:
            # A patch of the pattern at each query and key is covered by the one at each query.
            got = getattr(patching, name)(ours, corrupted, cache, metric)
            wanted = getattr(their_patching, name)(lens, corrupted, their_cache, metric)
            close(got, wanted.to(got.dtype), name, 1e-5)
    assert len(PATCHES) == 18


@pytest.mark.parametrize(
    "arguments",
    [
        ("k", 6, "a"),
        ("pre", 2),
        ("embed",),
        ("normalized", 27, "ln2"),
        ("k6",),
        ("scale4ln1",),
        ("pre5",),
        ("scale",),
        ("attn", 3, "attn"),
        ("resid_pre", 0),
        ("blocks.0.hook_resid_pre",),
        ("in", 3),
        ("mlp_post", 1),
    ],
)
def test_names_of_points_are_the_same(arguments: tuple[Any, ...]) -> None:
    from transformer_lens import utilities

    assert utils.get_act_name(*arguments) == utilities.get_act_name(*arguments)


def test_helpers_give_the_same() -> None:
    from transformer_lens import FactoredMatrix as Theirs
    from transformer_lens import utilities as theirs

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 13, generator=generator)
    tokens = torch.randint(0, 13, (2, 5), generator=generator)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    for per_token in (False, True):
        for given in (None, mask):
            close(
                utils.lm_cross_entropy_loss(logits, tokens, given, per_token),
                theirs.lm_cross_entropy_loss(logits, tokens, given, per_token),
            )
        got = utils.lm_accuracy(logits, tokens, per_token).float()
        close(got, theirs.lm_accuracy(logits, tokens, per_token).float())
    for options in ({}, {"top_k": 3}, {"top_p": 0.6}, {"freq_penalty": 1.5, "temperature": 0.7}):
        drawn = []
        for each in (utils, theirs):
            torch.manual_seed(3)
            drawn.append(each.sample_logits(logits[:, -1], tokens=tokens, **options))
        assert torch.equal(*drawn)
    left, right = (torch.randn(3, *size, generator=generator) for size in ((7, 2), (2, 7)))
    ours, other = FactoredMatrix(left, right), Theirs(left, right)
    vector, wide = torch.randn(7, generator=generator), torch.randn(7, 11, generator=generator)
    for name in ("AB", "BA", "S"):
        close(getattr(ours, name), getattr(other, name), name)
    close(ours.norm(), other.norm())
    close(ours @ vector, other @ vector)
    close(vector @ ours, vector @ other)
    close((ours @ wide).AB, (other @ wide).AB)
    close((wide.T @ ours).AB, (wide.T @ other).AB)
    close((ours @ ours).AB, (other @ other).AB)
    close(ours.T.AB, other.T.AB)
    close((2 * ours).make_even().AB, (2 * other).make_even().AB)
    close(ours.get_corner(), other.get_corner())
    for index in (1, (1, 2), (slice(None), 3, -1), (0, slice(2, 5), slice(1, 3)), (None, 1)):
        got, wanted = ours[index], other[index]
        assert got.shape == wanted.shape
        close(got.AB, wanted.AB, str(index))
    close(utils.composition_scores(ours, ours), theirs.composition_scores(other, other), "scores")
    for value in (ours.eigenvalues.abs().sort().values,):
        close(value, other.eigenvalues.abs().sort().values)


@torch.no_grad()
@pytest.mark.parametrize("begun", [False, True])
def test_the_loss_of_tokens_that_come_twice_is_theirs(begun: bool) -> None:
    from transformer_lens import evals as theirs

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20_000, n_positions=31, n_embd=6, n_layer=1)
    config.n_head, config.n_inner = 3, 13
    given = transformers.GPT2LMHeadModel(config).eval()
    losses = []
    for evaluation, model in ((evals, ours_of(given)), (theirs, lens_of(given))):
        torch.manual_seed(3)
        options = {"batch_size": 2, "subseq_len": 13, "prepend_bos": begun, "device": "cpu"}
        first = SimpleNamespace(bos_token_id=17)
        losses.append(evaluation.induction_loss(model, first, **options))
    close(*losses)
