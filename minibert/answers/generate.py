"""Text from a causal language model, one token at a time. Each step computes only the new token.

The keys and values of the earlier tokens come from a `Cache`. `Sampling` chooses the next token;
`TextStream` turns ids into pieces of text; `GenerationEdits` gives each pass its edits.

Tokens are chosen on the CPU. So equal logits and an equal seed give the same text, whatever device
the logits come from. Which tokens are left is decided in float32, in the steps and the order of
transformers, so that it leaves the same ones where logits are equal; logits of float64 stay
float64. Probabilities are float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from minibert.errors import EditError, MinibertError, TokenizationError, check_index, whole_number
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.cache import Cache, turned_anew
from minibert.layers.evaluation import Evaluation
from minibert.quantities import Float, Int, Logits
from minibert.text.inputs import Inputs, Named, by_name
from minibert.text.tokens import Tokens, padded
from minibert.text.words import Words, is_text, written
from minibert.trace.edit import (
    Constant,
    Edit,
    EditMapping,
    FromTrace,
    Noise,
    Places,
    Point,
    as_point,
    indices_of,
)
from minibert.trace.identity import Sources
from minibert.trace.plan import Plan, Reach, check_values, named, shape_of
from minibert.trace.read import Trace
from minibert.trace.run import TracedModel, behind_layers, run_layers


@runtime_checkable
class AnsweringModel(TracedModel, Protocol):
    """A model that can be traced and called: `minibert.model.Model` is one."""

    impl: str

    def __call__(self, text: Tokens, /) -> Logits:
        """The logits of the task head for these tokens."""

    def inputs(self, text: Any, pair: Any = None) -> Inputs:
        """The batch of what a user passed: text, Tokens or ids, checked by the model."""

    def trace(self, *text: Any, **options: Any) -> Trace:
        """The trace of one forward pass."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits.

    temperature   logits are divided by it: below 1 the likely tokens become likelier, above 1
                  less likely; 0 takes the most probable token each time
    top_k         only the k most probable tokens can be drawn (Fan et al. 2018, section
                  5.4); None: all
    top_p         only the most probable tokens that together have probability p can be drawn
                  (Holtzman et al. 2020, section 3.1, nucleus sampling); None: all

    They apply in this order. Raises MinibertError for a number outside its range.

    >>> Sampling(top_k=2).probs(torch.tensor([0.0, 1.0, 1.0])).tolist()
    [0.0, 0.5, 0.5]
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None

    def __post_init__(self) -> None:
        if not 0 <= _number(self.temperature) < math.inf:
            raise MinibertError(
                f"temperature={self.temperature!r:.80}: expected a number of at least 0; "
                "0 takes the most probable token each time."
            )
        if self.top_k is not None:
            whole_number("top_k", self.top_k, MinibertError, least=1)
        if self.top_p is not None and not 0 < _number(self.top_p) <= 1:
            raise MinibertError(
                f"top_p={self.top_p!r:.80}: expected a probability above 0 and up to 1; "
                "leave it out to draw from all tokens."
            )

    def probs(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """The probabilities that the next token is drawn with, float64, on the CPU.

        softmax(logits / temperature) over the tokens that top_k and top_p leave, 0 elsewhere.
        With temperature 0 they are 1 for the most probable token. Raises MinibertError for
        logits with NaN or infinity.
        """
        logits = logits.detach().cpu()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        largest, best = _largest(logits)
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, best, 1.0)
        cooled = logits / float(self.temperature)
        if not cooled.isfinite().all():
            # The largest becomes 0, so that a tiny temperature gives -inf and not inf.
            cooled = (logits - largest).double() / float(self.temperature)
        if self.top_k is not None:
            # Logits equal to the k-th largest stay too.
            least = cooled.topk(min(self.top_k, cooled.shape[-1]), dim=-1).values[..., -1:]
            cooled = cooled.masked_fill(cooled < least, -math.inf)
        if self.top_p is not None and self.top_p < 1:
            # From the smallest up, as transformers does: the order of equal logits, and how the
            # sum is rounded, decide which of them are left.
            ordered, order = cooled.sort(dim=-1)
            left_out = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.top_p
            left_out[..., -1] = False
            left_out = torch.empty_like(left_out).scatter(-1, order, left_out)
            cooled = cooled.masked_fill(left_out, -math.inf)
        return cooled.double().softmax(dim=-1)

    def choose(
        self, logits: Float[Tensor, "batch vocab"], generators: Sequence[torch.Generator]
    ) -> list[int]:
        """The next token id of each text, drawn with the generator of that text."""
        if self.temperature == 0:
            return _largest(logits)[1][:, 0].tolist()
        return draw(self.probs(logits), generators).tolist()


def draw(
    probs: Float[Tensor, "batch vocab"], generators: Sequence[torch.Generator]
) -> Int[Tensor, " batch"]:
    """One id for each row, drawn with its probability: the first whose cumulative sum exceeds u.

    u is uniform in [0, total), one number from the generator of the row; an id of probability 0
    is never drawn.
    """
    cumulative = probs.cumsum(dim=-1)
    uniform = [torch.rand(1, generator=each, dtype=probs.dtype) for each in generators]
    wanted = torch.stack(uniform) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0]


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and its id."""
    largest, best = logits.max(dim=-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise MinibertError(
            "The logits have NaN or infinity, so no next token can be chosen: the weights are "
            "broken, or too large for the number type; try float32."
        )
    return largest, best


def _number(value: object) -> float:
    """The value as a float; NaN, which every range check refuses, for anything else."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


_HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text after a prompt, in pieces that are final.

    `decode` gives the text of a list of ids. `text` is all pieces together. `stopped` is True when
    one of the `stop` strings was found; the text then ends before it.

    >>> pieces = TextStream(lambda ids: bytes(ids).decode(errors="replace"), [65], stop=("!",))
    >>> [pieces.add(byte) for byte in (0x42, 0xC3, 0xA9, 0x21)], pieces.text, pieces.stopped
    (['B', '', 'é', ''], 'Bé', True)
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], *, stop: Sequence[str] = ()
    ) -> None:
        self._decode, self._stop = decode, tuple(stop)
        # Some decoders drop the space before the first word, so the last token of the prompt is
        # decoded too.
        self._ids = list(prompt[-1:])
        self._prompt = len(decode(self._ids))
        self.text = ""
        self.stopped = False

    def add(self, token_id: int) -> str:
        """The text that becomes final with this token; "" if there is none."""
        self._ids.append(token_id)
        return self._release(last=False)

    def close(self) -> str:
        """The text held back, when no more tokens come; "" if a stop string was found."""
        return self._release(last=True)

    def _release(self, *, last: bool) -> str:
        text = self._decode(self._ids)[self._prompt :]
        if self.stopped or (text.endswith(_HALF_A_CHARACTER) and not last):
            return ""
        found = [text.index(stop) for stop in self._stop if stop in text]
        self.stopped = bool(found)
        if found:
            end = min(found)
        else:
            end = len(text) if last else len(text) - self._start_of_a_stop(text)
        piece = text[len(self.text) : end]
        self.text += piece
        return piece

    def _start_of_a_stop(self, text: str) -> int:
        """How many characters at the end of the text may be the start of a stop string."""
        longest = max(map(len, self._stop), default=0)
        for size in range(min(len(text), longest - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop if len(stop) > size):
                return size
        return 0


class GenerationEdits:
    """The plan of each pass of a generation.

    Positions are those of a text as it stands: 0 is its first token, -1 its last one. A position
    that is not written yet is edited once it is. `last` is that of `generate`.
    """

    def __init__(
        self,
        mapping: object,
        model: AnsweringModel,
        lengths: Sequence[int],
        capacity: int,
        device: torch.device,
        last: str = "text",
    ) -> None:
        if last not in LAST:
            raise EditError(f"last={last!r:.80}: expected {' or '.join(map(repr, LAST))}.")
        self._config, self._device = model.config, device
        at, dtype = partial(as_point, config=model.config), model.body.dtype
        self._edits = named(mapping, at, dtype, Sources(model))
        for point, edit in self._edits:
            _check(point, edit, min(lengths), capacity)
            if not isinstance(edit.positions, slice):
                most = model.config.n_positions
                indices_of(edit.positions, most, "position", EditError, f"{point}: ")
        self._prompts, self.last = tuple(lengths), last
        self.anew = last == "text" and any(_counts_back(e.positions) for _, e in self._edits)
        """Whether each pass edits other tokens than the one before, and so computes them all."""

    def whole(self, lengths: Sequence[int]) -> Plan:
        """The plan of a pass that computes all tokens of each text."""
        return self._plan([range(length) for length in lengths])

    def newest(self, lengths: Sequence[int]) -> Plan:
        """The plan of a pass that computes the last token of each text alone."""
        return self._plan([range(length - 1, length) for length in lengths])

    def _plan(self, computed: Sequence[range]) -> Plan:
        """The edits where they reach one of the positions that a pass computes of each text."""
        if not self._edits:
            return Plan(())
        lengths = tuple(map(len, computed))
        allowed = AllowedKeys(len(lengths), max(lengths), self._device, lengths=lengths)
        entries = []
        for point, edit in self._edits:
            reach = Reach.of(point, replace(edit, positions=None), Places.of(allowed))
            if edit.positions is not None:
                rows = [self._rows(edit, text, computed[text]) for text in reach.sentences]
                found = [(text, at) for text, at in zip(reach.sentences, rows, strict=True) if at]
                if not found:
                    continue
                texts, positions = zip(*found, strict=True)
                reach = replace(reach, sentences=texts, positions=positions, all_of=False)
            check_values(point, edit, reach, shape_of(point, self._config, allowed))
            entries.append((point, edit, reach))
        return Plan(tuple(entries))

    def _rows(self, edit: Edit, text: int, computed: range) -> tuple[int, ...]:
        """Which of the positions that are computed of a text are edited, counted from the first."""
        prompt, ends = self._prompts[text], computed.stop
        return tuple(
            row
            for row, position in enumerate(computed)
            # With "newest", what it was when it was computed: of the prompt, or the last token.
            if _reaches(
                edit.positions, position, ends if self.last == "text" else max(prompt, position + 1)
            )
        )

    def of_step(self, text: int, length: int) -> dict[object, list[Edit]]:
        """What `model.trace` of so many tokens of one text is edited with, to give that step."""
        found: dict[object, list[Edit]] = {}
        for point, edit in self._edits:
            texts = indices_of(edit.sentences, len(self._prompts), "sentence", EditError)
            if text not in texts:
                continue
            own = _of_text(edit, text, texts)
            if own.positions is not None:
                rows = self._rows(own, text, range(length))
                if not rows:
                    continue
                own = own.at(positions=rows)
            found.setdefault(point.key, []).append(own)
        return found


def _of_text(edit: Edit, text: int, texts: Sequence[int]) -> Edit:
    """The edit of a batch as one for a text of it alone."""
    change = edit.change
    if isinstance(change, FromTrace) and not change.averages:
        (source,) = change.traces
        if isinstance(source, Trace) and len(source.tokens) > 1:
            change = FromTrace((source.text(text),))
    value = change.value if isinstance(change, Constant) else None
    if isinstance(value, Tensor) and value.dim() > 1 and len(value) > 1 and len(texts) > 1:
        row = texts.index(text) if len(value) == len(texts) else text
        change = Constant(value[row : row + 1])
    return replace(edit, change=change, sentences=None)


def _reaches(chosen: object, position: int, length: int) -> bool:
    """Whether a position of a text of this length is among those chosen."""
    if isinstance(chosen, slice):
        return position in range(length)[chosen]
    wanted = _listed(chosen)
    return position in wanted or position - length in wanted


def _counts_back(chosen: object) -> bool:
    """Whether the positions depend on how long a text is."""
    if isinstance(chosen, slice):
        return any(one is not None and one < 0 for one in (chosen.start, chosen.stop, chosen.step))
    return chosen is not None and any(one < 0 for one in _listed(chosen))


def _listed(chosen: object) -> Any:
    listed = chosen.tolist() if hasattr(chosen, "tolist") else chosen
    return listed if isinstance(listed, list | tuple | range) else [listed]


def _check(point: Point, edit: Edit, shortest: int, capacity: int) -> None:
    """Raise EditError for what cannot be done to tokens that come one by one."""
    if "query" in point.axes:
        raise EditError(
            f"{point}: a generation computes one row of {point.name} at a time and keeps none; "
            "edit query, key, value or z instead."
        )
    if isinstance(edit.change, Noise):
        raise EditError(
            f"{point}: noise is drawn for all positions of a text together, and tokens come one by "
            "one here. Draw a vector yourself and add it: lambda z: z + vector."
        )
    if edit.traces and not edit.averages:
        later = range(shortest, capacity)
        if edit.positions is None or any(_reaches(edit.positions, p, p + 1) for p in later):
            raise EditError(
                f"{point}: a trace has no values for tokens that are not written yet; give "
                "positions of the prompt, counted from its front: replace(trace, positions=...)."
            )


Last = Literal["text", "newest"]
LAST = get_args(Last)
"""What a position that is counted from the end means; see `generate`."""
if TYPE_CHECKING:
    LastName = Last
else:
    # Checked with an error that says what there is; a run-time type checker must not come before.
    LastName = str

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
    matrix is the attention of the step that drew token i + 1, where nothing was edited."""
    last: str = field(default="text", compare=False)
    """What a position counted from the end meant in its edits: "text" or "newest"."""
    edits: tuple[Mapping[object, Sequence[Edit]], ...] = field(
        default=(), repr=False, compare=False
    )
    """Of each new token what `model.trace` of the text before it is edited with."""

    def trace(self, model: AnsweringModel, step: int, **options: object) -> Trace:
        """The trace of the step that drew new token `step`: the text before it, with its edits.

        `options` are those of `model.trace`. Raises MinibertError for a step that there was not.
        """
        step = check_index("step", step, len(self.new_ids), MinibertError)
        ids = torch.tensor([self.ids[: self.n_prompt + step]])
        edit = self.edits[step] if self.edits else None
        return model.trace(Tokens.from_ids(ids, tokenizer=model.tokenizer), edit=edit, **options)

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
    text: Any = None,
    *,
    max_new_tokens: int = 40,
    temperature: float | int = 0.8,
    top_k: int | None = None,
    top_p: float | int | None = None,
    seed: int = 0,
    stop: str | Sequence[str] | None = (),
    stream: Callable[[str], object] | None = None,
    edit: EditMapping | None = None,
    last: LastName = "text",
    **named: Unpack[Named],
) -> Any:
    """The text that a causal language model writes after a prompt: a Generated, a list for a batch.

    Takes text, Tokens, ids, or inputs by name, as `model(...)` does. Each token is drawn from
    softmax(logits / temperature), limited by top_k and top_p (see `Sampling`).
    With temperature 0 it is the most probable one. Text i of a batch is drawn with `seed + i`: the
    result is the same as for this text alone with that seed.

    A text ends at max_new_tokens, at a token that the checkpoint's eos_token_id names (from
    generation_config.json, else config.json; without one, the vocabulary's end-of-text token),
    before a `stop` string (searched for in the new text only; None: there is none), or when the
    model has no positions left. `stopped_by` says which. `stream` is called with each piece of new
    text as soon as the piece is final: whole characters, which add up to new_text. It works for
    one text, not for a batch.

    `edit` changes quantities in every step. `last` says what a position counted from the end is:
    "text"    of the text so far in each step: every step is `model.trace(text so far, edit=edit)`.
              Where there is such a position each step computes the whole text.
    "newest"  of the text when that token was computed: -1 is each new token, once, and it stays
              edited in all later steps, since their keys and values are not computed again
    `generated.trace(model, step)` is the trace of a step. A function gets the positions that a pass
    computes, only one after the prompt, so it must change each position separately.

    Raises MinibertError for a model without a causal-lm head that was trained for it and for
    settings out of range, EditError for edits that cannot be made, and TokenizationError for a
    prompt that is empty or fills the model's positions. A model without a tokenizer continues ids;
    its text is these numbers, with spaces between them.

    >>> import minibert
    >>> model = minibert.load("tiny-gpt2")
    >>> str(model.generate("Once upon a time", max_new_tokens=5)).startswith("Once upon a time")
    True
    """
    text = by_name(text, None, named, generate)
    _check_model(model)
    sampling = Sampling(temperature, top_k, top_p)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens, MinibertError, least=1)
    seed = whole_number("seed", seed, MinibertError, least=0, most=_LARGEST_SEED)
    stops = _stops(stop)
    if stream is not None and not callable(stream):
        raise MinibertError(f"stream={stream!r:.80}: expected a function of each piece of text.")
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
    mapping = {} if edit is None else edit
    edits = GenerationEdits(mapping, model, tokens.lengths, capacity, tokens.ids.device, last)
    cache = Cache(model.config, tokens.lengths, capacity, tokens.ids.device)
    with torch.no_grad():
        _write(model, tokens.ids, texts, sampling, stream or (lambda piece: None), cache, edits)
    found = [one.result(edits, number) for number, one in enumerate(texts)]
    return found[0] if alone else found


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
    plan, newest = edits.whole(cache.lengths), edits.newest(cache.lengths)
    # Some checkpoints have more logits than their tokenizer has tokens.
    known = None if model.tokenizer is None else model.tokenizer.vocab_size
    generators = [text.generator for text in texts]
    while True:
        logits = _next_logits(model, ids, cache, plan, newest)[:, :known]
        chosen = sampling.choose(logits, generators)
        for text, token_id in zip(texts, chosen, strict=True):
            if not text.stopped_by and (piece := text.add(token_id)):
                stream(piece)
        growing = [not text.stopped_by for text in texts]
        if not any(growing):
            return
        cache.grow(growing)
        plan = newest = edits.newest(cache.lengths)
        ids = torch.tensor(chosen, device=ids.device)[:, None]
        if edits.anew or turned_anew(model.config, cache.lengths):
            cache = Cache(model.config, cache.lengths, cache.capacity, ids.device)
            plan = edits.whole(cache.lengths)
            # The token that ended a text is not read.
            read = zip(texts, cache.lengths, strict=True)
            ids = padded([tuple(text.ids[:length]) for text, length in read], 0).to(ids.device)


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

    def result(self, edits: GenerationEdits, number: int) -> Generated:
        """The finished text, which is of this number in the batch."""
        steps = range(self._n_prompt, len(self.ids))
        return Generated(
            prompt=self._prompt,
            new_text=self._stream.text,
            ids=tuple(self.ids),
            n_prompt=self._n_prompt,
            stopped_by=self.stopped_by,
            tokens=Tokens.from_ids(self.ids, tokenizer=self._model.tokenizer),
            last=edits.last,
            edits=tuple(edits.of_step(number, length) for length in steps),
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


def _is_one(text: object) -> bool:
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
    tokens = model.inputs(text).as_tokens(model.tokenizer)
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
