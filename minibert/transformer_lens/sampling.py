"""A token drawn from logits."""

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import Float, Int

__all__ = ["sample_logits"]


def sample_logits(
    final_logits: Float[Tensor, "batch vocab"],
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    freq_penalty: float = 0.0,
    tokens: Int[Tensor, "batch position"] | None = None,
) -> Int[Tensor, " batch"]:
    """One token a row, drawn with torch's random numbers from softmax(logits / temperature).

    temperature   0 takes the largest logit
    freq_penalty  taken from a token's logit for each time it stands in `tokens` already
    top_k         only the k largest logits; top_p: the fewest tokens whose probabilities reach it

    Raises TraceError for values that leave nothing to draw from.
    """
    if temperature == 0:
        return final_logits.argmax(-1)
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise TraceError(f"temperature={temperature}, top_k={top_k}; expected positive numbers.")
    if top_p is not None and not 0 < top_p <= 1:
        raise TraceError(f"top_p={top_p}; expected a number above 0 and up to 1.")
    logits = final_logits / temperature
    if freq_penalty:
        if tokens is None:
            raise TraceError("freq_penalty counts tokens; pass tokens=.")
        counts = torch.zeros_like(logits)
        counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=logits.dtype))
        logits = logits - freq_penalty * counts
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    elif top_p is not None:
        ordered, places = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        gone = (before >= top_p).scatter(1, places, before >= top_p)
        logits = logits.masked_fill(gone, float("-inf"))
    return torch.distributions.Categorical(logits=logits).sample()
