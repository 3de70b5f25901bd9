"""How much the loss of a text changes with each weight of attention (Clark et al. 2019, §3.3).

The loss L of a segment is the sum of −ln p(right token) over what the model was trained to predict:
of a causal model the next tokens, of a masked language model the tokens that are hidden from it. So
one weight of a long text counts as much as one of a short text. For L and the weight α that a query
gives a key, |∂L/∂α| is added up over kinds of keys. One backward pass gives ∂L/∂z of every layer;
∂L/∂α = ∂L/∂z · valueᵀ is one N x N matrix of one segment and layer at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import AttentionError, SurveyError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import compute
from minibert.kernels.call import Call
from minibert.layers.evaluation import Evaluation
from minibert.layers.heads import VocabularyHead
from minibert.layers.layer_pass import LayerPass
from minibert.model import Model
from minibert.survey.document_rows import generator_of
from minibert.survey.rows import RowMasses, joined_rows, sums_of_rows, widened
from minibert.survey.segments import Batch, Segment, grouped
from minibert.survey.windows import Masses
from minibert.trace.run import embedded, run_layers

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
    def of(cls, model: Model) -> "Objective":
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

    def told(self) -> dict[str, object]:
        """The same for a manifest."""
        if self.mask_id is None:
            return {"loss": "sum over a segment of -ln p(next token)"}
        return {
            "loss": "sum over the hidden tokens of a segment of -ln p(right token)",
            "hidden": MASKED,
            "hidden_by": "the mask token",
            "seed": SEED,
        }


# Tokens that are differentiated together: a pass that keeps its graph holds far more of each.
_TOKENS = 1024


class _OfLayer(NamedTuple):
    """Of one layer (head, token, d_head): what follows from attention, and what it multiplies."""

    z_gradient: Tensor
    value: Tensor


class LossGradients:
    """Gives the sums of |∂L/∂α| of every layer for batches of segments.

    Raises SurveyError for a model that predicts no tokens, and for an implementation of attention
    that no gradients flow through.
    """

    def __init__(self, model: Model, *, offsets: tuple[int, ...], impl: str | None = None) -> None:
        self.model, self.offsets = model, offsets
        self.impl = model.impl if impl is None else impl
        self.objective = Objective.of(model)
        self._try_one_call()

    def _try_one_call(self) -> None:
        """Raise SurveyError where the first pass would fail."""
        config, weight = self.model.config, self.model.body.word.weight
        row = weight.new_zeros(1, config.n_heads, 2, config.d_head, requires_grad=True)
        allowed = AllowedKeys(1, 2, weight.device, config.causal, packed=(2,))
        try:
            with torch.enable_grad():
                compute(Call(row, row, row, 1.0, allowed), self.impl)
        except AttentionError as error:
            raise SurveyError(f"gradients=True: {error}") from error

    def __call__(self, batch: Batch) -> list[RowMasses]:
        """Those of layer 0, 1, ..., for all tokens of the batch."""
        layers: list[list[RowMasses]] = [[] for _ in self.model.body.layers]
        for group in grouped(batch.segments, _TOKENS, lambda one: len(one.ids)):
            for layer, found in enumerate(self._differentiated(group)):
                window, first = self.model.config.window(layer), 0
                for segment in group:
                    last = first + len(segment.ids)
                    layers[layer].append(self._sums(segment, found, slice(first, last), window))
                    first = last
        windows = map(self.model.config.window, range(len(layers)))
        return [
            joined_rows(parts, batch.seen_by(window))
            for parts, window in zip(layers, windows, strict=True)
        ]

    def _sums(
        self, segment: Segment, found: _OfLayer, cut: slice, window: tuple[int, int] | None
    ) -> RowMasses:
        with torch.no_grad():
            # As the gradient of probs is declared in layers/layer_gradients.py.
            value = found.value.repeat_interleave(len(found.z_gradient) // len(found.value), 0)
            sizes = (found.z_gradient[:, cut] @ value[:, cut].mT).abs_()
            if segment.tokens.causal:
                sizes.tril_()
            if window is not None:
                # What a query does not see has a weight of 0, whatever its score.
                sizes.triu_(-window[0]).tril_(window[1])
            rows = sizes.double().cpu().numpy()
        return sums_of_rows(rows, segment.tokens, self.offsets)

    def _differentiated(self, group: Sequence[Segment]) -> list[_OfLayer]:
        """Of each layer ∂L/∂z and the values, for the tokens of a group."""
        predicted = [self.objective.predicted(segment) for segment in group]
        hidden_ids = [
            replace(one, ids=of.ids.tolist()) for one, of in zip(group, predicted, strict=True)
        ]
        body, device = self.model.body, self.model.body.word.weight.device
        inputs = Batch(tuple(hidden_ids)).inputs(device)
        lengths = tuple(len(one.ids) for one in group)
        allowed = AllowedKeys(1, sum(lengths), device, self.model.config.causal, packed=lengths)
        held: list[tuple[Tensor, Tensor]] = []

        def visit(at: LayerPass) -> None:
            held.append((at.z, at.value.detach()))

        with torch.enable_grad():
            # The graph begins here: nobody asked for the gradients of the embeddings' weights.
            embed = embedded(body, inputs, allowed).detach().requires_grad_()
            hidden = run_layers(body, embed, Evaluation(allowed, self.impl), visit=visit)
            loss = self._loss(body.final(hidden), predicted, lengths)
            gradients = torch.autograd.grad(loss, [z for z, _ in held])
        return [
            _OfLayer(widened(gradient[0]), widened(value[0]))
            for gradient, (_, value) in zip(gradients, held, strict=True)
        ]

    def _loss(
        self, final: Tensor, predicted: Sequence[Predicted], lengths: Sequence[int]
    ) -> Tensor:
        """The sum of −ln p over everything that is predicted in a group."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        places, right = (
            torch.from_numpy(np.concatenate(parts)).to(final.device)
            for parts in (
                [one.places + start for one, start in zip(predicted, starts, strict=True)],
                [one.right for one in predicted],
            )
        )
        head = self.model.head
        assert head is not None
        logits = head(final[:, places], None, right[None], None)[0]
        log_probs = widened(logits).log_softmax(-1)
        return -log_probs.gather(1, right[:, None]).sum()


def with_gradients(masses: Masses, gradients: LossGradients) -> Masses:
    """The same masses, with the gradients of each layer beside them."""

    def both(batch: Batch, visit: Callable[[int, RowMasses], None]) -> None:
        of_layers = gradients(batch)
        masses(batch, lambda layer, of: visit(layer, replace(of, gradient=of_layers[layer])))

    return both
