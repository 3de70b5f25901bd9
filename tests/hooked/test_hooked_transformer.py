"""The hooked model against minibert's own trace, edits and gradients, and its helpers."""

import pickle
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minibert
from minibert.errors import CheckpointError, MinibertError, TokenizationError, TraceError
from minibert.trace.edit import zero
from minibert.transformer_lens import (
    FactoredMatrix,
    HookedRootModule,
    HookedTransformer,
    HookPoint,
    TransformerBridge,
    utils,
)
from tests.hooked.models import close

TEXT = "The river was wide, and the boat was small."


@cache
def own() -> minibert.Model:
    return minibert.load("tiny-gpt2")


@cache
def hooked() -> HookedTransformer:
    return HookedTransformer.from_pretrained_no_processing("tiny-gpt2")


@torch.no_grad()
def test_without_hooks_it_is_the_plain_model() -> None:
    tokens = hooked().to_tokens(TEXT)
    assert torch.equal(hooked()(TEXT), own()(tokens))
    assert torch.equal(hooked()(tokens[0]), own()(tokens))
    assert hooked()(TEXT, return_type=None) is None
    log_p = own()(tokens).log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    close(hooked()(TEXT, return_type="loss", loss_per_token=True), -log_p)
    logits, loss = hooked()(TEXT, return_type="both")
    close(loss, -log_p.mean())
    assert torch.equal(logits, own()(tokens))


@torch.no_grad()
def test_a_hook_is_an_edit() -> None:
    tokens = hooked().to_tokens(TEXT)

    def silence(z: Tensor, hook: HookPoint) -> None:
        assert (hook.name, hook.layer()) == ("blocks.1.attn.hook_z", 1)
        z[:, :, 3] = 0

    got = hooked().run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", silence)])
    assert torch.equal(got, own().trace(tokens, edit={("z", 1, 3): zero}).logits)
    assert torch.equal(hooked()(tokens), own()(tokens))


@torch.no_grad()
def test_hooks_stay_until_they_are_removed() -> None:
    model, calls = hooked(), []
    point = model.blocks[0].attn.hook_pattern
    assert point is model.hook_dict["blocks.0.attn.hook_pattern"]
    point.add_hook(lambda value, hook: calls.append("mine"))
    model.add_perma_hook("hook_embed", lambda value, hook: calls.append("permanent"))
    with model.hooks(fwd_hooks=[(lambda name: name.endswith("0.attn.hook_pattern"), seen(calls))]):
        model(TEXT)
    model(TEXT)
    assert calls == ["permanent", "mine", "seen", "permanent", "mine"]
    model.reset_hooks()
    model(TEXT)
    assert calls[5:] == ["permanent"]
    model.reset_hooks(including_permanent=True)
    model(TEXT)
    assert len(calls) == 6


def seen(calls: list[str]) -> Any:
    return lambda value, hook: calls.append("seen")


@torch.no_grad()
def test_a_hook_that_writes_changes_no_tensor_that_was_kept_before() -> None:
    def wipe(value: Tensor, hook: HookPoint) -> None:
        value[:] = 0

    with hooked().hooks(fwd_hooks=[("blocks.1.hook_resid_pre", wipe)]):
        _, cache = hooked().run_with_cache(TEXT)
    assert not cache["resid_pre", 1].any()
    close(cache["resid_post", 0], own().trace(hooked().to_tokens(TEXT))[0].resid_post)


def test_gradients_of_the_loss_are_those_of_a_trace() -> None:
    tokens = hooked().to_tokens(TEXT)
    loss, cache = hooked().run_with_cache(tokens, return_type="loss", incl_bwd=True)
    trace = own().trace(tokens, grad=True)
    log_p = trace.logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])
    trace.backward(-log_p.mean())
    close(cache["blocks.2.attn.hook_pattern_grad"], trace.grad[2].probs)
    close(cache["blocks.1.hook_resid_post_grad"], trace.grad[1].resid_post)
    close(loss.detach(), -log_p.mean().detach())


def test_gradients_reach_the_weights() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-gpt2")
    model(TEXT, return_type="loss").backward()
    assert all(each.grad is not None for each in model.parameters())
    model.zero_grad()
    model.W_E.square().sum().backward()
    close(model.model.body.word.weight.grad, 2 * model.model.body.word.weight.detach())


@torch.no_grad()
def test_a_pass_ends_at_any_layer() -> None:
    model = hooked()
    stream = model(TEXT, stop_at_layer=2)
    close(stream, own().trace(model.to_tokens(TEXT))[2].resid_pre)
    assert torch.equal(model(TEXT, stop_at_layer=-1), model(TEXT, stop_at_layer=3))
    _, cache = model.run_with_cache(TEXT, stop_at_layer=1)
    assert not [name for name in cache if name.startswith(("blocks.1", "ln_final", "unembed"))]


@torch.no_grad()
def test_padding_that_the_mask_names_changes_no_real_token() -> None:
    model = hooked()
    texts = [TEXT, "The river"]
    tokens = model.to_tokens(texts)
    lengths = [len(model.to_str_tokens(text)) for text in texts]
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    alone = model("The river")
    close(model(tokens, attention_mask=mask)[1, : lengths[1]], alone[0])
    close(model(tokens)[1, : lengths[1]], alone[0])
    both = model(tokens, attention_mask=mask, return_type="loss")
    each = [model(text, return_type="loss", loss_per_token=True).flatten() for text in texts]
    close(both, torch.cat(each).mean())
    # Without a mask padding is tokens like all others, as in TransformerLens.
    log_p = own().trace(tokens).logits.log_softmax(-1)
    every = torch.nn.functional.nll_loss(log_p[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    close(model(texts, return_type="loss"), every)
    assert abs(float(every - both)) > 0.1


def test_tokens_are_those_of_the_tokenizer_behind_a_first_one() -> None:
    model, tokenizer = hooked(), own().tokenizer
    assert tokenizer is not None
    assert model.to_tokens(TEXT).tolist() == [[0, *tokenizer.encode(TEXT)]]
    assert model.to_tokens(TEXT, prepend_bos=False).tolist() == [tokenizer.encode(TEXT)]
    assert model.to_string(model.to_tokens(TEXT)[0]) == "<|endoftext|>" + TEXT
    assert model.to_string(model.to_tokens([TEXT, TEXT], prepend_bos=False)) == [TEXT, TEXT]
    assert "".join(model.to_str_tokens(TEXT, prepend_bos=False)) == TEXT
    the = model.to_single_token(" the")
    assert model.to_single_str_token(the) == " the"
    assert model.to_tokens("a b " * 500).shape == (1, model.cfg.n_ctx)
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode(TEXT)) == TEXT
    with pytest.raises(TokenizationError, match="not a single token"):
        model.to_single_token(" the river")


@torch.no_grad()
def test_weights_are_views_that_compute_what_the_model_computes() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-gpt2")
    _, cache = model.run_with_cache(TEXT)
    x = model.ln_final(cache["resid_post", -1])
    close(x @ model.W_U + model.b_U, model(TEXT), atol=1e-4)
    read = cache["blocks.1.ln1.hook_normalized"] * model.blocks[1].ln1.w + model.blocks[1].ln1.b
    close(torch.einsum("bpm,hmd->bphd", read, model.W_Q[1]) + model.b_Q[1], cache["q", 1])
    heads = torch.einsum("bphd,hdm->bphm", cache["z", 1], model.W_O[1])
    close(heads.sum(2) + model.b_O[1], cache["attn_out", 1])
    mlp = cache["post", 1] @ model.W_out[1] + model.b_out[1]
    close(mlp, cache["mlp_out", 1])
    tokens = model.to_tokens(TEXT)
    close(model.W_E[tokens] + model.W_pos[: tokens.shape[1]], cache["resid_pre", 0])
    close(model.OV.AB[1, 2], model.W_V[1, 2] @ model.W_O[1, 2])
    model.blocks[0].attn.W_V[:] = 0
    assert not model(TEXT, stop_at_layer=1).isnan().any()
    _, after = model.run_with_cache(TEXT)
    close(after["v", 0], model.b_V[0].expand_as(after["v", 0]))
    with pytest.raises(CheckpointError, match="cannot be replaced"):
        model.blocks[0].attn.W_V = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
@torch.no_grad()
def test_processing_keeps_what_the_model_predicts(name: str) -> None:
    plain = HookedTransformer.from_pretrained_no_processing(name, dtype="float64")
    wanted = plain(TEXT)
    folded = HookedTransformer.from_pretrained(name, dtype="float64")
    close(folded(TEXT).log_softmax(-1), wanted.log_softmax(-1))
    close(folded(TEXT), wanted - wanted.mean(-1, keepdim=True))
    assert folded.cfg.normalization_type == plain.cfg.normalization_type + "Pre"
    assert not hasattr(folded.ln_final, "w")
    assert folded.W_U.mean(-1).abs().max() < 1e-12
    flags = ["fold_ln", "fold_value_biases"]
    if name == "tiny-gpt2":
        flags += ["center_writing_weights"]
        assert folded.W_O.mean(-1).abs().max() < 1e-12
        assert not folded.b_V.any()
    for flag in flags:
        one = HookedTransformer.from_pretrained_no_processing(name, dtype="float64", **{flag: True})
        close(one(TEXT), wanted, flag)


@torch.no_grad()
def test_a_bridge_begins_unprocessed() -> None:
    bridge = TransformerBridge.boot_transformers("tiny-gpt2")
    assert torch.equal(bridge(TEXT), hooked()(TEXT))
    bridge.enable_compatibility_mode(disable_warnings=True)
    assert bridge.cfg.normalization_type == "LNPre"
    close(bridge(TEXT), HookedTransformer.from_pretrained("tiny-gpt2")(TEXT))
    seen: list[str] = []
    hooks = [("blocks.1.hook_in", lambda x, hook: seen.append(hook.name))]
    bridge.run_with_hooks(TEXT, fwd_hooks=hooks)
    assert seen == ["blocks.1.hook_resid_pre"]


@torch.no_grad()
def test_text_is_generated() -> None:
    ours = str(own().generate("<|endoftext|>The river", max_new_tokens=6, temperature=0))
    got = hooked().generate("The river", max_new_tokens=6, do_sample=False)
    assert got == ours.removeprefix("<|endoftext|>")
    found = hooked().generate(hooked().to_tokens("The river"), max_new_tokens=3)
    assert found.shape[0] == 1
    with (
        hooked().hooks(fwd_hooks=[("hook_embed", lambda x, hook: None)]),
        pytest.raises(TraceError, match="use_past_kv_cache=False"),
    ):
        hooked().generate("The river")

    def end(logits: Tensor, hook: HookPoint) -> None:
        logits[:, 5:, 0] = 1e6

    with hooked().hooks(fwd_hooks=[("unembed.hook_out", end)]):
        for stops, length in ((True, 7), (False, 12)):
            found = hooked().generate(
                hooked().to_tokens(TEXT)[:, :4],
                8,
                stop_at_eos=stops,
                do_sample=False,
                use_past_kv_cache=False,
            )
            assert found.shape == (1, length)


def test_modules_of_ones_own_have_hooks() -> None:
    class Square(HookedRootModule):
        def __init__(self) -> None:
            super().__init__()
            self.hook_square = HookPoint()
            self.setup()

        def forward(self, x: Tensor) -> Tensor:
            return 1 + self.hook_square(x * x)

    model = Square()
    out, cache = model.run_with_cache(torch.tensor(3.0))
    assert (out.item(), cache["hook_square"].item()) == (10.0, 9.0)
    hooks = [("hook_square", lambda x, hook: torch.tensor(0.0))]
    assert model.run_with_hooks(torch.tensor(3.0), fwd_hooks=hooks).item() == 1.0


def test_a_prompt_is_tested_in_print(capsys: pytest.CaptureFixture[str]) -> None:
    utils.test_prompt("The river was", "wide", hooked(), top_k=3)
    printed = capsys.readouterr().out
    with torch.no_grad():
        logits = hooked()("The river was")[0, -1]
    place = int((logits > logits[hooked().to_single_token(" wide")]).sum())
    assert f"Ranks of the answer tokens: [(' wide', {place})]" in printed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: HookedTransformer(nn.Linear(1, 1)), "expected a model of"),
        (lambda m: HookedTransformer.from_pretrained("tiny-bert"), "does not continue"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", n_devices=2), "one device"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", fold="x"), "no option fold"),
        (lambda m: HookedTransformer.from_pretrained("tiny-gpt2", fold_ln=1), "fold_ln"),
        (
            lambda m: HookedTransformer.from_pretrained("tiny-llama", center_writing_weights=True),
            "RMSNorm does not take the mean away",
        ),
        (lambda m: m.add_hook("blocks.0.hook_query", print), "not a hook point"),
        (lambda m: m.add_hook("hook_embed", 3), "expected a function"),
        (lambda m: m.run_with_cache(TEXT, names_filter="hook_embedd"), "not a hook point"),
        (lambda m: m.run_with_cache(TEXT, incl_bwd=True), 'return_type="loss"'),
        (lambda m: m.run_with_cache([TEXT, TEXT], remove_batch_dim=True), "expected one"),
        (lambda m: m(TEXT, return_type="logit"), "return_type"),
        (lambda m: m(TEXT, padding_side="left"), "padding_side"),
        (lambda m: m([[5, 6, 7]], attention_mask=[[0, 1, 1]]), "real tokens of each"),
        (lambda m: m(TEXT, stop_at_layer=9), "there are 4 layers"),
        (lambda m: m(torch.zeros(1, 2)), "expected ids"),
        (lambda m: m(torch.zeros(1, 2, 64), start_at_layer=1, return_type="loss"), "tokens="),
        (lambda m: m(TEXT, start_at_layer=2), r"\(batch, position, d_model = 128\).* got str"),
        (lambda m: m(m.to_tokens(TEXT), start_at_layer=2), "of floats; got .*int64"),
        (lambda m: m(torch.zeros(2, 128), start_at_layer=2), r"got \(2, 128\) of torch.float32"),
        (lambda m: m.blocks[1](torch.zeros(1, 2, 127)), r"got \(1, 2, 127\)"),
        (lambda m: m.load_state_dict({}), "missing blocks.0.attn"),
        (lambda m: setattr(m.cfg, "n_ctx", 3), "cannot be set"),
        (lambda m: m.generate("a", max_new_tokens=500), r"\d+ positions"),
        (lambda m: m.generate(["a", "a b c"]), "several lengths"),
    ],
)
def test_what_is_wrong_is_an_error_that_says_so(call: Any, message: str) -> None:
    with pytest.raises(MinibertError, match=message):
        call(hooked())
    hooked().reset_hooks(including_permanent=True)
    assert not any(point.has_hooks() for point in hooked().hook_points())


def test_helpers_give_the_same() -> None:
    pytest.importorskip("transformer_lens")
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
    left, right = (torch.randn(3, *size, generator=generator) for size in ((7, 2), (2, 7)))
    ours, other = FactoredMatrix(left, right), Theirs(left, right)
    vector, wide = torch.randn(7, generator=generator), torch.randn(7, 11, generator=generator)
    for name in ("AB", "S"):
        close(getattr(ours, name), getattr(other, name), name)
    close(ours.norm(), other.norm())
    close(ours @ vector, other @ vector)
    close(vector @ ours, vector @ other)
    close((ours @ wide).AB, (other @ wide).AB)
    close((wide.T @ ours).AB, (wide.T @ other).AB)
    close((ours @ ours).AB, (other @ other).AB)
    close(ours.T.AB, other.T.AB)
    close((2 * ours).AB, (2 * other).AB)
    close(utils.get_corner(ours).AB, theirs.get_corner(other).AB)
    for name in ("U", "V", "BA"):
        close(getattr(ours, name), getattr(other, name), name)
    close(ours.get_corner(2), other.get_corner(2))
    close(utils.gelu_new(vector), theirs.gelu_new(vector))
    datasets, tokenizer = pytest.importorskip("datasets"), hooked().tokenizer
    texts = datasets.Dataset.from_dict({"text": [TEXT, " the", TEXT * 3], "meta": [1, 2, 3]})
    for length, first in ((6, True), (9, False), (400, True)):
        found, wanted = (
            each.tokenize_and_concatenate(
                texts, tokenizer, max_length=length, add_bos_token=first, num_proc=None
            )
            for each in (utils, theirs)
        )
        assert torch.equal(found["tokens"][:], wanted["tokens"][:])
    for index in (1, (1, 2), (slice(None), 3, -1), (0, slice(2, 5), slice(1, 3)), (None, 1)):
        got, wanted = ours[index], other[index]
        assert got.shape == wanted.shape
        close(got.AB, wanted.AB, str(index))
    close(ours.eigenvalues.abs().sort().values, other.eigenvalues.abs().sort().values)


def test_weights_are_leaves_that_optimizers_and_copies_of_the_model_take() -> None:
    ours = HookedTransformer.from_pretrained("tiny-gpt2")
    again, copy = pickle.loads(pickle.dumps(ours)), deepcopy(ours)
    weight, base = ours.W_Q[0].clone(), ours.model.body.layers[0].attention.query.weight
    steps: list[Any] = []
    for model, given in ((ours, dict(ours.named_parameters()).values()), (copy, copy.parameters())):
        # Weight decay of one's own, beside the loss of the text.
        optimizer = torch.optim.SGD(given, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            decay = sum(p.square().sum() for name, p in model.named_parameters() if "W_" in name)
            (model(TEXT, return_type="loss") + 0.01 * decay).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        steps.append(model(TEXT, return_type="loss").detach())
    assert all(p.is_leaf and p.grad is not None for _, p in ours.named_parameters())
    shown: Any = ours.blocks[0].attn.W_Q.grad
    assert torch.equal(shown.mT.flatten(0, 1), base.grad)
    close(steps[0], steps[1])
    close(again.W_Q[0], weight)
    assert not torch.equal(ours.W_Q[0], weight)
    _, cache = ours.run_with_cache(TEXT)
    with torch.no_grad():
        ours.blocks[0].attn.W_Q.mul_(2)
    with pytest.raises(TraceError, match="changed"):
        cache.of  # noqa: B018
    ours.blocks[0].attn.W_Q.requires_grad_(False)
    assert not base.requires_grad


def test_data_that_is_assigned_to_a_weight_reaches_the_model() -> None:
    assigned, written = (
        HookedTransformer.from_pretrained_no_processing("tiny-gpt2") for _ in range(2)
    )
    before = assigned(TEXT)
    weight, values = assigned.blocks[1].attn.W_O, torch.randn(assigned.blocks[1].attn.W_O.shape)
    kept = weight.data
    weight.data = values
    written.blocks[1].attn.W_O.data[:] = values
    assert assigned.blocks[1].attn.W_O is weight
    assert torch.equal(assigned(TEXT), written(TEXT))
    assigned(TEXT, return_type="loss").backward()
    base = assigned.model.body.layers[1].attention.output.weight
    assert torch.equal(weight.grad.flatten(0, 1).mT, base.grad)
    weight.data *= 2
    written.blocks[1].attn.W_O.data *= 2
    assert torch.equal(assigned(TEXT), written(TEXT))
    # The memory that was there before is as it was.
    weight.data = kept
    assert torch.equal(assigned(TEXT), before)
    own_view = assigned.model.body.layers[1].attention.W_O
    own_view.data *= 2
    assert torch.equal(assigned.W_O[1], own_view)
    with pytest.raises(CheckpointError, match="a view of a weight"):
        own_view.data = values
    with pytest.raises(CheckpointError, match=r"expected \(.*\) in torch.float32"):
        weight.data = values.double()
    assigned.double()
    with pytest.raises(CheckpointError, match="Read it from the model again"):
        weight.data = values


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("load", ["from_pretrained", "from_pretrained_no_processing"])
@torch.no_grad()
def test_a_state_dictionary_loads_into_a_copy(name: str, load: str) -> None:
    model = getattr(HookedTransformer, load)(name)
    copy, wanted = deepcopy(model), model(TEXT)
    model.load_state_dict(model.state_dict())
    assert torch.equal(model(TEXT), wanted)
    for parameter in copy.parameters():
        parameter.mul_(0.5)
    assert not torch.equal(copy(TEXT), wanted)
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(TEXT), wanted)


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        ("tiny-gpt2", "unembed.b_U", "does not have, which cannot be written; expected zeros"),
        ("tiny-gpt2", "embed.W_E", "are one weight in this model"),
        ("tiny-llama", "blocks.0.attn.W_K", "same numbers for each 2 heads in a row"),
    ],
)
def test_a_state_dictionary_that_the_model_cannot_hold_is_refused(
    model: str, name: str, message: str
) -> None:
    made = HookedTransformer.from_pretrained_no_processing(model)
    given = {each: value.clone() for each, value in made.state_dict().items()}
    changed = given | {name: torch.arange(given[name].numel() * 1.0).view(given[name].shape)}
    with pytest.raises(CheckpointError, match=message):
        made.load_state_dict(changed)
    assert all(torch.equal(value, given[each]) for each, value in made.state_dict().items())


def test_copies_keep_hooks_and_settings() -> None:
    model = HookedTransformer(
        {"n_layers": 1, "d_model": 8, "n_ctx": 5, "d_head": 4, "d_vocab": 7, "act_fn": "relu"}
        | {"attention_dir": "bidirectional", "use_hook_tokens": True, "use_attn_result": True}
    )
    seen: list[str] = []
    model.add_perma_hook("hook_tokens", lambda ids, hook: seen.append(hook.name))
    model.hook_tokens.ctx["own"] = 3
    copy = deepcopy(model)
    assert torch.equal(copy([[1, 2]]), model([[1, 2]]))
    assert seen == ["hook_tokens"] * 2
    assert (copy.hook_tokens.ctx, copy.cfg.use_attn_result) == ({"own": 3}, True)
    assert copy.hook_tokens is not model.hook_tokens


@torch.no_grad()
def test_parts_can_be_called_with_their_hooks() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-llama")
    _, cache = model.run_with_cache("The river was wide")
    block, read = model.blocks[1], cache["blocks.1.ln1.hook_normalized"] * model.blocks[1].ln1.w
    close(block(cache["resid_pre", 1]), cache["resid_post", 1])
    close(block.ln1(cache["resid_pre", 1]), read)
    close(block.attn(read, read, read), cache["attn_out", 1])
    close(block.mlp(cache["blocks.1.ln2.hook_normalized"] * block.ln2.w), cache["mlp_out", 1])
    logits = model(cache["resid_pre", 1], start_at_layer=1)
    close(logits, model("The river was wide"))
    ids = model.to_tokens("The river was wide")
    loss = model(cache["resid_pre", 1], start_at_layer=1, tokens=ids, return_type="loss")
    close(loss, model(ids, return_type="loss"))

    def wipe(value: Tensor, hook: HookPoint) -> Tensor:
        return torch.zeros_like(value)

    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", wipe), ("ln_final.hook_scale", wipe)]):
        assert not block.attn(read, read, read).any()
        assert not model.ln_final(cache["resid_post", 1]).isfinite().all()


def test_a_hook_of_a_level_goes_with_its_context() -> None:
    model = hooked()
    model.add_hook("hook_embed", lambda value, hook: None, level=1)
    with model.hooks(), model.hooks():
        pass
    assert not model.hook_dict["hook_embed"].has_hooks()
    model.add_hook("hook_embed", lambda value, hook: None)
    model.run_with_cache(TEXT)
    assert model.hook_dict["hook_embed"].has_hooks()
    model.reset_hooks()


def test_the_tokenizer_answers_like_one_of_transformers() -> None:
    tokenizer = hooked().tokenizer
    assert tokenizer is not None
    texts = [TEXT, " the"]
    found = tokenizer(texts, padding=True, return_tensors="pt")
    assert torch.equal(found.input_ids, hooked().to_tokens(texts, prepend_bos=False))
    assert found["attention_mask"].sum(1).tolist() == [len(tokenizer.encode(t)) for t in texts]
    assert tokenizer(" the").input_ids == tokenizer.encode(" the")
    assert [tokenizer.vocab[each] for each in tokenizer.tokenize(TEXT)] == tokenizer.encode(TEXT)
    river = hooked().get_token_position(" river", TEXT)
    assert hooked().to_str_tokens(TEXT)[river] == " river"
    for side, rows in (("right", [[5, 0, 6, 0], [5, 7, 0, 0]]), ("left", [[0, 0, 5, 6]])):
        ids = torch.tensor(rows)
        real = utils.get_attention_mask(tokenizer, ids, prepend_bos=True, padding_side=side)
        wanted = [[1, 1, 1, 0], [1, 1, 0, 0]] if side == "right" else [[0, 1, 1, 1]]
        assert real.tolist() == wanted
