"""The engine of a page: what static/engine/engine.js promises, by a model in Python.

The answers hold plain data for JSON, and blocks of numbers. The names in them are those of
engine.js. Every number is one that `model.trace`, `trace.rerun` and `rerun_each` give. The numbers
of pictures are those of a static page (payload.py, static/core/data/data.js), not packed: weights
in one byte, square-root coded; query, key and value in single precision, as the model had them.

What a page may ask for are messages in JSON, checked before anything is computed: `ASKS` is the
protocol, each question with the form of what it is about. The values are the arguments of the
method of `Engine` that has the question's name.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.reading import Split
from minibert.answers.generate import Sampling
from minibert.errors import MinibertError, TokenizationError, did_you_mean
from minibert.features import Features, check_features
from minibert.layers.config import Config, predicts_tokens
from minibert.layers.linear import Linear
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from minibert.untrusted import Json
from minibert.viz.engine_edits import EditMap, EngineEdit, checked_edits, needs, python_edits
from minibert.viz.example import Sentence, header_of, scales_of, sizes_of, without_folder
from minibert.viz.live import built_of
from minibert.viz.payload import Array, encode_probs
from minibert.viz.vectors import looking_header, rotation_header
from minibert.viz.viewing import computed_lens, has_lens

MOST_MESSAGE_BYTES = 2**20
_MOST_ITEMS = 1000
_LARGEST_ID, _LARGEST_NUMBER = 2**53, 1e300
Form = object
"""A type; a tuple of forms, any of which will do; a list with the form of its items; a dictionary
of forms by name. int is a whole number from 0 up, float any number, dict an object of any form."""


class RequestError(MinibertError):
    """A message that no page of ours sends."""


@dataclass(frozen=True)
class TextRequest:
    """The texts and edits of a pass, as engine.js has them; `key` is the same for equal ones."""

    texts: tuple[str, ...]
    edits: list[object]
    other: tuple[str, ...]
    key: str

    @classmethod
    def plain(cls, texts: tuple[str, ...]) -> "TextRequest":
        """The texts without edits."""
        return cls.of({"texts": list(texts)})

    @classmethod
    def of(cls, given: Mapping[str, list[str]]) -> "TextRequest":
        """The request of a message."""
        texts, edits, other = given["texts"], given.get("edits") or [], given.get("other")
        # Without edits nothing reads the other text.
        key = json.dumps([texts, other if edits else None, edits], sort_keys=True)
        return cls(tuple(texts), list(edits), tuple(other or ()), key)


@dataclass(frozen=True)
class Question:
    """What a sweep asks of each head: the log probability of a token at a position."""

    position: int
    id: int


@dataclass(frozen=True)
class Message:
    """One question of a page; its number comes back with the answer."""

    number: int
    ask: str
    given: Mapping[str, object]


_NONE = type(None)
_REQUEST: Form = {"texts": [str], "edits": ([dict], _NONE), "other": ([str], _NONE)}
_SAMPLING: Form = {
    "temperature": float, "topK": (int, _NONE), "topP": (float, _NONE), "seed": (int, _NONE)
}  # fmt: skip
ASKS: Mapping[str, Mapping[str, Form]] = {
    "about": {},
    "trace": {"request": _REQUEST, "blocks": ([str], _NONE)},
    "block": {"request": _REQUEST, "blocks": ([str], _NONE)},
    "read": {"request": _REQUEST, "quantity": str, "layer": (int, _NONE)},
    "candidates": {"request": _REQUEST, "position": int},
    "features": {"request": _REQUEST, "position": int},
    "weights": {"quantity": str, "layer": (int, _NONE), "row": (int, _NONE)},
    "sweep": {"request": _REQUEST, "question": {"position": int, "id": int}},
    "step": {"request": _REQUEST, "sampling": _SAMPLING},
}


def read(text: str) -> tuple[int, Message | RequestError]:
    """The number of a message, and the message or what is wrong with it.

    Raises RequestError for what has no number: such a client is not ours and is let go.
    """
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError("The message is not JSON.") from error
    number: Any = given.pop("number", None) if isinstance(given, dict) else None
    if not _fits(number, int):
        raise RequestError("The message has no number.")
    ask = given.pop("ask", None)
    if not isinstance(ask, str) or ask not in ASKS:
        return number, RequestError(f"ask is {ask!r:.80}; expected one of {', '.join(ASKS)}.")
    for name, form in ASKS[ask].items():
        if not _fits(given.get(name), form):
            return number, RequestError(
                f"{name} is {given.get(name)!r:.80}; expected {_said(form)}."
            )
    found = {name: given.get(name) for name in ASKS[ask]}
    if "request" in found:
        request = TextRequest.of(found["request"])
        if not 1 <= len(request.texts) <= 2 or len(request.other) > 2:
            return number, RequestError("request: expected one or two texts.")
        found["request"] = request
    if "question" in found:
        found["question"] = Question(**found["question"])
    if "blocks" in found:
        found["blocks"] = tuple(found["blocks"] or ())
    return number, Message(number, ask, found)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _fits(value: object, form: Form) -> bool:
    """Whether a value has a form."""
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(form, list):
        return (
            isinstance(value, list)
            and len(value) <= _MOST_ITEMS
            and all(_fits(one, form[0]) for one in value)
        )
    if isinstance(form, dict):
        return (
            isinstance(value, dict)
            and value.keys() <= form.keys()
            and all(_fits(value.get(name), one) for name, one in form.items())
        )
    if form is float:
        return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER  # type: ignore[arg-type]
    return type(value) is form and (form is not int or 0 <= value < _LARGEST_ID)  # type: ignore[operator]


def _said(form: Form) -> str:
    """A form in words."""
    words = {int: "a whole number from 0 up", float: "a number", str: "text", _NONE: "nothing"}
    if isinstance(form, tuple):
        return " or ".join(map(_said, form))
    if isinstance(form, list):
        return f"a list of at most {_MOST_ITEMS}, each {_said(form[0])}"
    if isinstance(form, dict):
        return f"an object with {', '.join(f'{name} ({_said(form[name])})' for name in form)}"
    return words.get(form, "an object")  # type: ignore[call-overload]


# Before, after, the other text, and the one that is computed.
_FEWEST = 4
_MOST_BYTES = 2**28


class Passes:
    """Traces by the key of their request, the oldest looked at dropped first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[str, Trace] = OrderedDict()

    def get(self, key: str, make: Callable[[], Trace]) -> Trace:
        """The trace of that key, made where it is not kept any more."""
        trace = self._kept.pop(key, None)
        if trace is None:
            trace = make()
        self._kept[key] = trace
        while len(self._kept) > _FEWEST and self.n_bytes > self.most_bytes:
            self._kept.popitem(last=False)
        return trace

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Bytes of what is kept; traces that share a tensor count it once."""
        sizes = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for trace in self._kept.values()
            for tensor in _tensors(trace)
        }
        return sum(sizes.values())


def _tensors(trace: Trace) -> Iterator[Tensor]:
    yield from trace.kept.values()
    for record in trace.records:
        yield from record.values()


_LENS = "lens"
_VECTORS = ("query", "key", "value")
_BLOCK = re.compile(r"(probs|query|key|value)-(0|[1-9]\d{0,3})")


def picture_of(trace: Trace, model: str, *, edited: bool) -> Json:
    """The header of the pass: ExampleHeader of data.js. `edited`: scores or probs were."""
    config, labels = trace.config, Sentence(trace, 0).labels
    n_tokens, layers = len(labels), range(config.n_layers)
    shapes = {"probs": [config.n_heads, trace.allowed.position, trace.allowed.position]}
    shapes["query"] = [config.n_heads, n_tokens, config.d_head]
    shapes["key"] = shapes["value"] = [config.n_kv_heads, n_tokens, config.d_head]
    arrays = [_entry(name, layer, shape) for layer in layers for name, shape in shapes.items()]
    return header_of(
        labels,
        arrays=arrays,
        causal=bool(config.causal),
        edited=edited,
        heads=list(range(config.n_heads)),
        layers=list(layers),
        lens={"block": _LENS} if has_lens(trace) else None,
        model=model,
        scale=scales_of(config, layers),
        sizes=sizes_of(config),
        texts=list(trace.tokens.texts[0]),
        **looking_header(config, layers),
        **rotation_header(config, layers, n_tokens),
    )


def _entry(name: str, layer: int, shape: list[int]) -> Json:
    codes = name not in _VECTORS
    return {
        "block": f"{name}-{layer}",
        "coding": "sqrt" if codes else "plain",
        "dtype": "uint8" if codes else "float32",
        "head": None,
        "layer": layer,
        "packing": "none",
        "quantity": name,
        "shape": shape,
        "triangle": False,
    }


def block_of(trace: Trace, name: str) -> Array:
    """The numbers of a block that `picture_of` names, in its shape; the lens as JSON.

    Raises MinibertError for another name and for predictions that are not finite, and
    AttentionError for other numbers that are not.
    """
    sentence = Sentence(trace, 0)
    if name == _LENS and has_lens(trace):
        return _lens_block(trace, len(sentence.labels))
    found = _BLOCK.fullmatch(name)
    if not found or int(found[2]) >= trace.config.n_layers:
        raise MinibertError(f"There is no block {name!r:.80} of this pass.")
    quantity, layer = found[1], int(found[2])
    if quantity == "probs":
        return encode_probs(sentence.probs(layer))
    return sentence.vectors(quantity, layer).astype(np.float32, copy=False)


def _lens_block(trace: Trace, length: int) -> Array:
    """The bytes of what each layer would predict."""
    try:
        text = json.dumps(computed_lens(trace, 0, length), allow_nan=False)
    except ValueError as error:
        raise MinibertError(
            "What a layer would predict has NaN or infinity. An edit has set too large a value, or "
            "the weights are broken."
        ) from error
    return np.frombuffer(text.encode(), np.uint8)


# Candidates of a prediction: more than a page has room for.
_TOP = 20


def predicts_of(config: Config, tokenizer: Tokenizer) -> str:
    """masked, causal, classes or none: what engine.js says a model predicts."""
    if config.task == "causal-lm":
        return "causal"
    if config.task == "sequence-classification":
        one = config.problem_type in ("", "single_label_classification")
        return "classes" if one else "none"
    masked = predicts_tokens(config.family, config.task)
    return "masked" if masked and tokenizer.mask_id is not None else "none"


# Numbers that one question may ask for: 64 MiB.
_MOST_NUMBERS = 2**24


def weight_of(model: Model, name: str, layer: int | None, row: int | None) -> Tensor | None:
    """A weight, or one row of its first axis; None where the model has none of this name.

    `name` is its name below the layer, or its whole name where the layer is None. Raises
    MinibertError for a layer or a row that is not there, and for more numbers than a page may ask
    for at once.
    """
    n_layers = model.config.n_layers
    if layer is not None and layer >= n_layers:
        raise MinibertError(f"layer {layer}: {model.name} has {n_layers}.")
    owner: torch.nn.Module = model if layer is None else model.body.layers[layer]
    try:
        weight = owner.get_parameter(name)
    except AttributeError:
        return None
    # Not weight.detach(): a packed layer answers that by dropping its packed copy.
    value = torch.Tensor.detach(weight)
    module = owner.get_submodule(name.rpartition(".")[0])
    if isinstance(module, Linear) and module.multiplier != 1.0:
        value = value * module.multiplier
    if row is not None:
        if row >= len(value):
            raise MinibertError(f"{name} has {len(value)} rows; there is no row {row}.")
        value = value[row]
    if value.numel() > _MOST_NUMBERS:
        raise MinibertError(f"{name} has {value.numel()} numbers; ask for one row.")
    return value


# No tokenizer of ours makes fewer tokens of so many characters, but for blanks.
_CHARACTERS_A_POSITION = 100


@dataclass(frozen=True)
class Answer:
    """Plain data for JSON, and arrays by name."""

    body: object
    blocks: Mapping[str, Array] = field(default_factory=dict)


class Engine:
    """The answers of one model. Not safe for several threads at once; model_thread.py has one."""

    def __init__(self, model: Model, features: Features | None = None) -> None:
        if model.tokenizer is None:
            raise TokenizationError(f"{model.name} has no tokenizer: put tokenizer.json beside it.")
        if model.config.family == "minibert":
            raise MinibertError(
                f"{model.name} is an architecture of your own, whose pass the page cannot draw. "
                "model.trace(text).view() makes a page of one text."
            )
        if features is not None:
            check_features(features, model, model.name)
        self.model, self.features_of = model, features
        self.tokenizer = model.tokenizer
        self.config = model.config
        self.name = without_folder(model.name)
        self.passes = Passes()
        self.predicts = predicts_of(self.config, self.tokenizer)

    @property
    def takes_pairs(self) -> bool:
        """False where a second text would be one with the first: in a causal model."""
        return not self.config.causal

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
            "vocabulary": config.n_labels if self.predicts == "classes" else config.vocab_size,
            "mask": None if mask_id is None else self.tokenizer.raw(mask_id),
            "pairs": self.takes_pairs,
            "built": built_of(self.model),
            "features": None if self.features_of is None else list(self.features_of.writes),
        }
        return Answer(body)

    def trace(self, request: TextRequest, blocks: tuple[str, ...] = ()) -> Answer:
        """One pass: its header, its predictions, and the blocks of these names.

        A name that this pass does not have is left out: the page's last pass was another one.
        """
        trace, edits = self._edited(request)
        changed = any(edit.quantity in ("scores", "probs") for edit in edits)
        header = picture_of(trace, self.name, edited=changed)
        ids = trace.tokens.ids[0].tolist()
        body = {"ids": ids, "header": header, "predictions": self._predictions(trace)}
        there = {entry["block"] for entry in header["arrays"]}
        return Answer(body, {name: block_of(trace, name) for name in blocks if name in there})

    def block(self, request: TextRequest, blocks: tuple[str, ...]) -> Answer:
        """Blocks of a pass. Raises MinibertError for a name that it does not have."""
        trace, _ = self._edited(request)
        return Answer(None, {name: block_of(trace, name) for name in blocks})

    def read(self, request: TextRequest, quantity: str, layer: int | None) -> Answer:
        """A quantity of the glossary, in single precision, without the batch axis."""
        trace, _ = self._edited(request)
        if quantity not in QUANTITIES:
            raise MinibertError(
                f"{quantity!r:.80} is not a quantity{did_you_mean(quantity, QUANTITIES)}; there "
                f"are {', '.join(QUANTITIES)}."
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
            raise MinibertError(f"position {position}: there are {trace.allowed.position} tokens.")
        return Answer(self._candidates(self._logits_at(trace, position)))

    def features(self, request: TextRequest, position: int) -> Answer:
        """What each active feature, their biases and the error are at a position: their sum."""
        trace, _ = self._edited(request)
        if self.features_of is None or position >= trace.allowed.position:
            raise MinibertError(
                f"position {position}: the page was made without features, or the text is shorter."
            )
        split = Split(self.features_of.read(trace), 0)
        writes = split.writes(0, [position], split.active([position]))
        found = _numbers(torch.cat([each.vectors()[:, 0, 0] for each in writes]))
        names = [str(one) for each in writes for one in each.components]
        return Answer({"names": names, **cast(Json, found.body)}, found.blocks)

    def weights(self, quantity: str, layer: int | None, row: int | None) -> Answer:
        """A weight of the model, or one row of it; null where there is none of this name."""
        weight = weight_of(self.model, quantity, layer, row)
        return Answer(None) if weight is None else _numbers(weight)

    def sweep(self, request: TextRequest, question: Question) -> Iterator[Answer | None]:
        """How much the log probability of a token changes where z of one head is 0 as well.

        A layer at a time, None after each, so that others have their turn; then the answer:
        (layer, head), natural logarithms.
        """
        trace, edits = self._edited(request)
        n_tokens, n_logits = trace.allowed.position, self._logits_at(trace, 0).shape[-1]
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

        def changed(more: list[EditMap]) -> Tensor:
            places = None if whole else [question.position]
            return clean.rerun_each([given | one for one in more], log_prob, positions=places)[:, 0]

        before = changed([{}])
        rows = []
        for layer in range(self.config.n_layers):
            yield None
            heads = range(self.config.n_heads)
            rows.append(changed([{("z", layer, head): [zero]} for head in heads]) - before)
        yield _numbers(torch.stack(rows))

    def step(self, request: TextRequest, sampling: Json) -> Answer:
        """One next token, drawn as `minibert.generate` draws it, and what it was drawn from."""
        if self.predicts != "causal":
            raise MinibertError(f"{self.name} writes no next token; a causal model does.")
        trace, _ = self._edited(request)
        chooser = Sampling(
            sampling.get("temperature", 1.0), sampling.get("topK"), sampling.get("topP")
        )
        logits = trace.logits[0, -1]
        known = logits[: self.tokenizer.vocab_size]
        generator = torch.Generator().manual_seed(sampling.get("seed", 0))
        (chosen,) = chooser.choose(known[None], [generator])
        drawn = chooser.probs(known)
        candidates = self._candidates(logits)
        ids = trace.tokens.ids[0].tolist()
        before = self.tokenizer.decode(ids)
        after = self.tokenizer.decode([*ids, chosen])
        piece = after[len(before) :] if after.startswith(before) else self.tokenizer.string(chosen)
        body = {
            "chosen": self._candidates(logits, [chosen])[0],
            "candidates": candidates,
            "drawn": [float(drawn[one["id"]]) for one in candidates],
            "text": request.texts[0] + piece,
        }
        return Answer(body)

    def _logits_at(self, trace: Trace, position: int) -> Tensor:
        """(vocab) at a position, or (label) of the text.

        Raises MinibertError for a model that predicts neither.
        """
        if self.predicts == "none":
            raise MinibertError(f"{self.name} predicts no token or class ({self.config.task}).")
        return trace.logits[0] if self.predicts == "classes" else trace.logits[0, position]

    def _predictions(self, trace: Trace) -> list[Json]:
        """The predictions for each masked token, for the next token, or for the text."""
        return [
            {"position": place, "candidates": self._candidates(self._logits_at(trace, place))}
            for place in self._places(trace)
        ]

    def _candidates(self, logits: Tensor, ids: list[int] | None = None) -> list[Json]:
        """The given tokens or classes, or the most probable ones, with the logits of one place.

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

    def _python_edits(self, request: TextRequest, edits: list[EngineEdit]) -> EditMap:
        clean = self._clean(request.texts)
        other = self._clean(request.other) if needs(edits, "text") else None
        return python_edits(edits, self.config, clean=clean, other=other)


def _numbers(value: Tensor) -> Answer:
    """A tensor as engine.js's Numbers."""
    array = value.detach().to("cpu", torch.float32).numpy()
    return Answer({"shape": list(array.shape)}, {"values": np.ascontiguousarray(array)})
