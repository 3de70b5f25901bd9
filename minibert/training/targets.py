"""Losses of single heads on their probs: they say which keys a head should attend to.

objective.py adds them to the loss in the steps for which the recipe gives them a weight.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.quantities import Bool, Float, Int
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import Batch

__all__ = ["TARGETS", "target_layers", "target_loss"]

# Smaller shares of attention count as this much, so that the logarithm stays finite.
_SMALLEST = 1e-6


def target_layers(config: Config, names: Collection[str]) -> dict[str, int]:
    """For each target, the layer whose last head it applies to."""
    layers = {
        "delimiter": config.n_layers // 2,
        "matching": min(1, config.n_layers - 1),
        "previous": 0,
        "induction": min(1, config.n_layers - 1),
    }
    return {name: layers[name] for name in names}


def target_loss(
    name: str,
    probs: Float[Tensor, "batch head query key"],
    batch: Batch,
    tokenizer: Tokenizer,
) -> Float[Tensor, ""]:
    """−log of the last head's attention to its target: the mean over real, non-delimiter tokens.

    A token without a target is left out. For "matching" it is half the mean over the tokens that
    rest, and half the mean over the kinds of token that have a match: counted one by one, commas
    and articles would be most of them, and words of content would teach nothing.
    """
    delimiters = torch.isin(batch.ids, _ids([tokenizer.sep_id], batch.ids))
    wanted = TARGETS[name](batch, delimiters, tokenizer)
    mass = (probs[:, -1].float() * wanted).sum(-1)
    rows = (~delimiters if batch.mask is None else batch.mask & ~delimiters) & wanted.any(-1)
    loss = -mass[rows].clamp_min(_SMALLEST).log()
    if name != "matching":
        return loss.mean()
    ids = batch.ids[rows]
    rests = ~_same_elsewhere(batch, tokenizer).any(-1)[rows]
    return (_mean(loss[rests]) + _mean_by_kind(loss[~rests], ids[~rests])) / 2


def _mean(values: Float[Tensor, " row"]) -> Float[Tensor, ""]:
    """The mean; 0 of nothing."""
    return values.sum() / max(1, len(values))


def _mean_by_kind(values: Float[Tensor, " row"], kinds: Int[Tensor, " row"]) -> Float[Tensor, ""]:
    """The mean over the kinds of the mean of the rows of each kind; 0 of nothing."""
    _, place, count = kinds.unique(return_inverse=True, return_counts=True)
    return (values / count[place]).sum() / max(1, len(count))


def _delimiter(
    batch: Batch, delimiters: Bool[Tensor, "batch position"], tokenizer: Tokenizer
) -> Bool[Tensor, "batch #query key"]:
    return delimiters[:, None, :]


def _matching(
    batch: Batch, delimiters: Bool[Tensor, "batch position"], tokenizer: Tokenizer
) -> Bool[Tensor, "batch query key"]:
    """The same token in the other text; delimiters where there is none, and for special tokens."""
    same = _same_elsewhere(batch, tokenizer)
    return same | (delimiters[:, None, :] & ~same.any(-1, keepdim=True))


def _same_elsewhere(batch: Batch, tokenizer: Tokenizer) -> Bool[Tensor, "batch query key"]:
    """True where the key is the query's token in the other text; never for special tokens."""
    assert batch.segments is not None
    special = torch.isin(batch.ids, _ids(sorted(tokenizer.special_ids), batch.ids))
    same = batch.ids[:, :, None] == batch.ids[:, None, :]
    same &= batch.segments[:, :, None] != batch.segments[:, None, :]
    return same & ~special[:, :, None]


def _previous(
    batch: Batch, delimiters: Bool[Tensor, "batch position"], tokenizer: Tokenizer
) -> Bool[Tensor, "#batch query key"]:
    """The token before; the first token has none."""
    position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return (position[:, None] - 1 == position)[None]


def _induction(
    batch: Batch, delimiters: Bool[Tensor, "batch position"], tokenizer: Tokenizer
) -> Bool[Tensor, "batch query key"]:
    """The tokens behind earlier occurrences of the same token."""
    earlier = (batch.ids[:, :, None] == batch.ids[:, None, :]).tril(-1)
    return F.pad(earlier[:, :, :-1], (1, 0))


TARGETS: dict[str, Callable[[Batch, Tensor, Tokenizer], Tensor]] = {
    "delimiter": _delimiter,
    "matching": _matching,
    "previous": _previous,
    "induction": _induction,
}


def _ids(ids: Collection[int | None], like: Tensor) -> Tensor:
    return torch.tensor([i for i in ids if i is not None], device=like.device)
