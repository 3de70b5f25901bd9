"""The loss of a run: the cross-entropy of the predicted tokens, in nats."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.layers.evaluation import Evaluation
from minibert.layers.heads import PreTrainingHead, VocabularyHead
from minibert.layers.layer_pass import LayerPass
from minibert.model import Model
from minibert.quantities import Float, Hidden, Int
from minibert.trace.run import run_layers
from minibert.training.batches import IGNORED, Batch
from minibert.training.targets import target_layers, target_loss

__all__ = ["hidden_state", "losses", "vocabulary_loss"]

# Rows of logits at a time: 512 x 4,096 floats stay in a processor's cache.
_ROWS = 512


def losses(model: Model, batch: Batch, *, targets: Collection[str] = ()) -> dict[str, Tensor]:
    """The parts of the loss by name, each a mean over its own predictions, in nats.

    The parts are "tokens"; "sentences" where the batch has labels for them; and each of `targets`,
    losses of single heads by their names in `minibert.training.targets`. Call it under autocast for
    bfloat16 matrices.
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
        assert isinstance(head, PreTrainingHead)
        assert pooled is not None
        logits = head.next_sentence(pooled)
        parts["sentences"] = F.cross_entropy(logits.float(), unrelated, ignore_index=IGNORED)
    for name, layer in layers.items():
        assert model.tokenizer is not None
        parts[name] = target_loss(name, probs[layer], batch, model.tokenizer)
    return parts


def hidden_state(model: Model, batch: Batch) -> Hidden:
    """The last hidden state, which the task head reads."""
    return _run(model, batch)[0]


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
    if head.transform is not None and head.norm is not None:
        hidden = head.norm(head.transform(hidden, activation=head.activation))
    if hidden.is_cuda:
        return F.cross_entropy(head.decoder(hidden).float(), labels)
    return vocabulary_loss(hidden, head.decoder.weight, head.decoder.bias, labels)


def vocabulary_loss(
    hidden: Float[Tensor, "token d_model"],
    weight: Float[Tensor, "vocab d_model"],
    bias: Float[Tensor, " vocab"] | None,
    labels: Int[Tensor, " token"],
) -> Float[Tensor, ""]:
    """The mean of −log softmax(hidden·weightᵀ + bias)[label], without a token x vocab tensor.

    The gradients are computed together with the loss, for some rows at a time. This takes a third
    of the time that writing all logits to memory takes. Under autocast the products are bfloat16.
    """
    bfloat16 = torch.is_autocast_enabled("cpu") and hidden.is_cpu
    dtype = torch.bfloat16 if bfloat16 else weight.dtype
    with torch.autocast("cpu", enabled=False):
        loss: Tensor = _VocabularyLoss.apply(hidden.to(weight.dtype), weight, bias, labels, dtype)
    return loss


class _VocabularyLoss(torch.autograd.Function):
    """d loss / d logits = softmax − one-hot, divided by the number of tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """The loss; the gradients are saved for the backward pass."""
        x, w = hidden.to(dtype), weight.to(dtype)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        total = hidden.new_zeros(())
        for first in range(0, len(hidden), _ROWS):
            chosen = slice(first, first + _ROWS)
            loss, d_logits = _rows(x[chosen], w, bias, labels[chosen])
            total += loss
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            narrow = d_logits.to(dtype)
            d_hidden[chosen] = narrow @ w
            d_weight += narrow.T @ x[chosen]
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.count = max(1, len(hidden))
        return total / ctx.count

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The saved gradients, times the gradient of the loss."""
        scale = upstream[0] / ctx.count
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return (
            d_hidden * scale,
            d_weight * scale,
            None if d_bias is None else d_bias * scale,
            None,
            None,
        )


def _rows(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of some tokens, and its gradient with respect to their logits."""
    logits = (x @ weight.T).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if bias is not None:
        logits += bias
    logits -= logits.amax(1, keepdim=True)
    right = logits.gather(1, labels[:, None])
    probs = logits.exp_()
    total = probs.sum(1, keepdim=True)
    loss = (total.log() - right).sum()
    probs /= total
    return loss, probs.scatter_add_(1, labels[:, None], torch.full_like(right, -1.0))
