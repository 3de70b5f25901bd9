"""What a model was trained to predict in a text: its own loss, for measures that differentiate it.

A causal model predicts the next token of each; a masked language model the tokens that are hidden
from it. The loss of a segment is the sum of −ln p(right token) over what is predicted, so that one
weight of a long text counts as much as one of a short text.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError
from minibert.layers.heads import VocabularyHead
from minibert.survey.document_traces import generator_of

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.segments import Segment

__all__ = ["Objective", "Predicted"]

Whole = npt.NDArray[np.int64]
#: Of the tokens of a text this share is hidden, as in BERT's training (Devlin et al. 2019, §3.1).
MASKED = 0.15
SEED = 0


@dataclass(frozen=True, eq=False)
class Predicted:
    """A segment as its loss is computed.

    ids      what the model reads
    places   where it predicts a token
    right    the id of each
    """

    ids: Whole
    places: Whole
    right: Whole


@dataclass(frozen=True)
class Objective:
    """What is predicted in a segment; `mask_id` hides a token, None: the next token is predicted.

    Which tokens are hidden depends on the seed and on the segment's own tokens, so that a text has
    the same loss in every corpus.
    """

    mask_id: int | None

    @classmethod
    def of(cls, model: "Model") -> "Objective":
        """That of a model. Raises SurveyError for one that predicts no tokens."""
        task = model.config.task
        if not isinstance(model.head, VocabularyHead):
            raise SurveyError(
                f"gradients=True: {model.name} ({model.config.family}, task {task}) predicts no "
                "tokens, so that a text has no loss to differentiate. Models that do have the task "
                "masked-lm, causal-lm or, of BERT and ALBERT, pre-training, such as tiny-bert and "
                "tiny-gpt2; leave gradients out for others."
            )
        if task == "causal-lm":
            return cls(None)
        mask_id = None if model.tokenizer is None else model.tokenizer.mask_id
        if mask_id is None:
            raise SurveyError(
                f"gradients=True: the tokenizer of {model.name} has no mask token, which its task "
                f"{task} needs; leave gradients out."
            )
        return cls(mask_id)

    def predicted(self, segment: "Segment") -> Predicted:
        """What is predicted in a segment, and what the model reads instead."""
        ids = np.array(segment.ids, dtype=np.int64)
        if self.mask_id is None:
            return Predicted(ids, np.arange(len(ids) - 1), ids[1:])
        inside = np.flatnonzero(segment.tokens.text >= 0)
        count = max(1, round(MASKED * len(inside)))
        chance = generator_of(SEED, " ".join(map(str, segment.ids)))
        places = np.sort(chance.choice(inside, count, replace=False))
        hidden = ids.copy()
        hidden[places] = self.mask_id
        return Predicted(hidden, places, ids[places])

    def told(self) -> dict[str, Any]:
        """The same for a manifest."""
        if self.mask_id is None:
            return {"loss": "sum over a segment of -ln p(next token)"}
        return {
            "loss": "sum over the hidden tokens of a segment of -ln p(right token)",
            "hidden": MASKED,
            "hidden_by": "the mask token",
            "seed": SEED,
        }
