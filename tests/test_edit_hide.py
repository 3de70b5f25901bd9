"""Hidden keys, scores that leave nothing to attend to, and numbers of other libraries."""

from typing import Any

import numpy as np
import pytest
import torch

from minibert.errors import EditError
from minibert.trace.edit import hide, replace
from tests.editing import close, model_of, sentences


@pytest.mark.parametrize("keys", [1, [1, 3], slice(1, 4, 2), -12])
def test_hidden_keys_get_no_weight_and_the_others_share_it(keys: Any) -> None:
    model, tokens = model_of("gpt2"), sentences("gpt2")
    places = keys if isinstance(keys, list | slice) else [keys]
    before = model.trace(tokens)[1, 2].probs
    edit = {("scores", 1, 2): hide(keys, positions=slice(4, None))}
    probs = model.trace(tokens, edit=edit)[1, 2].probs
    assert (probs[:, 4:, places] == 0).all()
    expected = before.clone()
    expected[:, 4:, places] = 0
    expected /= expected.sum(-1, keepdim=True)
    assert close(probs, expected)
    assert not close(probs, before)


@pytest.mark.parametrize(
    "edits",
    [
        {
            ("scores", 0): hide([0, 1, 2], positions=5),
            ("scores", 0, 1): hide([3, 4, 5], positions=5),
        },
        {("scores", 1): lambda scores: scores - torch.inf},
        {("scores", 1, 2): lambda scores: scores * torch.nan},
    ],
)
def test_scores_that_leave_nothing_to_attend_to_are_refused(edits: Any) -> None:
    trace = model_of("gpt2").trace(sentences("gpt2")[0])
    for run in (trace.rerun, lambda edit: trace.rerun_each([edit], lambda z: z[:, 0, 0])):
        with pytest.raises(EditError, match="without a key"):
            run(edits)


def test_numbers_and_positions_of_other_libraries_are_numbers_and_positions() -> None:
    model, tokens = model_of("bert"), sentences("bert")
    expected = model.trace(tokens, edit={("z", 1): replace(2.0, positions=[1, 3])}).logits
    for number in (np.float32(2), np.int64(2), 2):
        for places in (np.array([1, 3]), torch.tensor([1, 3])):
            edit = {("z", 1): replace(number, positions=places)}
            assert torch.equal(model.trace(tokens, edit=edit).logits, expected)
