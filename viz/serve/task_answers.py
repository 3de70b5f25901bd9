"""What the task head of a model says, as candidates with probabilities: tokens or classes."""

from typing import Any

from torch import Tensor

from minibert.errors import MinibertError
from minibert.layers.config import Config
from minibert.layers.families import predicts_tokens
from minibert.text.tokenizer import Tokenizer
from minibert.trace.read import Trace

__all__ = ["TaskAnswers"]

# Candidates of a prediction: more than a page has room for.
_TOP = 20


class TaskAnswers:
    """The answers of one model's task head."""

    def __init__(self, config: Config, tokenizer: Tokenizer, name: str) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.name = name

    @property
    def predicts(self) -> str:
        """masked, causal, classes or none: what engine.js says a model predicts."""
        task, config = self.config.task, self.config
        if task == "causal-lm":
            return "causal"
        if task == "sequence-classification":
            one = config.problem_type in ("", "single_label_classification")
            return "classes" if one else "none"
        masked = predicts_tokens(config.family, task)
        return "masked" if masked and self.tokenizer.mask_id is not None else "none"

    @property
    def n_choices(self) -> int:
        """Ids of tokens or classes."""
        return self.config.n_labels if self.predicts == "classes" else self.config.vocab_size

    def logits_at(self, trace: Trace, position: int) -> Tensor:
        """(vocab) at a position, or (label) of the text.

        Raises MinibertError for a model that predicts neither.
        """
        if self.predicts == "none":
            raise MinibertError(
                f"{self.name} has no head that predicts tokens or one class of a text (its task "
                f"is {self.config.task})."
            )
        return trace.logits[0] if self.predicts == "classes" else trace.logits[0, position]

    def predictions(self, trace: Trace) -> list[dict[str, Any]]:
        """What the model says of each masked token, of the next token, or of the text."""
        return [
            {"position": place, "candidates": self.candidates(self.logits_at(trace, place))}
            for place in self._places(trace)
        ]

    def candidates(self, logits: Tensor, ids: list[int] | None = None) -> list[dict[str, Any]]:
        """These tokens or classes, or the most probable ones, of the logits of one place.

        Raises MinibertError for logits that are not finite.
        """
        if not bool(logits.isfinite().all()):
            raise MinibertError(
                "The logits have NaN or infinity, so nothing is predicted. An edit has set too "
                "large a value, or the weights are broken."
            )
        logits = logits.float()
        classes = self.predicts == "classes"
        if ids is None:
            # Some checkpoints have more logits than their tokenizer has tokens.
            known = logits if classes else logits[: self.tokenizer.vocab_size]
            ids = known.topk(min(_TOP, len(known))).indices.tolist()
        probs = (logits[ids] - logits.logsumexp(-1)).exp().tolist()
        string = self.config.labels.__getitem__ if classes else self.tokenizer.string
        rows = zip(ids, logits[ids].tolist(), probs, strict=True)
        return [
            {"id": one, "text": string(one), "logit": logit, "prob": prob}
            for one, logit, prob in rows
        ]

    def _places(self, trace: Trace) -> list[int]:
        if self.predicts == "none":
            return []
        if self.predicts == "classes":
            return [0]
        if self.predicts == "causal":
            return [trace.allowed.position - 1]
        ids = trace.inputs.ids[0].tolist()
        return [place for place, one in enumerate(ids) if one == self.tokenizer.mask_id]
