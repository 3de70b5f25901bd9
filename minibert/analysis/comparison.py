"""How far two models of one shape are apart on the same texts, such as two steps of a training.

heads    half of Σ |p − q| over the keys, the total variation of two rows of attention, 0 to 1
streams  ‖second − first‖ / ‖first‖ of the residual stream at a token
logits   Σ p · (log p − log q) over the vocabulary: KL(first ‖ second) at a token, in nats
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.analysis.rows import wide
from minibert.errors import TraceError
from minibert.layers.heads import VocabularyHead
from minibert.model import Input, Model
from minibert.quantities import Float
from minibert.result import Place, Result, sourced
from minibert.trace.read import Trace

# What both models need to be the same in.
_SHAPE = ("n_layers", "n_heads", "d_model", "vocab_size", "causal")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ModelComparison(Result[Tensor]):
    """How far two models are apart, by head, (layer, batch, head), and by layer and token.

    The values are the total variation of the two rows of probs, half the sum of |difference|, as a
    mean over the queries of a sentence.

    streams   of embed, then of resid_post of each layer; `rows` names them; nan for padding
    logits    None for models without a vocabulary head
    """

    streams: Float[Tensor, "row batch position"]
    logits: Float[Tensor, "batch position"] | None

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the streams."""
        return ("embed", *(f"resid_post {layer}" for layer in range(len(self.streams) - 1)))

    def largest(self, count: int = 5) -> list[tuple[Place | float, ...]]:
        """The heads that differ most, over all sentences: (layer, head, total variation)."""
        return Result(self.values.mean(1), "layer head").largest(count)


@sourced
def compare_models(first: Model, second: Model, texts: Input) -> ModelComparison:
    """Where two models of one shape differ on the same texts, and how far.

    `texts` is what a model takes; text is tokenized by the first model. Nothing is larger than the
    attention of one layer of one sentence, beside the two traces.

    Raises TraceError for models of different shapes, and TokenizationError for input that either
    cannot read.
    """
    check_model(first)
    check_model(second)
    _check_shapes(first, second)
    tokens = first.inputs(texts).as_tokens(first.tokenizer)
    size = tokens.ids.shape
    with torch.no_grad():
        one, other = first.trace(tokens), second.trace(tokens)
        pairs = [(one.text(n), other.text(n)) for n in range(len(tokens))]
        heads = torch.stack([_heads(*pair) for pair in pairs], 1)
        streams = torch.stack([_padded(_streams(*pair), size[1]) for pair in pairs], 1)
        logits = None
        if all(isinstance(model.head, VocabularyHead) for model in (first, second)):
            logits = torch.stack([_padded(_divergence(*pair), size[1]) for pair in pairs])
    return ModelComparison(
        heads,
        "layer batch head",
        title="Attention of two models",
        unit="total variation",
        tokens=tokens.strings,
        limits=(0.0, 1.0),
        streams=streams,
        logits=logits,
    )


def _heads(first: Trace, second: Trace) -> Float[Tensor, "layer head"]:
    """Half of the distance of two rows of attention, the mean over the rows."""
    layers = zip(first, second, strict=True)
    apart = [(wide(a.probs) - wide(b.probs)).abs().sum(-1).mean(-1)[0] / 2 for a, b in layers]
    return torch.stack(apart)


def _streams(first: Trace, second: Trace) -> Float[Tensor, "row position"]:
    rows = [
        (first.embed, second.embed),
        *((a.resid_post, b.resid_post) for a, b in zip(first, second, strict=True)),
    ]
    norm = torch.linalg.vector_norm
    return torch.stack(
        [norm(wide(b) - wide(a), dim=-1)[0] / norm(wide(a), dim=-1)[0] for a, b in rows]
    )


def _divergence(first: Trace, second: Trace) -> Float[Tensor, " position"]:
    p, q = (wide(trace.logits[0]).log_softmax(-1) for trace in (first, second))
    return (p.exp() * (p - q)).sum(-1)


def _padded(values: Tensor, length: int) -> Tensor:
    """Padding has nan."""
    room = length - values.shape[-1]
    return torch.nn.functional.pad(values, (0, room), value=torch.nan)


def _check_shapes(first: Model, second: Model) -> None:
    for name in _SHAPE:
        ours, theirs = (getattr(model.config, name) for model in (first, second))
        if ours != theirs:
            raise TraceError(
                f"{first.name} has {name}={ours}, {second.name} has {name}={theirs}: models of "
                "different shapes have no heads to compare. Give two checkpoints of one model."
            )
