"""Whatever is done to logits, a metric of tokens is right or refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.analysis import answer_probability, logit_difference
from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.model import Model

RIGHT, WRONG = 5, 7
MODEL = Model.from_config(Config("gpt2", "causal-lm", 41, 31, 2, 3, 15, 23), seed=1)
# What people do to logits before they read a number of them; none of it changes the difference.
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detach": torch.Tensor.detach,
    "/ 1.0": lambda logits: logits / 1.0,
    "log_softmax": lambda logits: logits.log_softmax(-1),
    "float": torch.Tensor.float,
    "clone": torch.Tensor.clone,
    "slice": lambda logits: logits[:, 1:],
    "first sentence": lambda logits: logits[:1],
    "turned": lambda logits: logits.flip(0),
}


@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    operations=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=3),
    packed=st.booleans(),
)
def test_a_metric_is_right_or_refuses(
    lengths: list[int], operations: list[str], packed: bool
) -> None:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = torch.arange(mask.numel()).view(mask.shape) % 39 + 2
    tokens = minibert.Tokens.from_ids(ids.where(mask, 0), mask=mask)
    trace = MODEL.trace(tokens, packed=packed)
    last = torch.stack([trace.text(i).logits[0, -1] for i in range(len(lengths))])
    expected = last[:, RIGHT] - last[:, WRONG]
    metric = logit_difference(RIGHT, WRONG)
    torch.testing.assert_close(metric(trace), expected)
    own = answer_probability(RIGHT)(trace)
    torch.testing.assert_close(own, last.softmax(-1)[:, RIGHT])
    logits = trace.logits
    for name in operations:
        logits = OPERATIONS[name](logits)
    with pytest.raises(EditError, match=r"do not say where their sentences end.*lengths="):
        metric(logits)
    changed = {"slice", "first sentence", "turned"}.intersection(operations)
    if not packed and not changed:
        torch.testing.assert_close(metric(logits, lengths=tokens.lengths), expected)
        swept = trace.rerun_each([{}], lambda own: metric(through(operations, own)))
        torch.testing.assert_close(swept[0], expected)


def through(operations: list[str], logits: Any) -> Any:
    for name in operations:
        logits = OPERATIONS[name](logits)
    return logits


@pytest.mark.parametrize("lengths", [[3], [3, 10], [0, 3], [3, True], "34", 3])
def test_lengths_that_are_not_those_of_the_logits_are_refused(lengths: Any) -> None:
    with pytest.raises(EditError, match="lengths"):
        logit_difference(RIGHT, WRONG)(torch.zeros(2, 9, 41), lengths=lengths)
