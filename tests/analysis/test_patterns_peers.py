"""The scores of heads on repeated sequences equal those of TransformerLens' head detector."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import head_scores, repeated_ids
from minibert.loading import from_transformers
from tests.families import VOCABULARY, Sizes, hf_model
from tests.transformer_lens_models import lens_model

pytest.importorskip("transformer_lens")

LENGTH, DRAWS = 13, 7


def detected(peer: Any, ids: Tensor, kind: str) -> Tensor:
    """The share of all attention that lies where their detector says, (layer, head)."""
    from transformer_lens import head_detector

    marks = getattr(head_detector, f"get_{kind}_head_detection_pattern")(ids)
    _, known = peer.run_with_cache(ids)
    options = {"exclude_bos": False, "exclude_current_token": False, "error_measure": "mul"}
    score = head_detector.compute_head_attention_similarity_score
    return torch.tensor(
        [
            [score(probs, detection_pattern=marks, **options) for probs in known["pattern", n][0]]
            for n in range(3)
        ]
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_induction_duplicate_and_previous_scores_are_those_of_their_detector(seed: int) -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(seed=seed))
    model, peer = from_transformers(theirs), lens_model(theirs)
    ids = repeated_ids(VOCABULARY, length=LENGTH, draws=DRAWS, seed=seed)
    found = head_scores(model, ids, repeated=ids)
    # They divide by the attention of all rows, we by that of the rows that can follow the pattern.
    rows = 2 * LENGTH
    shares = {"induction": rows / LENGTH, "duplicate_token": 2, "previous_token": rows / (rows - 1)}
    for kind, share in shares.items():
        expected = torch.stack([detected(peer, row[None], kind) for row in ids]).mean(0) * share
        ours = getattr(found, kind.removesuffix("_token"))
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)
        # The heads differ by far more than the tolerance.
        assert expected.max() - expected.min() > 1e-3
