"""Sentences of different lengths without padding: one after the other in a single row of tokens.

Everything but attention works on tokens one by one, and attention runs sentence by sentence, so
what padding would cost is never computed (as in Zeng et al. 2022, "Boosting distributed training
performance of the unpadded BERT model"). Place: behind `Model.packed`.
"""

from typing import Any

import torch
from torch import Tensor

from minibert.kernels.call import AllowedKeys
from minibert.layers.heads import TokenHead, VocabularyHead

__all__ = ["run_packed"]


def run_packed(model: Any, inputs: Any) -> tuple[Tensor, ...]:
    """The logits of each sentence: (position, vocab), (position, label) or (label).

    The same as a padded batch gives for its real tokens, up to rounding; a model without a task
    head gives the last hidden state.
    """
    ids = inputs.ids
    real = torch.ones_like(ids, dtype=torch.bool) if inputs.mask is None else inputs.mask
    lengths = real.sum(1).tolist()
    embed = model.body.embed(ids, inputs.segments)
    hidden = embed[real][None]
    allowed = AllowedKeys(1, sum(lengths), ids.device, model.config.causal, packed=tuple(lengths))
    for layer in model.body.layers:
        hidden = layer(hidden, allowed, None)
    final = model.body.final(hidden)
    if model.head is None or isinstance(model.head, VocabularyHead | TokenHead):
        logits = final if model.head is None else model.head(final, None, ids[real][None], None)
        return tuple(logits[0].split(lengths))
    # The other heads read single tokens of each sentence, and find them in the padded form.
    padded = embed.new_zeros(embed.shape)
    padded[real] = final[0]
    logits = model.task_logits(padded, inputs)
    if logits.dim() == 2 and logits.shape == ids.shape:
        return tuple(row[:length] for row, length in zip(logits, lengths, strict=True))
    return tuple(logits)
