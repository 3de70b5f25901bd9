"""How much the loss at masked words changes with attention on [SEP]: Clark et al. 2019, §3.3.

For the loss L, the sum of -log p(right token) over masked tokens, and attention α, the mean of
|∂L/∂α| over the heads of a layer, all queries, and the keys that are [SEP].
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["sep_gradients"]

Values = NDArray[np.float64]

#: One token in seven is masked, about the 15 % of BERT's training.
EVERY = 7


def sep_gradients(model: Any, pairs: Iterable[Any]) -> Values | None:
    """(document, layer): mean |∂L/∂α| of attention on [SEP]; None where no words are predicted."""
    if model.config.task not in ("pre-training", "masked-lm"):
        return None
    rows = []
    for pair in pairs:
        tokens = model.tokenize(pair.text, pair.pair)
        special = torch.tensor(tokens.special[0])
        places = (~special).nonzero()[:, 0][EVERY // 2 :: EVERY]
        ids = tokens.ids.clone()
        ids[0, places] = model.tokenizer.mask_id
        with torch.enable_grad():
            trace = model.trace(replace(tokens, ids=ids), grad=True)
            log_probs = trace.logits[0, places].log_softmax(-1)
            trace.backward(-log_probs.gather(1, tokens.ids[0, places, None]).sum())
        sep = tokens.ids[0] == model.tokenizer.sep_id
        sizes = [at.probs[0][:, :, sep].abs().mean().item() for at in trace.grad]
        rows.append(sizes)
    return np.array(rows)
