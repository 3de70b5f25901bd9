"""The measurements in the log of a run: held-out losses and the scores of all heads."""

from typing import Any

import torch

from minibert.analysis.patterns import HeadScores, head_scores
from minibert.analysis.repeated import LENGTH, draws_for
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training.batches import Batch, causal_batch, masked_batch
from minibert.training.objective import losses
from minibert.training.recipe import Recipe
from minibert.training.texts import Corpus

__all__ = ["Measure"]

_BATCHES = 4
_SENTENCES = 32


class Measure:
    """Measures a model on the same held-out batches each time."""

    def __init__(self, model: Model, corpus: Corpus, recipe: Recipe) -> None:
        self.model = model
        causal = model.config.causal
        plain = Recipe(
            batch=_SENTENCES,
            repeated=0.0,
            short=0.0,
            masked=0.15,
            same_text=0.0,
            seed=(recipe.seed + 1) % 2**32,
        )
        self.batches = [_batch(corpus, model, plain, step) for step in range(_BATCHES)]
        # A model with few positions is measured on shorter repetitions.
        length = min(LENGTH, (model.config.n_positions - 2) // 2)
        self.repeated = draws_for(model, length=length)
        self.tokens = _as_tokens(self.batches[0], model, masked=not causal)

    def __call__(self) -> dict[str, Any]:
        """held_out_loss in nats for each predicted token, held_out_sentence_loss, and heads."""
        model, found = self.model, {}
        with torch.no_grad():
            device = model.body.word.weight.device
            parts = [losses(model, batch.to(device)) for batch in self.batches]
            for name, key in (("tokens", "loss"), ("sentences", "sentence_loss")):
                if name in parts[0]:
                    mean = torch.stack([part[name] for part in parts]).mean()
                    found[f"held_out_{key}"] = round(float(mean), 4)
        return found | {"heads": self.scores().to_dict()}

    def scores(self) -> HeadScores:
        """The scores of all heads."""
        device = self.model.body.word.weight.device
        return head_scores(self.model, self.tokens.to(device), repeated=self.repeated.to(device))


def _batch(corpus: Corpus, model: Model, recipe: Recipe, step: int) -> Batch:
    if model.config.causal:
        return causal_batch(corpus, model.config, recipe, step)
    assert model.tokenizer is not None
    return masked_batch(corpus, model.config, recipe, step, model.tokenizer)


def _as_tokens(batch: Batch, model: Model, *, masked: bool) -> Tokens:
    # Heads are measured on the text without mask tokens.
    ids = batch.ids if not masked else torch.where(batch.labels < 0, batch.ids, batch.labels)
    return Tokens.from_ids(ids, mask=batch.mask, segments=batch.segments, tokenizer=model.tokenizer)
