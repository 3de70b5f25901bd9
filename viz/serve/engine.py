"""The engine behind a page: what static/engine/engine.js promises, by a model of Python.

The answers hold plain data for JSON, and blocks of numbers. The names in them are those of
engine.js. Every number is one that `model.trace`, `trace.rerun` and `rerun_each` give.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.answers.sampling import Sampling
from minibert.errors import MinibertError, TokenizationError
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from minibert.viz.engine_edit_checks import EngineEdit, checked_edits
from minibert.viz.engine_edits import PointKey, needs, python_edits
from minibert.viz.engine_models import built_of
from minibert.viz.live import JUDGED_TEXT
from minibert.viz.serve.passes import Passes
from minibert.viz.serve.picture import block_of, header_of
from minibert.viz.serve.requests import Question, TextList, TextRequest
from minibert.viz.serve.task_answers import TaskAnswers
from minibert.viz.serve.whole import collected, weight_of
from minibert.viz.trace_example import without_folder

__all__ = ["Answer", "Engine"]

_FIRST_TEXT = "Once upon a time there was a"
_FIRST_CLOZE = "The horse pulled the [MASK] up the hill because it was strong."
# No tokenizer of ours makes fewer tokens of so many characters, but for blanks.
_CHARACTERS_A_POSITION = 100


@dataclass(frozen=True)
class Answer:
    """Plain data for JSON, and arrays by name."""

    body: Any
    blocks: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


class Engine:
    """The answers of one model. Not safe for several threads at once; model_thread.py has one."""

    def __init__(self, model: Model) -> None:
        if model.tokenizer is None:
            raise TokenizationError(
                f"{model.name} has no tokenizer, and a page takes text. Put tokenizer.json, or "
                "vocab.txt, or vocab.json and merges.txt, beside its weights."
            )
        self.model = model
        self.tokenizer = model.tokenizer
        self.config = model.config
        self.name = without_folder(model.name)
        self.passes = Passes()
        self.answers = TaskAnswers(self.config, self.tokenizer, self.name)
        self.predicts = self.answers.predicts

    @property
    def takes_pairs(self) -> bool:
        """False where a second text would be one with the first: in a causal model."""
        return not self.config.causal

    @property
    def first_text(self) -> str:
        """What a page opens with."""
        if self.predicts == "classes":
            return JUDGED_TEXT
        if self.predicts != "masked":
            return _FIRST_TEXT
        assert self.tokenizer.mask_id is not None
        return _FIRST_CLOZE.replace("[MASK]", self.tokenizer.raw(self.tokenizer.mask_id))

    def about(self) -> Answer:
        """What the page has to know of the model."""
        config, mask_id = self.config, self.tokenizer.mask_id
        body = {
            "model": self.name,
            "family": config.family,
            "predicts": self.predicts,
            "layers": config.n_layers,
            "heads": config.n_heads,
            "dHead": config.d_head,
            "dModel": config.d_model,
            "dMlp": config.d_mlp,
            "positions": config.n_positions,
            "vocabulary": self.answers.n_choices,
            "mask": None if mask_id is None else self.tokenizer.raw(mask_id),
            "pairs": self.takes_pairs,
            "built": built_of(self.model),
        }
        return Answer(body)

    def trace(self, request: TextRequest, blocks: tuple[str, ...] = ()) -> Answer:
        """One pass: its header, its predictions, and the blocks of these names.

        A name that this pass does not have is left out: the page's last pass was another one.
        """
        trace, edits = self._edited(request)
        changed = any(edit.quantity in ("scores", "probs") for edit in edits)
        header = header_of(trace, self.name, edited=changed)
        ids = trace.tokens.ids[0].tolist()
        body = {"ids": ids, "header": header, "predictions": self.answers.predictions(trace)}
        there = {entry["block"] for entry in header["arrays"]}
        return Answer(body, {name: block_of(trace, name) for name in blocks if name in there})

    def block(self, request: TextRequest, names: tuple[str, ...]) -> Answer:
        """Blocks of a pass. Raises MinibertError for a name that it does not have."""
        trace, _ = self._edited(request)
        return Answer(None, {name: block_of(trace, name) for name in names})

    def read(self, request: TextRequest, quantity: str, layer: int | None) -> Answer:
        """Any quantity of the glossary, in single precision, without the batch axis."""
        trace, _ = self._edited(request)
        if quantity not in QUANTITIES:
            raise MinibertError(
                f"{quantity!r:.80} is no quantity; there are {', '.join(QUANTITIES)}."
            )
        if QUANTITIES[quantity].per_layer:
            if layer is None:
                raise MinibertError(f"{quantity} is one of each layer; say which layer.")
            value = trace[layer].quantity(quantity)
        elif layer is not None:
            raise MinibertError(f"{quantity} belongs to the whole pass; leave the layer out.")
        else:
            value = getattr(trace, quantity)
        return _numbers(value[0])

    def candidates(self, request: TextRequest, position: int) -> Answer:
        """What the model says at any position."""
        trace, _ = self._edited(request)
        if position >= trace.allowed.position:
            raise MinibertError(
                f"position {position}: the text has {trace.allowed.position} tokens."
            )
        return Answer(self.answers.candidates(self.answers.logits_at(trace, position)))

    def weights(self, name: str, layer: int | None, row: int | None) -> Answer:
        """A weight of the model, or one row of it; null where there is none of this name."""
        weight = weight_of(self.model, name, layer, row)
        return Answer(None) if weight is None else _numbers(weight)

    def collect(self, texts: TextList, layer: int, head: int) -> Iterator[Answer | None]:
        """Query and key of one head in many texts; a text at a time, None before each."""
        traces = []
        for one in texts:
            yield None
            traces.append(self._clean(one))
        yield Answer(*collected(traces, layer, head))

    def sweep(self, request: TextRequest, question: Question) -> Iterator[Answer | None]:
        """How much the log probability of a token changes where z of one head is 0 as well.

        A layer at a time, None after each, so that others have their turn; then the answer:
        (layer, head), natural logarithms.
        """
        trace, edits = self._edited(request)
        n_tokens, n_logits = trace.allowed.position, self.answers.logits_at(trace, 0).shape[-1]
        if question.position >= n_tokens or question.id >= n_logits:
            raise MinibertError(
                f"The question is about position {question.position} and token id {question.id}; "
                f"expected a position below {n_tokens} and an id below {n_logits}."
            )
        clean, given = self._clean(request.texts), self._python_edits(request, edits)
        of_text = self.predicts == "classes"
        whole = of_text or "logits" in given
        row = question.position if whole else 0

        def log_prob(logits: Tensor) -> Tensor:
            at = logits if of_text else logits[:, row]
            return at.float().log_softmax(-1)[:, question.id]

        def changed(more: list[dict[PointKey, Any]]) -> Tensor:
            places = None if whole else [question.position]
            return clean.rerun_each([given | one for one in more], log_prob, positions=places)[:, 0]

        before = changed([{}])
        rows = []
        for layer in range(self.config.n_layers):
            yield None
            heads = range(self.config.n_heads)
            rows.append(changed([{("z", layer, head): zero} for head in heads]) - before)
        yield _numbers(torch.stack(rows))

    def step(self, request: TextRequest, sampling: Mapping[str, Any]) -> Answer:
        """One next token, drawn as `minibert.generate` draws it, and what it was drawn from."""
        if self.predicts != "causal":
            raise MinibertError(
                f"{self.name} writes no next token; a causal language model does, such as the "
                "embedded tiny-gpt2."
            )
        trace, _ = self._edited(request)
        chooser = Sampling(
            sampling.get("temperature", 1.0), sampling.get("topK"), sampling.get("topP")
        )
        logits = trace.logits[0, -1]
        known = logits[: self.tokenizer.vocab_size]
        generator = torch.Generator().manual_seed(sampling.get("seed", 0))
        (chosen,) = chooser.choose(known[None], [generator])
        drawn = chooser.probs(known)
        candidates = self.answers.candidates(logits)
        ids = trace.tokens.ids[0].tolist()
        before = self.tokenizer.decode(ids)
        after = self.tokenizer.decode([*ids, chosen])
        piece = after[len(before) :] if after.startswith(before) else self.tokenizer.string(chosen)
        body = {
            "chosen": self.answers.candidates(logits, [chosen])[0],
            "candidates": candidates,
            "drawn": [float(drawn[one["id"]]) for one in candidates],
            "text": request.texts[0] + piece,
        }
        return Answer(body)

    def _tokens(self, texts: tuple[str, ...]) -> Tokens:
        """The tokens of the texts. Raises TokenizationError for what the model cannot read."""
        limit = self.config.n_positions
        if len(texts) > 1 and not self.takes_pairs:
            raise TokenizationError(f"{self.name} takes one text.")
        if max(map(len, texts)) > _CHARACTERS_A_POSITION * limit:
            raise TokenizationError(
                f"The text has {max(map(len, texts))} characters; {self.name} reads {limit} tokens."
            )
        tokens = self.tokenizer(*texts)
        if tokens.lengths[0] > limit:
            raise TokenizationError(
                f"The text has {tokens.lengths[0]} tokens, and {self.name} has {limit} positions; "
                "shorten it."
            )
        return tokens

    def _clean(self, texts: tuple[str, ...]) -> Trace:
        """The pass of these texts without edits."""
        request = TextRequest.plain(texts)
        return self.passes.get(request.key, lambda: self.model.trace(self._tokens(texts)))

    def _edited(self, request: TextRequest) -> tuple[Trace, list[EngineEdit]]:
        """The pass of a request, and its edits."""
        clean = self._clean(request.texts)
        if not request.edits:
            return clean, []
        n_other = self._clean(request.other).allowed.position if request.other else None
        edits = checked_edits(request.edits, self.config, clean.allowed.position, n_other)

        def make() -> Trace:
            return clean.rerun(self._python_edits(request, edits))

        return self.passes.get(request.key, make), edits

    def _python_edits(self, request: TextRequest, edits: list[EngineEdit]) -> dict[PointKey, Any]:
        clean = self._clean(request.texts)
        other = self._clean(request.other) if needs(edits, "text") else None
        return python_edits(edits, self.config, clean=clean, other=other)


def _numbers(value: Tensor) -> Answer:
    """A tensor as engine.js's Numbers."""
    array = value.detach().to("cpu", torch.float32).numpy()
    return Answer({"shape": list(array.shape)}, {"values": np.ascontiguousarray(array)})
