"""Analyses of attached traces give what they give of the same weights loaded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minibert
from minibert import TraceError
from minibert.analysis import logit_lens
from minibert.analysis.lens import POINTS
from minibert.text.tokens import Tokens
from tests.attached.live_models import bart, bert, bert_mlm, gpt2, ids, llama
from tests.attached.test_block import gemma2, granite, neox, t5

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
