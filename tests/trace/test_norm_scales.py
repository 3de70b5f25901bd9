"""What norms divide by: read and edited, beside hooks on transformers' own norms."""

from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.errors import EditError, TraceError
from minibert.trace.edit import replace, zero
from minibert.trace.read import Trace
from tests.families import difference
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.rotary.theirs import as_tokens as as_ragged
from tests.rotary.theirs import batch as ragged
from tests.rotary.theirs import model_of as rotary_of
from tests.trace.editing import model_of, sentences
from tests.trace.norms_of_peers import (
    FAMILIES,
    FINAL,
    LAYER,
    NORMS,
    Pair,
    divided_by,
    rewritten,
    scale_by_hand,
)

WITH_NORMS = [family for family in FAMILIES if family in NORMS]
TOLERANCE = 1e-10


def changed(scale: Tensor) -> Tensor:
    """Another scale at each position."""
    factors = 0.5 + torch.arange(scale.shape[1], dtype=scale.dtype)[:, None] / 3
    return scale * factors


@pytest.mark.parametrize("family", WITH_NORMS)
def test_each_scale_is_that_of_transformers_and_an_edit_is_a_hook_there(family: str) -> None:
    pair = Pair(family)
    real, trace = pair.tokens.mask, pair.ours.trace(pair.tokens)
    places: dict[Any, torch.nn.Module] = {
        (f"{name}_scale", LAYER): pair.module(path) for name, path in NORMS[family][1].items()
    }
    if family in FINAL:
        places["final_norm_scale"] = pair.module(FINAL[family], None)
    for key, module in places.items():
        seen: list[Tensor] = []

        def see(module: Any, x: Tensor, out: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(scale_by_hand(module, x))
            return out

        with rewritten((module, see)):
            pair.logits()
        found = trace.final_norm_scale if isinstance(key, str) else trace[LAYER].quantity(key[0])
        assert found.shape == (*real.shape, 1)
        assert difference(found[real], seen[0][real]) <= TOLERANCE, key
        with rewritten((module, divided_by(changed))):
            expected = pair.logits()
        for edited in (
            trace.rerun({key: changed}),
            pair.ours.trace(pair.tokens, edit={key: changed}),
        ):
            assert difference(edited.logits[real], expected[real]) <= TOLERANCE, key
        assert difference(expected[real], trace.logits[real]) > 1e-6, key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_scale_of_other_dtypes_is_written_back_to_the_bit(
    family: str, dtype: torch.dtype
) -> None:
    model, tokens = model_of(family, dtype), sentences(family)
    trace = model.trace(tokens)
    for name in ("attention_norm_scale", "mlp_norm_scale"):
        found = getattr(trace[1], name)
        assert found.dtype == dtype
        assert torch.equal(trace.rerun({(name, 1): found}).logits, trace.logits)


def test_a_pass_that_nobody_asks_for_scales_computes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = model_of("gpt2", torch.float64), sentences("gpt2")
    expected = model.trace(tokens).logits

    def never(*_: Any) -> Tensor:
        raise AssertionError("a scale was computed")

    monkeypatch.setattr("minibert.layers.layer.divisor", never)
    monkeypatch.setattr("minibert.trace.run.divisor", never)
    trace = model.trace(tokens)
    assert torch.equal(trace.logits, expected)
    assert torch.equal(model(tokens), expected)
    trace.rerun({("z", 1): lambda z: 2 * z})
    with pytest.raises(AssertionError, match="a scale was computed"):
        _ = trace[1].mlp_norm_scale


def test_the_cache_by_other_names_has_the_edited_scale() -> None:
    model = model_of("gpt2", torch.float64)
    edit: Any = {("attention_norm_scale", 1): changed, "final_norm_scale": changed}
    trace = model.trace(sentences("gpt2"), edit=edit)
    cache = trace.to_transformer_lens()
    plain = model.trace(sentences("gpt2")).to_transformer_lens()
    for name, ours in (
        ("blocks.1.ln1.hook_scale", trace[1].attention_norm_scale),
        ("blocks.2.ln2.hook_scale", trace[2].mlp_norm_scale),
        ("ln_final.hook_scale", trace.final_norm_scale),
    ):
        assert torch.equal(cache[name], ours)
    divided = cache["blocks.1.ln1.hook_normalized"] * cache["blocks.1.ln1.hook_scale"]
    whole_again = plain["blocks.1.ln1.hook_normalized"] * plain["blocks.1.ln1.hook_scale"]
    assert difference(divided, whole_again) <= TOLERANCE


def test_what_a_model_or_a_trace_lacks_is_refused_in_its_own_words() -> None:
    bert, gpt2 = (model_of(family).trace(sentences(family)) for family in ("bert", "gpt2"))
    early = gpt2.model.trace(gpt2.tokens, until=1)
    # The first layer of ModernBERT alone has no norm of attention.
    live = minibert.load(rotary_of(plain("modernbert"), LANGUAGE["modernbert"]))
    modern = live.trace(as_ragged(ragged((7, 3))))
    first = "the first layer of modernbert has no norm of attention"
    edits: list[tuple[Trace, dict[Any, Any], str]] = [
        (bert, {"final_norm_scale": 1.0}, "has no such norm; there are attention_norm_scale"),
        (early, {"final_norm_scale": 1.0}, "a trace with until=1 has no final_norm_scale"),
        (gpt2, {("mlp_norm_scale", 1, 0): 1.0}, "mlp_norm_scale has no heads"),
        (gpt2, {("final_norm_scale", 1): 1.0}, "final_norm_scale has no layers"),
        (gpt2, {("mlp_norm_scale", 1): torch.ones(3, 13, 2)}, r"does not fit \(3, 13, 1\)"),
        (modern, {("attention_norm_scale", 0): 1.0}, first),
    ]
    for trace, edit, words in edits:
        with pytest.raises(EditError, match=words):
            trace.rerun(edit)
    for read, words in (
        (lambda: bert.final_norm_scale, "has no such norm"),
        (lambda: early.final_norm_scale, "final_norm_scale needs every layer"),
        (
            lambda: gpt2[1].attention_output_norm_scale,
            "attention_output_norm_scale: gpt2 has no such norm",
        ),
        (lambda: modern[0].attention_norm_scale, first),
    ):
        with pytest.raises(TraceError, match=words):
            read()
    assert modern[1].attention_norm_scale.shape == (2, 7, 1)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_scale_that_nothing_can_be_divided_by_is_refused(family: str) -> None:
    pair = Pair(family)
    trace = pair.ours.trace(pair.tokens)
    keys: list[Any] = [("attention_norm_scale", LAYER), ("mlp_norm_scale", LAYER)]
    keys += ["final_norm_scale"] if family in FINAL else []
    # The reciprocal of the smallest of these is beyond float64.
    for edit in (0.0, -0.0, 1e-320, zero, lambda scale: scale * 0, lambda scale: scale * torch.nan):
        for key in keys:
            with pytest.raises(EditError, match=r"_norm_scale.*: the norm divides by this"):
                trace.rerun({key: edit})
    at_one = replace(0.0, positions=-1, sentences=1)
    with pytest.raises(EditError, match=r"made 0 of it at position \d+ of sentence 1"):
        trace.rerun({keys[0]: at_one})
    for edit in (1e-3, -2.0):
        assert bool(trace.rerun(dict.fromkeys(keys, edit)).logits.isfinite().all())


def test_a_sweep_refuses_a_scale_of_zero() -> None:
    pair = Pair("gpt2")
    with pytest.raises(EditError, match="the norm divides by this"):
        pair.ours.trace(pair.tokens).rerun_each(
            [{("mlp_norm_scale", LAYER): zero}], lambda logits: logits[:, -1, 0]
        )
