"""How much the loss at masked words changes with attention on [SEP]: Clark et al. 2019, §3.3.

As a survey measures it (`gradient_to_sep`), each document alone, since the spread of a ratio of
means is asked of documents.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minibert.survey import survey

if TYPE_CHECKING:
    from minibert.survey import Document

__all__ = ["sep_gradients"]

Values = NDArray[np.float64]
_MEASURE = "gradient_to_sep"


def sep_gradients(model: Any, pairs: "Iterable[Document]") -> Values | None:
    """(document, layer): mean |∂L/∂α| of attention on [SEP]; None where no words are predicted."""
    if model.config.task not in ("pre-training", "masked-lm"):
        return None
    rows = [
        survey(model, [pair], measures=[_MEASURE], gradients=True, profile=False)
        .table(_MEASURE)
        .mean(1)
        for pair in pairs
    ]
    return np.array(rows)
