"""Rough evaluations of a hooked model, by the name of TransformerLens' module.

Those that fetch a data set are not offered: `model(text, return_type="loss")` takes any text.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.quantities import Float
from minibert.transformer_lens.reading import lm_cross_entropy_loss

if TYPE_CHECKING:
    from minibert.transformer_lens.model import HookedTransformer
else:
    HookedTransformer = Any

__all__ = ["induction_loss"]

# Random tokens are drawn from these ids, as in TransformerLens.
_FIRST, _END = 100, 20000


def induction_loss(
    model: HookedTransformer,
    tokenizer: Any = None,
    batch_size: int = 4,
    subseq_len: int = 384,
    prepend_bos: bool | None = None,
    device: Any = None,
) -> Float[Tensor, ""]:
    """The loss of the second half of random tokens that come twice, in nats a token.

    Drawn by torch's own generator, so `torch.manual_seed` decides them. With `prepend_bos`, by
    default as `cfg.default_prepend_bos` says, the first token is the one that begins a text.

    Raises TokenizationError where there is none, and for a vocabulary without the drawn ids.
    """
    if model.cfg.d_vocab < _END:
        raise TokenizationError(
            f"induction_loss draws ids below {_END}, and the vocabulary has {model.cfg.d_vocab}. "
            "Score heads with minibert.analysis.head_scores, which draws from any vocabulary."
        )
    half = torch.randint(_FIRST, _END, (batch_size, subseq_len))
    ids = torch.cat((half, half), 1).to(model.cfg.device if device is None else device)
    if model.cfg.default_prepend_bos if prepend_bos is None else prepend_bos:
        first = getattr(tokenizer or model.tokenizer, "bos_token_id", None)
        if first is None:
            raise TokenizationError(
                "No token begins a text of this model. Give prepend_bos=False, or a tokenizer "
                "with a bos_token_id."
            )
        ids[:, 0] = first
    losses = lm_cross_entropy_loss(model(ids, return_type="logits"), ids, per_token=True)
    return losses[:, subseq_len + 1 :].mean()
