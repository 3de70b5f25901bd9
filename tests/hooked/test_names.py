"""The names of the cache: against the trace, the docs, and TransformerLens where it is installed.

Its last version with a hooked model of its own (HookedTransformer) is 3.9, and 4.3 wraps those of
transformers; each test runs where the version it is about is there.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.model import from_transformers
from minibert.transformer_lens import HookedTransformer
from tests.families import batch, hf_model
from tests.hooked.models import SIZES, close, ids, ours_of
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.transformer_lens_models import bridge, hooked

ROTARY = ["gpt_neox", "llama", "gemma2", "olmo2"]


def drawn(family: str) -> Any:
    """A random model of transformers."""
    if family == "gpt2":
        return hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    return rotary.model_of(plain(family), LANGUAGE[family])


def of_trace(trace: minibert.Trace) -> Iterator[tuple[str, Tensor]]:
    """Each name that stands for a quantity as it is, or with its heads behind its positions."""
    config = trace.config
    turned = "_unrotated" if config.rotary else ""
    heads = {"v": "value", "z": "z", "result": "head_out"}
    if config.query_key_norm == "none":
        heads |= {"q": f"query{turned}", "k": f"key{turned}"}
    heads |= {"rot_q": "query", "rot_k": "key"} if turned else {}
    plain = {"attn.hook_pattern": "probs", "mlp.hook_post": "mlp_post", "mlp.hook_pre": "mlp_pre"}
    if config.gated:
        plain |= {"mlp.hook_pre": "mlp_gate", "mlp.hook_pre_linear": "mlp_pre"}
    stream = ("resid_pre", "resid_post", *(() if config.parallel else ("resid_mid",)))
    added = ("attn_out", "mlp_out") if config.norm_place == "before" else ()
    plain |= {f"hook_{name}": name for name in (*stream, *added)}
    for number, layer in enumerate(trace):
        at = f"blocks.{number}."
        for short, name in heads.items():
            yield f"{at}attn.hook_{short}", layer.quantity(name).transpose(1, 2)
        for name, quantity in plain.items():
            yield at + name, layer.quantity(quantity)
        if config.norm_place == "both":
            yield f"{at}hook_attn_out", layer.resid_mid - layer.resid_pre
            yield f"{at}hook_mlp_out", layer.resid_post - layer.resid_mid
        if config.norm_place != "output":
            read_by_mlp = layer.resid_pre if config.parallel else layer.resid_mid
            for norm, x in (("ln1", layer.resid_pre.double()), ("ln2", read_by_mlp.double())):
                if config.norm == "rms":
                    scale = (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
                else:
                    scale = (x.var(-1, keepdim=True, correction=0) + config.norm_eps).sqrt()
                    x = x - x.mean(-1, keepdim=True)
                yield f"{at}{norm}.hook_scale", scale
                yield f"{at}{norm}.hook_normalized", x / scale
    yield "unembed.hook_in", trace.hidden
    if config.logit_soft_cap is None:
        yield "unembed.hook_out", trace.logits


@pytest.mark.parametrize("family", ["gpt2", *ROTARY])
def test_a_name_holds_the_quantity_of_the_trace(family: str) -> None:
    model = ours_of(drawn(family))
    with torch.no_grad():
        _, cache = model.run_with_cache(ids())
        expected = dict(of_trace(model.model.trace(ids())))
    assert len(expected) > 20
    for name, wanted in expected.items():
        close(cache[name].to(wanted.dtype), wanted, name)


def test_norms_of_half_precision_are_computed_in_single() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = HookedTransformer(
            from_transformers(hf_model("gpt2", "GPT2LMHeadModel", SIZES, dtype))
        )
        with torch.no_grad():
            _, cache = model.run_with_cache(ids())
        found, read = cache["normalized", 0, "ln1"], cache["resid_pre", 0].double()
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        expected = F.layer_norm(read, read.shape[-1:], eps=1e-5)
        assert (found.double() - expected).abs().max() <= 1e-5


def test_gpt2_is_what_the_bridge_caches() -> None:
    theirs, inputs = hf_model("gpt2", "GPT2LMHeadModel", SIZES), batch("gpt2")
    given = {"input": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    both_models = (bridge(theirs), ours_of(theirs))
    wanted, found = (model.run_with_cache(**given)[1] for model in both_models)
    real = inputs["attention_mask"].bool()
    both = [name for name in found if name in wanted and found[name].shape[:2] == real.shape]
    assert both
    for name in both:
        close(found[name][real], wanted[name][real], name)


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
    given = batch("gpt2")["input_ids"]
    cache, ours = (model.run_with_cache(given)[1] for model in (hooked(theirs), ours_of(theirs)))
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


def test_the_table_in_the_docs_has_every_name_and_no_other() -> None:
    page = (Path(minibert.__file__).parents[1] / "docs" / "transformer_lens.md").read_text("utf-8")
    section = page.split("### All of them\n")[1].split("\n## ")[0]
    columns = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    # By their columns behind the names.
    tables = {1: ["gpt2"], 4: ROTARY}
    told: dict[str, set[str]] = {family: set() for family in ("gpt2", *ROTARY)}
    for _, theirs, *cells, _end in columns:
        for family, ours in zip(tables[len(cells)], cells, strict=True):
            if ours.strip() != "-":
                told[family] |= set(re.findall(r"`([\w.]*hook_\w+)`", theirs))
    for family in told:
        _, cache = ours_of(drawn(family)).run_with_cache(ids())
        names = {re.sub(r"^blocks\.\d+\.", "", key) for key in cache}
        assert names == told[family], family
