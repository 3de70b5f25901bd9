"""Architectures of one's own, against a few lines in float64; through files and hooks."""

import random
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import minibert
from minibert import Config, Model
from minibert.analysis import decompose, edge_attribution, logit_difference, path_patching, why
from minibert.checkpoint.config import config_from_hf, config_to_hf
from minibert.errors import CheckpointError, EditError
from minibert.layers.rotary import Rotary
from minibert.transformer_lens import HookedTransformer, HookedTransformerConfig
from minibert.verification import verify
from tests.transformer_lens_models import transformer_lens

SIZES = {"vocab_size": 23, "n_positions": 17, "n_layers": 3, "n_heads": 4, "d_model": 24}
LENS = {"n_layers": 2, "d_model": 24, "n_ctx": 17, "d_head": 6, "d_vocab": 23, "seed": 5}
LENS_CHOICES = (
    {"attn_only": True, "normalization_type": None, "positional_embedding_type": "shortformer"},
    {"attn_only": True, "normalization_type": "LNPre"},
    {"act_fn": "relu", "normalization_type": None, "d_vocab_out": 7, "use_attn_scale": False},
    {"act_fn": "gelu_new", "attention_dir": "bidirectional", "d_mlp": 30, "d_vocab_out": 2},
    {"act_fn": "silu", "normalization_type": "RMS", "attn_scale": 3.0},
    {"act_fn": "gelu", "positional_embedding_type": "rotary", "rotary_dim": 4, "n_heads": 3},
)  # fmt: skip


def drawn(seed: int) -> Config:
    draw = random.Random(seed)
    positions = draw.choice(("learned", "shortformer", "none", "rotary"))
    norm = draw.choice(("before", "none", "after"))
    return Config(
        "minibert",
        "causal-lm",
        **SIZES,
        d_mlp=draw.choice((0, 0, 30)),
        d_vocab_out=draw.choice((0, 11, 40)),
        d_head=draw.choice((0, 8)),
        n_kv_heads=draw.choice((0, 2)),
        tied=False,
        activation="relu",
        norm_eps=1e-5,
        norm_place=norm,
        final_norm=draw.random() < 0.5,
        positions=positions,
        rotary=Rotary(6) if positions == "rotary" else None,
        query_bias=draw.random() < 0.5,
        decoder_bias=draw.random() < 0.5,
    )


def model_of(config: Config, seed: int = 3) -> Model:
    model = Model.from_config(config, seed=seed).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4)
    return model


def by_hand(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """The logits, from the weights and the formulas alone."""
    config, body, weights = model.config, model.body, model.weights
    table = 0 if weights.get("W_pos") is None else weights["W_pos"][: ids.shape[1]]

    def normed(norm, x):
        return x if norm is None else F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-5)

    def of_heads(name, layer, x):
        out = torch.einsum("bpm,hmd->bhpd", x, weights[f"W_{name}"][layer])
        bias = weights.get(f"b_{name}")
        out = out if bias is None else out + bias[layer][:, None]
        if config.positions == "rotary" and name != "V":
            angles = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(3).double() / 3)
            whole = torch.complex(out[..., :3], out[..., 3:6])
            turned = whole * torch.polar(torch.ones_like(angles), angles).to(whole.dtype)
            out = torch.cat([turned.real, turned.imag, out[..., 6:]], -1)
        return out.repeat_interleave(config.n_heads // out.shape[1], 1)

    x = weights["W_E"][ids] + (table if config.positions == "learned" else 0)
    after = config.norm_place == "after"
    for layer, part in enumerate(body.layers):
        reads = x if after else normed(part.attention_norm, x)
        added = reads + (table if config.positions == "shortformer" else 0)
        query, key = of_heads("Q", layer, added), of_heads("K", layer, added)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        hidden = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        z = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ of_heads("V", layer, reads)
        x = x + torch.einsum("bhpd,hdm->bpm", z, weights["W_O"][layer]) + weights["b_O"][layer]
        x = normed(part.attention_norm, x) if after else x
        if part.mlp is not None:
            reads = x if after else normed(part.mlp_norm, x)
            inner = torch.relu(reads @ weights["W_in"][layer] + weights["b_in"][layer])
            x = x + inner @ weights["W_out"][layer] + weights["b_out"][layer]
            x = normed(part.mlp_norm, x) if after else x
    logits = normed(body.final_norm, x) @ weights["W_U"]
    return logits if weights.get("b_U") is None else logits + weights["b_U"]


@pytest.mark.parametrize("seed", range(16))
def test_logits_are_those_of_the_formulas_padded_packed_and_continued(seed, tmp_path):
    config = drawn(seed)
    model = model_of(config)
    ids = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(seed))
    wanted = by_hand(model, ids)
    trace = model.trace(ids)
    torch.testing.assert_close(trace.logits, wanted, rtol=0, atol=1e-9 * wanted.abs().max())
    torch.testing.assert_close(model(ids[:1, :5]), wanted[:1, :5], rtol=0, atol=1e-9)
    model.save(tmp_path)
    again = minibert.load(tmp_path)
    assert replace(again.config, labels=()) == config
    assert torch.equal(again(ids), model(ids))
    if config.generates:
        (text,) = model.generate(ids[:1].tolist(), max_new_tokens=4, temperature=0)
        grown = list(ids[0].tolist())
        for _ in range(4):
            grown.append(int(by_hand(model, torch.tensor([grown]))[0, -1].argmax()))
        assert list(text.ids) == grown


@pytest.mark.parametrize("seed", range(6))
def test_parts_edges_and_reasons_sum_to_what_was_computed(seed):
    config = drawn(seed)
    model = model_of(config)
    first, second = torch.randint(0, 23, (2, 1, 9), generator=torch.Generator().manual_seed(seed))
    trace, other = model.trace(first), model.trace(second)
    assert not config.d_mlp or trace[1].mlp_out.shape == trace.embed.shape
    parts = decompose(trace)
    torch.testing.assert_close(parts.values.sum(0), trace[-1].resid_post, rtol=1e-9, atol=1e-9)
    # `why` itself refuses a table that does not sum to the score.
    score = why(trace, 2, 1, query=8, key=3)
    assert score.values.sum().item() == pytest.approx(float(trace[2, 1].scores[0, 8, 3]))
    names = {str(one) for one in score.labels["key_component"]}
    assert ("position embedding" in names) == (config.positions in ("learned", "shortformer"))
    metric = logit_difference(3, 4)
    effects = path_patching(trace, other, metric, receivers=["logits"], freeze_mlps=True)
    assert bool(effects.values.isfinite().all())
    edges = edge_attribution(trace, other, metric)
    assert edges.values.shape[1] == 1 + 3 * (4 + (config.d_mlp > 0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d_vocab_out": 5, "tied": True}, "d_vocab_out"),
        ({"positions": "shortformer", "query_key_norm": "head"}, "shortformer"),
        ({"positions": "sinusoids"}, "positions"),
        ({"d_mlp": -1}, "d_mlp"),
        ({"tied": True, "d_embed": 8}, "d_embed"),
        ({"position_offset": 1}, "position_offset"),
        ({"causal": False}, "masked-lm"),
        ({"task": "token-classification"}, "labels"),
        ({"norm_place": "nowhere"}, "norm_place"),
        ({"windows": 3}, "windows is 3; expected a list"),
        ({"labels": "ab"}, "labels is 'ab'; expected a list"),
        ({"rotary": "x"}, "rotary is 'x'; expected a Rotary, or None"),
    ],
)
def test_choices_that_do_not_go_together_are_refused_by_name(change, says):
    with pytest.raises(CheckpointError, match=says):
        Config("minibert", **(SIZES | {"task": "causal-lm", "d_mlp": 8, "tied": False} | change))


@pytest.mark.parametrize("junk", [None, -1, 0, 2**70, 0.5, "rms", [], [3, 0, 1], {}, True])
def test_whatever_stands_in_a_file_the_answer_is_a_config_or_a_checkpoint_error(junk):
    about = config_to_hf(drawn(1))
    for name in about:
        try:
            config = config_from_hf(about | {name: junk})
        except CheckpointError:
            continue
        assert config_from_hf(config_to_hf(config)) == config


def test_what_does_not_take_such_a_model_says_so(tmp_path):
    small = minibert.load("tiny-gpt2")
    sizes = SIZES | {"vocab_size": small.config.vocab_size, "d_mlp": 0, "tied": False}
    config = Config("minibert", "causal-lm", **sizes)
    model = Model.from_config(config, tokenizer=small.tokenizer, name="mine")
    with pytest.raises(minibert.MinibertError, match="mine is an architecture of your own"):
        model.live()
    model.save(tmp_path)
    with pytest.raises(minibert.MinibertError, match="no such model to compare"):
        verify(tmp_path)


def test_what_a_model_without_mlps_and_norms_lacks_is_said():
    config = Config(
        "minibert", "causal-lm", **SIZES, d_mlp=0, norm_place="none", final_norm=False, tied=False
    )
    trace = model_of(config).trace([[1, 2, 3]])
    for name in ("mlp_out", "mlp_post", "attention_norm_scale"):
        with pytest.raises(minibert.TraceError, match=f"{name}: .*(no MLP|no such norm)"):
            trace[0].quantity(name)
    with pytest.raises(EditError, match="no MLP"):
        trace.rerun({("mlp_out", 0): 0.0})


@pytest.mark.parametrize("choices", LENS_CHOICES)
def test_a_config_of_transformer_lens_makes_its_model_to_the_weight(choices):
    lens = transformer_lens(major=3)
    cfg = LENS | choices
    theirs = lens.HookedTransformer(lens.HookedTransformerConfig(**cfg))
    ours = HookedTransformer(HookedTransformerConfig(**cfg))
    wanted, found = dict(theirs.named_parameters()), dict(ours.named_parameters())
    assert found.keys() == wanted.keys()
    assert theirs.state_dict().keys() - ours.state_dict().keys() <= {
        f"blocks.{layer}.attn.rotary_{each}" for layer in range(2) for each in ("sin", "cos")
    }
    for name, weight in found.items():
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.4)
    state = theirs.state_dict() | {"blocks.0.attn.IGNORE": torch.tensor(-1e10)}
    theirs.load_state_dict(state)
    ours.load_state_dict(state)
    ids = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(1))
    logits, cache = ours.run_with_cache(ids)
    expected, their_cache = theirs.run_with_cache(ids)
    torch.testing.assert_close(logits, expected, rtol=2e-5, atol=2e-5)
    assert set(cache.keys()) <= set(their_cache.keys()) | {"unembed.hook_in", "unembed.hook_out"}
    for name in their_cache:
        if name in cache and "ln" not in name:
            torch.testing.assert_close(cache[name], their_cache[name], rtol=2e-5, atol=2e-5)


def test_norms_without_weights_have_nothing_to_train():
    ours = HookedTransformer(LENS | {"act_fn": "relu", "normalization_type": "LNPre"})
    assert len([*ours.parameters()]) == len([*ours.named_parameters()])
    norms = [one for name, one in ours.model.named_parameters() if "norm" in name]
    before = [one.clone() for one in norms]
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1)
    ours(torch.randint(0, 23, (2, 9)), return_type="loss").backward()
    optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(norms, before, strict=True))


def test_weights_that_do_not_fit_are_refused_and_nothing_is_written():
    ours = HookedTransformer(LENS | LENS_CHOICES[0])
    before = {name: weight.clone() for name, weight in ours.state_dict().items()}
    given = {name: weight + 1 for name, weight in before.items()}
    for change in ({"embed.W_E": torch.zeros(2, 2)}, {"blocks.9.attn.W_Q": torch.zeros(1)}):
        with pytest.raises(CheckpointError, match=next(iter(change))):
            ours.load_state_dict(given | change)
        assert all(torch.equal(ours.state_dict()[name], before[name]) for name in before)
    ours.load_state_dict(given)
    assert torch.equal(ours.W_E, before["embed.W_E"] + 1)
    local = {"act_fn": "relu", "use_local_attn": True}
    wrongs = (
        ({"act_fn": "solu_ln"}, "activation"),
        ({"d_modle": 3}, "d_model"),
        (local, "attn_types"),
    )
    for wrong, says in wrongs:
        with pytest.raises(CheckpointError, match=says):
            HookedTransformer(LENS | wrong)
