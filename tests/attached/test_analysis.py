"""Analyses of attached traces give what they give of the same weights loaded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import minibert
from minibert import TraceError
from minibert.analysis import (
    ablate_heads,
    attention_knockout,
    causal_tracing,
    decompose,
    logit_difference,
    logit_lens,
    patch_heads,
    patch_positions,
    why_logit,
)
from minibert.analysis.lens import POINTS
from minibert.errors import EditError
from minibert.text.tokens import Tokens
from minibert.trace.edit import hide, zero
from tests.attached.live_models import bart, bert, bert_mlm, gpt2, ids, llama
from tests.attached.test_block import gemma2, gemma3, granite, neox, olmo2, t5

MASK = torch.arange(7) < torch.tensor([[7], [4]])
PADDED = {"input_ids": ids(), "attention_mask": MASK.long()}


@pytest.mark.parametrize("build", [gpt2, llama, bert_mlm, gemma2, neox])
def test_the_logit_lens_is_that_of_the_same_weights_loaded(build: Callable[[], Any]) -> None:
    live = build().double()
    trace = minibert.attach(live).trace(**PADDED)
    own = minibert.load(live).trace(Tokens.from_ids(ids(), mask=MASK))
    points = [point for point in POINTS if point != "resid_mid" or hasattr(trace[0], point)]
    for positions in (None, [-1, 0]):
        found, expected = (
            logit_lens(one, points=points, positions=positions, keep_logits=True)
            for one in (trace, own)
        )
        assert found.rows == expected.rows
        assert found.positions == expected.positions
        for n, places in enumerate(found.positions):
            ours, wanted = (one.logits[:, n, : len(places)] for one in (found, expected))
            # transformers rotates and norms in float32.
            assert (ours - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("build", [granite, t5])
def test_the_last_row_of_the_lens_is_what_the_model_predicts(build: Callable[[], Any]) -> None:
    """Factors around the head, and the decoder of two stacks."""
    more = {"decoder_input_ids": ids(2, 5)} if build is t5 else {}
    trace = minibert.attach(build()).trace(input_ids=ids(), **more)
    found = logit_lens(trace, keep_logits=True)
    assert found.logits is not None
    assert (found.logits[-1] - trace.logits).abs().max() < 1e-5


def test_what_has_no_lens_says_why() -> None:
    with pytest.raises(TraceError, match="returned no logits of tokens"):
        logit_lens(minibert.attach(bert()).trace(ids()))
    model = bart()
    with pytest.raises(TraceError, match="returned no logits of tokens"):
        logit_lens(minibert.attach(model).trace(ids(), decoder_input_ids=ids(2, 5)))
    attached = minibert.attach(gpt2())
    trace = attached.trace(ids())
    with torch.no_grad():
        attached.model.lm_head.weight.mul_(2)
    with pytest.raises(TraceError, match="were changed after this trace"):
        logit_lens(trace)


@pytest.mark.parametrize("build", [gpt2, llama, bert_mlm, gemma2, neox])
def test_a_stream_decomposes_as_that_of_the_same_weights_loaded(build: Callable[[], Any]) -> None:
    live = build().double()
    trace = minibert.attach(live).trace(**PADDED)
    own = minibert.load(live).trace(Tokens.from_ids(ids(), mask=MASK))
    for point in ("resid_pre", "resid_post"):
        for heads in (True, False):
            found, expected = (
                decompose(one, 1, point=point, heads=heads, positions=[0, -1])
                for one in (trace, own)
            )
            assert found.components == expected.components
            # transformers rotates and norms in float32.
            assert (found.values - expected.values).abs().max() < 1e-4
            assert found.tokens == expected.tokens


@pytest.mark.parametrize("build", [gpt2, llama, gemma2, neox, granite])
def test_a_logit_is_the_sum_that_it_is_of_the_same_weights_loaded(
    build: Callable[[], Any],
) -> None:
    live = build().double()
    trace = minibert.attach(live).trace(**PADDED)
    found = why_logit(trace, 5, against=7, position=-2, sentence=1)
    assert abs(found.total - found.number) < 1e-4
    if build is not gemma2:
        # Gemma 2 caps them.
        assert abs(found.number - float(trace.logits[1, 2, 5] - trace.logits[1, 2, 7])) < 1e-9
    if build is granite:
        return
    own = minibert.load(live).trace(Tokens.from_ids(ids(), mask=MASK))
    expected = why_logit(own, 5, against=7, position=-2, sentence=1)
    # A loaded trace has the embeddings one by one.
    ours = {str(c): float(v) for c, v in zip(found.components, found.values, strict=True)}
    theirs = {str(c): float(v) for c, v in zip(expected.components, expected.values, strict=True)}
    assert {*ours} - {*theirs} <= {"embed"}
    assert all(abs(ours[name] - theirs[name]) < 1e-4 for name in {*ours} & {*theirs})
    assert (found.by_head() - expected.by_head()).abs().max() < 1e-4
    with pytest.raises(TraceError, match="of an attached model is not followed"):
        found.follow("mlp 0")


@pytest.mark.parametrize("build", [olmo2, gemma3])
def test_rows_of_padding_that_are_zero_do_not_hide_a_norm(build: Callable[[], Any]) -> None:
    live = build()
    live.set_attn_implementation("sdpa")
    mask = torch.arange(7) >= torch.tensor([[0], [3]])
    trace = minibert.attach(live).trace(input_ids=ids(), attention_mask=mask.long())
    assert not trace[1].attn_out[1, :3].any()
    stream = trace[-1].resid_post
    found = decompose(trace, positions=[-1, 0]).total
    for row, expected in enumerate((stream[0, [-1, 0]], stream[1, [-1, 3]])):
        assert (found[row] - expected).abs().max() < 1e-5 * stream.abs().max()
    why = why_logit(trace, 5, position=-1, sentence=1)
    assert abs(why.total - float(trace.logits[1, -1, 5])) < 1e-4


def test_a_factor_is_in_the_parts() -> None:
    trace = minibert.attach(granite()).trace(ids())
    found = decompose(trace)
    assert (found.total - trace[-1].resid_post).abs().max() < 1e-5
    place = found.components.index("mlp 1")
    assert (found.values[place] - 0.22 * trace[1].mlp_out).abs().max() < 1e-6


METRIC = logit_difference([5, 11], [7, 2])


@pytest.mark.parametrize("build", [gpt2, llama, neox])
def test_patching_is_that_of_the_same_weights_loaded(build: Callable[[], Any]) -> None:
    live = build().double()
    attached, model = minibert.attach(live), minibert.load(live)
    # Padding in front, which a loaded model does not have.
    left = torch.stack([ids()[0], ids()[1].roll(3)])
    mask = torch.arange(7) >= torch.tensor([[0], [3]])
    options = {"attention_mask": mask.long(), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    traces = [
        (attached.trace(left, **options), attached.trace(left.flip(0), **options)),
        tuple(
            model.trace(Tokens.from_ids(torch.stack([one[0], one[1].roll(-3)]), mask=MASK))
            for one in (left, left.flip(0))
        ),
    ]
    runs: list[Callable[[Any, Any], Any]] = [
        lambda one, other: ablate_heads(one, METRIC),
        lambda one, other: patch_heads(one, other, METRIC, name="key"),
        lambda one, other: patch_positions(one, other, METRIC, aligned={"end": -1, "start": 0}),
        lambda one, other: patch_positions(
            one, other, METRIC, name="mlp_post", aligned={"start": 0}, positions=[-2]
        ),
        lambda one, other: attention_knockout(one, {"start": (-1, 0)}, METRIC, window=2),
    ]
    for run in runs[: 3 if build is neox else None]:
        found, expected = (run(*pair) for pair in traces)
        assert found.names == expected.names
        # transformers rotates in float32.
        assert (found.values - expected.values).abs().max() < 1e-4
        assert (found.clean - expected.clean).abs().max() < 1e-4
        assert (
            found.values - found.clean[:, None][(...,) + (None,) * (found.values.dim() - 3)]
        ).abs().max() > 1e-2


def test_the_passes_of_an_analysis_have_the_positions_of_the_trace() -> None:
    """Padding in front is counted by GPT-2."""
    attached = minibert.attach(gpt2().double())
    mask = (torch.arange(7) >= torch.tensor([[0], [3]])).long()
    trace = attached.trace(input_ids=ids(), attention_mask=mask)
    ablated = ablate_heads(trace, METRIC)
    blocked = attention_knockout(trace, {"start": (-1, 0)}, METRIC)
    for found, edit in (
        (ablated.clean, {}),
        (ablated.values[1, :, 2], {("z", 1, 2): zero}),
        (blocked.values[1, :, 0], {("scores", 1): hide(0, positions=-1)}),
    ):
        logits = trace.rerun(edit).logits[:, -1]
        expected = logits[range(2), [5, 11]] - logits[range(2), [7, 2]]
        assert (found - expected).abs().max() < 1e-11


def test_a_source_may_have_other_padding() -> None:
    attached = minibert.attach(llama().double())
    mask = (torch.arange(7) >= torch.tensor([[0], [3]])).long()
    trace = attached.trace(input_ids=ids(), attention_mask=mask)
    wider = [nn.functional.pad(one, (2, 1)) for one in (ids().flip(0), mask)]
    sources = (
        attached.trace(input_ids=ids().flip(0), attention_mask=mask),
        attached.trace(input_ids=wider[0], attention_mask=wider[1]),
    )
    for patch in (partial(patch_heads, name="z"), partial(patch_positions, aligned={"end": -1})):
        one, other = (patch(trace, source, METRIC) for source in sources)
        # transformers rotates in float32.
        assert (one.values - other.values).abs().max() < 1e-4
        assert (one.values - one.clean[:, None]).abs().max() > 1e-2


def test_what_needs_a_loaded_model_says_so() -> None:
    trace = minibert.attach(gpt2()).trace(ids())
    with pytest.raises(TraceError, match=r"attached model.*read by logit_lens, decompose"):
        causal_tracing(trace, 0, METRIC)
    with pytest.raises(TraceError, match="is a BertOnlyMLMHead, and not one projection"):
        why_logit(minibert.attach(bert_mlm()).trace(ids()), 5)
    edited = trace.rerun({("mlp_out", 1): zero})
    assert decompose(edited).total.shape == (2, 7, 44)
    with pytest.raises(TraceError, match="not the sum of what its components wrote"):
        decompose(trace.rerun({("resid_post", 1): zero}))
    with pytest.raises(TraceError, match="was made with edits"):
        ablate_heads(edited, METRIC)
    with pytest.raises(EditError, match="of another model"):
        patch_heads(trace, minibert.attach(gpt2(n_layer=3)).trace(ids()), METRIC)
