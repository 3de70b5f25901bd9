"""The cache by TransformerLens' names: against TransformerLens where it is installed.

Its last version with a hooked model of its own (HookedTransformer) is 3.9, and 4.3 wraps those of
transformers; each test runs where the version it is about is there. What needs
no TransformerLens is checked against the trace itself and against transformers.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.loading import from_transformers
from tests.families import Sizes, batch, hf_model
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.transformer_lens_models import bridge, hooked, hooked_rotary

SIZES = Sizes(layers=2, heads=5, d_head=7, d_mlp=13, activation="gelu_new", seed=11)


def tokens_of(inputs: dict[str, Tensor], **changes: Any) -> minibert.Tokens:
    mask, segments = inputs["attention_mask"].bool(), inputs["token_type_ids"]
    given = {"mask": mask, "segments": segments} | changes
    return minibert.Tokens.from_ids(inputs["input_ids"], **given)


def real(value: Tensor, mask: Tensor, allowed: Tensor) -> Tensor:
    """What real tokens have: padding left out, of matrices also what may not be looked at."""
    batch_size, position = mask.shape
    if value.shape[-2:] == (position, position) and value.dim() == 4:
        queries = mask[:, None, :, None].expand(value.shape)
        return value[allowed.expand(value.shape) & queries]
    assert value.shape[:2] == (batch_size, position)
    return value[mask]


def check_same(trace: Any, theirs: Mapping[str, Tensor], tokens: Any) -> set[str]:
    """The names that both have, each of which was equal within 1e-5."""
    ours = trace.to_transformer_lens(attn_result=True)
    both = [name for name in ours if name in theirs]
    for name in both:
        got, wanted = ours[name], theirs[name]
        assert got.shape == wanted.shape, name
        layer = re.match(r"blocks\.(\d+)", name)
        mask = trace.mask if layer is None else trace[int(layer[1])].mask
        if name.endswith("hook_attn_scores"):
            hidden = ~mask.expand(wanted.shape)
            assert (got[hidden] == float("-inf")).all()
            assert (wanted[hidden] < -1e30).all()
        got, wanted = (real(value, tokens.mask, mask) for value in (got, wanted))
        assert len(got)
        assert (got - wanted).abs().max() <= 1e-5, name
    return set(both)


def test_gpt2_is_what_hooked_transformer_caches() -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    model = hooked(theirs)
    inputs = batch("gpt2")
    tokens = tokens_of(inputs, segments=None)
    _, cache = model.run_with_cache(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    trace = from_transformers(theirs).trace(tokens)
    assert check_same(trace, cache, tokens) == set(cache.keys())


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gemma2"])
@pytest.mark.parametrize("seed", [0, 1])
def test_rotary_models_are_what_hooked_transformer_caches(family: str, seed: int) -> None:
    # Streams of up to 30: in float32 rounding alone comes to 1e-5.
    theirs = rotary.model_of(plain(family, seed), LANGUAGE[family])
    model = hooked_rotary(theirs, torch.float64)
    inputs = rotary.batch(seed=seed)
    tokens = rotary.as_tokens(inputs)
    _, cache = model.run_with_cache(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    trace = from_transformers(theirs).trace(tokens)
    assert check_same(trace, cache, tokens) == set(cache.keys())
    ours = trace.to_transformer_lens()
    for key in (("rot_q", 1), ("rot_k", 0), ("pre", 1), "scale1ln2", ("v", -1)):
        got, wanted = (values[key][tokens.mask] for values in (ours, cache))
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_gpt2_is_what_the_bridge_caches() -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    own, model = from_transformers(theirs), bridge(theirs)
    inputs = batch("gpt2")
    tokens = tokens_of(inputs, segments=None)
    _, cache = model.run_with_cache(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    assert check_same(own.trace(tokens), cache, tokens)


# Each form that get_act_name knows, and some that it makes no name of this cache from.
SHORTHANDS = [
    *((name, layer) for name in ("q", "k", "v", "z", "pattern", "attn_scores") for layer in (0, 1)),
    *((name, -1) for name in ("result", "pre", "post", "attn_out", "mlp_out", "resid_mid")),
    *((name, 1) for name in ("attn", "attn_logits", "key", "query", "value", "mlp_pre")),
    *(("post", 1, "mlp"), ("q", 0, "a"), ("z", 1, "attention"), ("resid_pre", 1, "block")),
    *(("scale", 0, "ln1"), ("normalized", -1, "ln2"), ("normalized_resid_post", 0)),
    *("k1", "attn0", "pre1", "scale0ln1", "embed", "pos_embed", "scale", "normalized"),
    *(("embed",), ("embed", None, "embed"), ("full_embed",), ("scale", None), ("mlp_post", -2)),
    *(("in", None, "unembed"), ("blocks.0.hook_resid_pre",), ("hook_embed", None), "hook_embed"),
    *("z", ("pattern", 5), ("k", -3), ("resid_pre", 1, "x"), ("hook_resid_pre", 0), "resid_pre0"),
    *("k-1", "K1", "", "nothing", ("nothing", 0), ("token_type_embed", None, "embed")),
]


def test_shorthands_are_those_of_transformer_lens() -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    model, ids = hooked(theirs), batch("gpt2")["input_ids"]
    _, cache = model.run_with_cache(ids)
    ours = from_transformers(theirs).trace(ids).to_transformer_lens(attn_result=True)
    for key in SHORTHANDS:
        try:
            wanted = cache[key]
        except KeyError:
            assert key not in ours, key
            assert ours.get(key) is None, key
            continue
        assert key in ours, key
        torch.testing.assert_close(ours[key], wanted, atol=1e-5, rtol=0, msg=str(key))
    for key in (("k",), ("scale", -1, "ln1"), ("resid_pre", 1)):
        stacked, wanted = ours.stack_activation(*key), cache.stack_activation(*key)
        assert stacked.shape == wanted.shape
        assert (stacked - wanted).abs().max() <= 1e-5, key


def test_nothing_is_computed_before_it_is_read() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=2)))
    cache = model.trace(torch.arange(7)[None], until=1).to_transformer_lens()
    calls: list[str] = []
    model.body.layers[0].mlp.up.register_forward_hook(lambda *_: calls.append("up"))
    assert "blocks.0.mlp.hook_pre" in cache
    assert len(list(cache)) == len(cache)
    assert not calls
    assert cache["blocks.0.mlp.hook_pre"].shape == (1, 7, 23)
    assert calls == ["up"]


def test_a_trace_that_stopped_early_has_the_names_up_to_there() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=3)))
    whole = model.trace(torch.arange(7)[None]).to_transformer_lens()
    cache = model.trace(torch.arange(7)[None], until=1).to_transformer_lens()
    assert {name.split(".")[1] for name in cache if name.startswith("blocks")} == {"0", "1"}
    assert not any(name.startswith(("ln_final", "unembed")) for name in cache)
    for name, value in cache.items():
        assert torch.allclose(value, whole[name], atol=1e-5), name


def test_norms_of_half_precision_are_computed_in_single() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = from_transformers(hf_model("gpt2", "GPT2Model", Sizes(layers=1), dtype))
        trace = model.trace(torch.arange(7)[None])
        cache = trace.to_transformer_lens()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert cache["blocks.0.ln1.hook_normalized"].dtype == wide
        expected = F.layer_norm(trace.embed.double(), trace.embed.shape[-1:], eps=1e-5)
        got = cache["blocks.0.ln1.hook_normalized"].double()
        assert (got - expected).abs().max() <= 1e-5


ROTARY = ["gpt_neox", "llama", "gemma2", "olmo2"]


def test_the_table_in_the_docs_has_every_name_and_no_other() -> None:
    page = (Path(minibert.__file__).parents[1] / "docs" / "transformer_lens.md").read_text("utf-8")
    section = page.split("### All of them\n")[1].split("\n## ")[0]
    columns = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    models = {
        "gpt2": hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1)),
    }
    models |= {name: rotary.model_of(plain(name), LANGUAGE[name]) for name in ROTARY}
    # By their columns behind the names.
    tables = {1: ["gpt2"], 4: ROTARY}
    told: dict[str, set[str]] = {family: set() for family in models}
    for _, theirs, *cells, _end in columns:
        for family, ours in zip(tables[len(cells)], cells, strict=True):
            if ours.strip() != "-":
                told[family] |= set(re.findall(r"`([\w.]*hook_\w+)`", theirs))
    for family, hf in models.items():
        model = from_transformers(hf)
        cache = model.trace(torch.arange(5)[None]).to_transformer_lens(attn_result=True)
        names = {re.sub(r"^blocks\.\d+\.", "", key) for key in cache}
        assert names == told[family], family
