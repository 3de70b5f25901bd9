"""Analyses of a pass whose norms divided by what an edit wrote.

The logits of such passes are compared with hooks on transformers' own norms in
tests/trace/test_norm_scales.py; here the parts have to add up to them.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

from minibert.analysis import block_norms, decompose, logit_attribution, logit_lens
from minibert.trace.edit import replace
from tests.trace.test_norm_scales import changed

FAMILIES = pytest.mark.parametrize(("family", "name"), VOCABULARY_CLASSES + ROTARY_CLASSES)
SCALES = (
    "attention_norm_scale",
    "attention_output_norm_scale",
    "mlp_norm_scale",
    "mlp_output_norm_scale",
)


def edits_of(model: Any) -> dict[Any, Any]:
    """Another scale in every norm of the model."""
    config = model.config
    keys: list[Any] = [
        (name, layer)
        for name in SCALES
        for layer in range(config.n_layers)
        if name not in config.absent_in(layer)
    ]
    keys += [] if "final_norm_scale" in config.absent_quantities else ["final_norm_scale"]
    return dict.fromkeys(keys, changed)


def edited(family: str, name: str, *, grad: bool = False) -> tuple[Any, Any]:
    """The plain trace of three sentences, and the one with other scales."""
    _, model, _, tokens = both(family, name)
    edit = edits_of(model)
    assert edit
    return model.trace(tokens), model.trace(tokens, edit=edit, grad=grad)


@FAMILIES
def test_what_is_written_into_a_logit_adds_up_to_the_edited_logit(family: str, name: str) -> None:
    plain, trace = edited(family, name)
    for position in (0, -1):
        found = logit_attribution(trace, 7, against=11, position=position, sentence=None)
        size = found.values.abs().max().clamp_min(1)
        assert ((found.total - found.logit).abs() <= 1e-10 * size).all()
        if trace.config.logit_soft_cap is None:
            rows = torch.arange(trace.allowed.batch)
            logits = trace.logits[rows, found.positions]
            assert torch.equal(found.logit, logits[:, 7] - logits[:, 11])
        before = logit_attribution(plain, 7, against=11, position=position, sentence=None)
        assert (found.logit - before.logit).abs().min() > 1e-9


@FAMILIES
def test_the_parts_of_an_edited_stream_add_up_to_it(family: str, name: str) -> None:
    _, trace = edited(family, name)
    for point in ("resid_mid", "resid_post"):
        found = decompose(trace, point=point)
        stream = getattr(trace[-1], point)
        size = max(1.0, found.values.abs().max().item())
        assert (found.total - stream).abs().max() <= 1e-10 * size


@FAMILIES
@pytest.mark.parametrize("grad", [False, True])
def test_the_last_row_of_the_lens_is_what_the_edited_model_predicts(
    family: str, name: str, grad: bool
) -> None:
    plain, trace = edited(family, name, grad=grad)
    columns = trace.inputs.mask.sum(1).min().item()
    for positions in (None, range(columns)):
        lens = logit_lens(trace, positions=positions, keep_logits=True)
        expected = trace.logits.detach()[:, : lens.logits.shape[2]]
        assert (lens.logits[-1] - expected).abs().max() <= 1e-10
    # Where nobody edits the last norm, each row is divided by what is found in it.
    edit = {("z", 0): lambda z: z}
    again = logit_lens(plain.model.trace(plain.tokens, edit=edit, grad=grad), keep_logits=True)
    known = logit_lens(plain, keep_logits=True)
    assert (again.logits - known.logits).abs().max() <= 1e-10


def test_every_row_of_the_lens_is_divided_by_the_edited_scale() -> None:
    _, model, _, tokens = both("llama", "LlamaForCausalLM")
    trace = model.trace(tokens, edit={"final_norm_scale": replace(2.0, positions=-1, sentences=0)})
    lens = logit_lens(trace, keep_logits=True)
    plain = logit_lens(model.trace(tokens), keep_logits=True)
    for row, layer in enumerate(trace):
        weight = model.body.final_norm.weight * model.head.decoder.weight
        last = tokens.lengths[0] - 1
        expected = layer.resid_post[0, last] / 2 @ weight.T
        torch.testing.assert_close(lens.logits[row, 0, last], expected)
        torch.testing.assert_close(lens.logits[row, 1:], plain.logits[row, 1:])


def halved(scale: Tensor) -> Tensor:
    """Half of what the norm would divide by."""
    return scale / 2


def test_half_the_scale_of_a_norm_behind_attention_doubles_the_norms_of_the_block() -> None:
    _, model, _, tokens = both("bert", "BertForMaskedLM")
    plain, trace = (
        block_norms(model.trace(tokens, edit=edit), 0)
        for edit in ({}, {("attention_norm_scale", 0): halved})
    )
    torch.testing.assert_close(trace.values, 2 * plain.values)
    torch.testing.assert_close(trace.mixing, plain.mixing)


def test_half_the_scale_of_a_norm_of_the_output_doubles_what_others_move() -> None:
    _, model, _, tokens = both("gemma2", "Gemma2ForCausalLM")
    edit = {("attention_output_norm_scale", 1): halved}
    plain, trace = (block_norms(model.trace(tokens, edit=each), 1).values for each in ({}, edit))
    others = ~torch.eye(plain.shape[-1], dtype=torch.bool).expand_as(plain)
    torch.testing.assert_close(trace[others], 2 * plain[others])


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "qwen3", "gpt2"])
def test_the_cache_of_an_edited_pass_has_what_was_added_and_read(family: str) -> None:
    _, trace = edited(family, dict(VOCABULARY_CLASSES + ROTARY_CLASSES)[family])
    cache = trace.to_transformer_lens()
    for number, layer in enumerate(trace):
        attention, mlp = (cache[f"blocks.{number}.hook_{name}_out"] for name in ("attn", "mlp"))
        torch.testing.assert_close(layer.resid_pre + attention, layer.resid_mid)
        torch.testing.assert_close(layer.resid_mid + mlp, layer.resid_post)
        if family == "qwen3":
            weights = trace.model.body.layers[number]
            read = layer.resid_pre / layer.attention_norm_scale * weights.attention_norm.weight
            query = read @ weights.attention.query.weight.T
            found = cache[f"blocks.{number}.attn.hook_q"].flatten(-2)
            torch.testing.assert_close(found, query)
