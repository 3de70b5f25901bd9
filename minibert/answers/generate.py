"""Text from a causal language model, one token at a time. Each step computes only the new token.

The keys and values of the earlier tokens come from a `Cache`. sampling.py chooses the next token;
text_stream.py turns ids into pieces of text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.answers.generation_edits import GenerationEdits
from minibert.answers.model import AnsweringModel
from minibert.answers.sampling import Sampling, whole_number
from minibert.answers.text_stream import TextStream
from minibert.errors import MinibertError, TokenizationError
from minibert.layers.cache import Cache, turned_anew
from minibert.layers.evaluation import Evaluation
from minibert.quantities import Float, Int
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens, padded
from minibert.text.words import Words, is_text, written
from minibert.trace.plan import Plan
from minibert.trace.run import behind_layers, run_layers

__all__ = ["Generated", "generate"]

# torch.Generator takes no larger seed.
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Generated:
    """A prompt and the text that the model wrote after it; `str()` is the whole text."""

    prompt: str
    new_text: str
    """The text after the prompt, up to a stop string or the end-of-text token."""
    ids: tuple[int, ...]
    """The tokens of the prompt and of the new text, with the token that ended it."""
    n_prompt: int
    """How many of the ids belong to the prompt."""
    stopped_by: str
    """end of text | stop string | max_new_tokens | positions (the model has no more of them)."""
    tokens: Tokens = field(repr=False, compare=False)
    """The ids with their strings. In `model.trace(generated.tokens)` row i of an attention
    matrix is the attention of the step that drew token i + 1."""

    @property
    def text(self) -> str:
        """The prompt and the new text."""
        return self.prompt + self.new_text

    @property
    def new_ids(self) -> tuple[int, ...]:
        """The ids after the prompt."""
        return self.ids[self.n_prompt :]

    def __str__(self) -> str:
        return self.text


def generate(
    model: AnsweringModel,
    text: Any,
    *,
    max_new_tokens: int = 40,
    temperature: float | int = 0.8,
    top_k: int | None = None,
    top_p: float | int | None = None,
    seed: int = 0,
    stop: str | Sequence[str] | None = (),
    stream: Callable[[str], object] | None = None,
    edit: Mapping[Any, Any] | None = None,
) -> "Generated | list[Generated]":
    """The text that a causal language model writes after a prompt: a Generated, a list for a batch.

    Takes text, Tokens, or ids, as `model(...)` does. Each token is drawn from
    softmax(logits / temperature), limited by top_k and top_p (see `Sampling`).
    With temperature 0 it is the most probable one. Text i of a batch is drawn with `seed + i`: the
    result is the same as for this text alone with that seed.

    A text ends at max_new_tokens, at a token that the checkpoint's eos_token_id names (from
    generation_config.json, else config.json; without one, the vocabulary's end-of-text token),
    before a `stop` string (searched for in the new text only; None: there is none), or when the
    model has no positions left. `stopped_by` says which. `stream` is called with each piece of new
    text as soon as the piece is final: whole characters, which add up to new_text. It works for
    one text, not for a batch.

    `edit` changes quantities in every pass, as in `model.trace(text, edit=...)`. Positions are
    those of the text as it stands: -1 is its newest token in each step.

    Raises MinibertError for a model without a causal-lm head that was trained for it and for
    settings out of range, EditError for edits that cannot be made, and TokenizationError for a
    prompt that is empty or fills the model's positions. A model without a tokenizer continues ids;
    its text is these numbers, with spaces between them.

    >>> import minibert
    >>> model = minibert.load("tiny-gpt2")
    >>> str(model.generate("Once upon a time", max_new_tokens=5)).startswith("Once upon a time")
    True
    """
    _check_model(model)
    sampling = Sampling(temperature, top_k, top_p)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens, least=1)
    seed = whole_number("seed", seed, least=0)
    stops = _stops(stop)
    if stream is not None and not callable(stream):
        raise MinibertError(
            f"stream={stream!r:.80}: expected a function that takes each piece of the text."
        )
    tokens = _prompts(model, text)
    if seed + len(tokens) - 1 > _LARGEST_SEED:
        raise MinibertError(f"seed={seed}: the last text would get a seed above {_LARGEST_SEED}.")
    alone = _is_one(text)
    if stream is not None and not alone:
        raise MinibertError(
            "stream= works for one text, and this is a batch. Generate its texts one by one: text "
            "i with seed + i gives the same result."
        )
    prompts = [text] if isinstance(text, str | Words) else text
    known = [written(one) for one in prompts] if is_text(text) else [None] * len(tokens)
    texts = [
        _Text(model, row[:length], prompt, max_new_tokens, seed + i, stops)
        for i, (row, length, prompt) in enumerate(
            zip(tokens.ids.tolist(), tokens.lengths, known, strict=True)
        )
    ]
    capacity = min(max(tokens.lengths) + max_new_tokens, model.config.n_positions)
    edits = GenerationEdits(
        {} if edit is None else edit,
        model.config,
        tokens.lengths,
        capacity,
        dtype=model.body.word.weight.dtype,
        device=tokens.ids.device,
    )
    cache = Cache(model.config, tokens.lengths, capacity, tokens.ids.device)
    with torch.no_grad():
        _write(model, tokens.ids, texts, sampling, stream or (lambda piece: None), cache, edits)
    return texts[0].result() if alone else [one.result() for one in texts]


def _write(
    model: AnsweringModel,
    ids: Int[Tensor, "batch position"],
    texts: "list[_Text]",
    sampling: Sampling,
    stream: Callable[[str], object],
    cache: Cache,
    edits: GenerationEdits,
) -> None:
    """Continue the texts until each has ended."""
    plan = edits.prompt
    # Some checkpoints have more logits than their tokenizer has tokens.
    known = None if model.tokenizer is None else model.tokenizer.vocab_size
    generators = [text.generator for text in texts]
    while True:
        logits = _next_logits(model, ids, cache, plan, edits.newest)[:, :known]
        chosen = sampling.choose(logits, generators)
        for text, token_id in zip(texts, chosen, strict=True):
            if not text.stopped_by and (piece := text.add(token_id)):
                stream(piece)
        growing = [not text.stopped_by for text in texts]
        if not any(growing):
            return
        cache.grow(growing)
        plan = edits.grow(cache.lengths)
        ids = torch.tensor(chosen, device=ids.device)[:, None]
        if turned_anew(model.config, cache.lengths):
            cache = Cache(model.config, cache.lengths, cache.capacity, ids.device)
            plan = edits.whole(cache.lengths)
            ids = padded([tuple(text.ids) for text in texts], 0).to(ids.device)


def _next_logits(
    model: AnsweringModel,
    ids: Int[Tensor, "batch position"],
    cache: Cache,
    plan: Plan,
    newest_plan: Plan,
) -> Float[Tensor, "batch vocab"]:
    """The logits after the last token of each text; `ids` are those not yet in the cache.

    `plan` edits what is computed of these ids, `newest_plan` what follows of the last ones.
    """
    hidden = plan.apply("embed", None, model.body.embed(ids, None, cache.positions))
    evaluation = Evaluation(cache.allowed, model.impl, standing=cache.positions)
    hidden = run_layers(model.body, hidden, evaluation, pasts=cache.layers, edits=plan.of_layer)
    newest = (cache.rows[:, None], cache.newest[:, None])
    inputs, changes = Inputs(ids[newest], None, None), newest_plan.behind_layers
    found = behind_layers(model, hidden[newest], inputs, evaluation.allowed, changes)
    return found["logits"][:, 0]


class _Text:
    """One text of the batch while it is being written."""

    def __init__(
        self,
        model: AnsweringModel,
        ids: list[int],
        prompt: str | None,
        max_new_tokens: int,
        seed: int,
        stops: tuple[str, ...],
    ) -> None:
        self.ids = ids
        self.max_new_tokens = max_new_tokens
        self.generator = torch.Generator().manual_seed(seed)
        self.stopped_by = ""
        self._model = model
        self._n_prompt = len(ids)
        # What the checkpoint says wins over what its vocabulary makes likely.
        self._ends = model.config.end_ids or (getattr(model.tokenizer, "eos_id", None),)
        self._stream = TextStream(self._decode, self.ids, stop=stops)
        self._prompt = self._decode(self.ids, skip_special=False) if prompt is None else prompt

    def add(self, token_id: int) -> str:
        """The piece of text that can be shown now."""
        self.ids.append(token_id)
        piece = self._stream.add(token_id)
        self.stopped_by = self._end(token_id)
        if self.stopped_by:
            piece += self._stream.close()
            # The text held back until now can complete a stop string.
            self.stopped_by = "stop string" if self._stream.stopped else self.stopped_by
        return piece

    def _end(self, token_id: int) -> str:
        if self._stream.stopped:
            return "stop string"
        if token_id in self._ends:
            return "end of text"
        if len(self.ids) - self._n_prompt == self.max_new_tokens:
            return "max_new_tokens"
        return "positions" if len(self.ids) == self._model.config.n_positions else ""

    def _decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        tokenizer = self._model.tokenizer
        if tokenizer is None:
            return "".join(f"{token_id} " for token_id in ids)
        return tokenizer.decode(ids, skip_special=skip_special)

    def result(self) -> Generated:
        """The finished text."""
        return Generated(
            prompt=self._prompt,
            new_text=self._stream.text,
            ids=tuple(self.ids),
            n_prompt=self._n_prompt,
            stopped_by=self.stopped_by,
            tokens=Tokens.from_ids(self.ids, tokenizer=self._model.tokenizer),
        )


def _check_model(model: AnsweringModel) -> None:
    config = model.config
    if not config.generates:
        task = "no task head" if config.task == "none" else f"task {config.task}"
        raise MinibertError(
            f"{model.name} does not write text: it is a {config.model_type} with {task}. "
            "Generation needs a causal language model that was trained for it, such as a GPT-2 "
            "with its causal-lm head; the embedded tiny-gpt2 is one."
        )


def _stops(stop: Any) -> tuple[str, ...]:
    try:
        stops = (stop,) if isinstance(stop, str) else () if stop is None else tuple(stop)
    except TypeError as error:
        raise MinibertError(f"stop={stop!r:.80}: expected a string, or several.") from error
    for one in stops:
        if not isinstance(one, str) or not one:
            raise MinibertError(
                f"stop has {one!r:.80}: expected strings of at least one character; "
                "leave `stop` out to generate without stop strings."
            )
    return stops


def _is_one(text: Any) -> bool:
    """True for one text: a str or one row of ids."""
    if isinstance(text, Mapping):
        return _is_one(text["input_ids"])
    if isinstance(text, Tensor | np.ndarray):
        return text.ndim == 1
    # A list of arrays is a batch, even where an array holds a single number.
    if is_text(text):
        return isinstance(text, str | Words)
    return isinstance(text, Sequence) and len(text) > 0 and np.ndim(text[0]) == 0


def _prompts(model: AnsweringModel, text: Any) -> Tokens:
    """The prompts as tokens, checked: the model can read them and has positions left to write."""
    # Not model.tokenize: its error for a long text advises to cut the end, which is what the
    # model should continue.
    if model.tokenizer is not None and is_text(text):
        text = model.tokenizer(text)
        _check_room(model, text)
    inputs = model.inputs(text)
    if inputs.embeds is not None:
        raise TokenizationError("generate continues tokens, not inputs_embeds; give input_ids.")
    tokens = inputs.as_tokens(model.tokenizer)
    _check_room(model, tokens)
    return tokens


def _check_room(model: AnsweringModel, tokens: Tokens) -> None:
    limit = model.config.n_positions
    for i, length in enumerate(tokens.lengths):
        if length >= limit:
            place = "the prompt" if len(tokens) == 1 else f"prompt {i} of the batch"
            raise TokenizationError(
                f"{place} has {length} tokens, and {model.name} has {limit} positions, so there is "
                f"no room for a new token. Give at most the last {limit - 1} tokens of the text."
            )
