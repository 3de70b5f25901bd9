"""The loss of a run, in nats: the cross-entropy of tokens, and losses of single heads.

A loss of a single head says which keys it should attend to. It is added in the steps for which the
recipe gives it a weight.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.heads import VocabularyHead
from minibert.layers.layer import LayerPass
from minibert.model import Model
from minibert.quantities import Bool, Float, Hidden
from minibert.trace.run import run_layers
from minibert.training.batches import IGNORED, Batch

# Smaller shares of attention count as this much, so that the logarithm stays finite.
_SMALLEST = 1e-6


def target_layers(config: Config, names: Collection[str]) -> dict[str, int]:
    """For each target, the layer whose last head it applies to."""
    layers = {"previous": 0, "induction": min(1, config.n_layers - 1)}
    return {name: layers[name] for name in names}


def target_loss(
    name: str, probs: Float[Tensor, "batch head query key"], batch: Batch
) -> Float[Tensor, ""]:
    """−log of the last head's attention to its target: the mean over the tokens that have one."""
    wanted = TARGETS[name](batch).expand(probs[:, -1].shape)
    mass = (probs[:, -1].float() * wanted).sum(-1)
    rows = wanted.any(-1) if batch.mask is None else wanted.any(-1) & batch.mask
    return -mass[rows].clamp_min(_SMALLEST).log().mean()


def _previous(batch: Batch) -> Bool[Tensor, "#batch query key"]:
    """The token before; the first token has none."""
    position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return (position[:, None] - 1 == position)[None]


def _induction(batch: Batch) -> Bool[Tensor, "batch query key"]:
    """The tokens behind earlier occurrences of the same token."""
    earlier = (batch.ids[:, :, None] == batch.ids[:, None, :]).tril(-1)
    return F.pad(earlier[:, :, :-1], (1, 0))


TARGETS: dict[str, Callable[[Batch], Tensor]] = {"previous": _previous, "induction": _induction}


def losses(model: Model, batch: Batch, *, targets: Collection[str] = ()) -> dict[str, Tensor]:
    """The parts of the loss by name, each a mean over its own predictions, in nats.

    The parts are "tokens"; "sentences" where the batch has labels for them; and each of `targets`,
    losses of single heads by their names in `TARGETS`. Call it under autocast for bfloat16.
    """
    layers = target_layers(model.config, targets)
    hidden, probs = _run(model, batch, watched=layers.values())
    predicted = batch.labels != IGNORED
    parts = {"tokens": _token_loss(model, hidden[predicted], batch.labels[predicted])}
    unrelated = batch.unrelated
    paired = unrelated is not None and bool((unrelated != IGNORED).any())
    if unrelated is not None and paired and model.config.task == "pre-training":
        head, pooled = model.head, model.pool(hidden)
        # `check_task` made sure of both.
        assert isinstance(head, VocabularyHead)
        assert head.next_sentence is not None
        assert pooled is not None
        logits = head.next_sentence(pooled)
        parts["sentences"] = F.cross_entropy(logits.float(), unrelated, ignore_index=IGNORED)
    for name, layer in layers.items():
        parts[name] = target_loss(name, probs[layer], batch)
    return parts


def _run(
    model: Model, batch: Batch, *, watched: Collection[int] = ()
) -> tuple[Hidden, dict[int, Tensor]]:
    """The last hidden state, and the probs of the watched layers."""
    probs = {}

    def visit(at: LayerPass) -> None:
        if at.index in watched:
            probs[at.index] = at.probs

    hidden = run_layers(
        model.body,
        model.body.embed(batch.ids, batch.segments),
        # At these lengths the backward of explicit attention is faster than that of a fused kernel.
        Evaluation(model.allowed(batch.ids, batch.mask), "eager"),
        keep=lambda layer: frozenset({"probs"} if layer in watched else ()),
        visit=visit,
    )
    return model.body.final(hidden), probs


def _token_loss(model: Model, hidden: Tensor, labels: Tensor) -> Tensor:
    head = model.head
    assert isinstance(head, VocabularyHead)
    if not len(labels):
        return hidden.sum().float() * 0.0
    logits = head(hidden[None], None, labels[None], None)[0]
    return F.cross_entropy(logits.float(), labels)
