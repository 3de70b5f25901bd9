"""A page that runs a model: weights and tokenizer in one HTML file that opens without a network.

model -> what static/engine reads of its config, tokenizer.json, weights as float16 -> document

Matrices of a model that takes more than 40 MB so are written in 8 bits, with a scale a row. The
engine in the file runs the families in `LIVE_FAMILIES`: any other model is refused by name.
"""

import base64
import copy
import json
import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from minibert.errors import MinibertError
from minibert.features import Features, check_features
from minibert.languages import strings
from minibert.layers.bodies import Body
from minibert.layers.config import ACTIVATIONS, FAMILIES, Config, discriminates
from minibert.layers.linear import Int8Weight, held_by_name
from minibert.text.tokenizer import Tokenizer
from minibert.trace.read import Trace
from minibert.untrusted import Json
from minibert.viz.document import (
    LIVE_PARTS,
    STORY_PARTS,
    Written,
    document,
    packed_text,
    page_header,
    worker_block,
)
from minibert.viz.engine_edits import editable
from minibert.viz.example import Example, Sentence, scales_of, trace_example
from minibert.viz.page import CELL_HEIGHT, Shown
from minibert.viz.vectors import Holding, looking_header, rotation_header

__all__ = [
    "JUDGED_TEXT",
    "LIVE_FAMILIES",
    "LIVE_TEXTS",
    "RUN_TASKS",
    "LivePage",
    "RunnableModel",
    "StoryPage",
    "in_8_bits",
    "live_page",
    "story_page",
]

# The engine does not know Granite's factors.
LIVE_FAMILIES = tuple(name for name in FAMILIES if name not in ("minibert", "granite"))
RUN_TASKS = ("none", "masked-lm", "pre-training", "causal-lm", "sequence-classification")
# Bytes of weights that a file holds as they are: every page opens with unpacking all of them.
_WHOLE = 40_000_000
# And in 8 bits: no text of a browser is longer than 512 MB, which base64 reaches with these.
_LARGEST = 380_000_000
# What the error of 8 bits is measured on.
_JUDGED = (
    "The horse pulled the cart up the hill because it was strong.",
    "In 1914 the two men left London for Paris, with 3 bags and 20 pounds.",
    "She said that nobody had seen the key, and he did not believe her.",
    "Water boils at a lower temperature where the air is thinner.",
)
_IN_8_BITS = (
    "Matrices are stored in 8 bits, with a scale a row. On {0} sentences that changes attention "
    "weights by at most {1}, the last hidden states by {2} % of their length{3}."
)
_ANSWERS = ", logits by at most {0}, and {1} of {2} most probable answers stay"
# What stands in the field to begin with, of a model that fills masks and of one that continues.
LIVE_TEXTS = {
    False: "The boys [MASK] very tired.",
    True: "The boys saw a white horse. The girls saw a white",
}
# And of one that gives classes of a text.
JUDGED_TEXT = "I did not really enjoy this movie. It was fantastic!"
_CLASSES, _CLASSES_ASKED = "sequence-classification", "single_label_classification"
# What the engine does not read; of a head that gives classes the pooler is.
_UNREAD = ("body.pooler.", "head.next_sentence.")
_FIELDS = (
    *("family", "task", "vocab_size", "n_positions", "n_layers", "n_heads", "n_kv_heads"),
    *("d_head", "d_model", "d_mlp", "n_segments", "norm", "norm_eps", "norm_plus_one"),
    *("norm_place", "parallel", "query_key_norm", "activation", "causal"),
    *("logit_soft_cap", "labels", "position_offset", "n_layer_groups"),
)


@runtime_checkable
class RunnableModel(Protocol):
    """What is read of a model: `minibert.model.Model` is one."""

    config: Config
    tokenizer: Tokenizer | None
    name: str
    body: Body

    def trace(self, text: str) -> Trace:
        """The pass of one text."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Each module by its place."""


def built_of(model: RunnableModel) -> Json:
    """The parts of a model as static/core/data/source.js has them."""
    config = model.config
    return {
        "norm": config.norm_place,
        "normKind": config.norm,
        "plusOne": config.norm_plus_one,
        "firstNorm": config.first_norm,
        "eps": config.norm_eps,
        "parallel": config.parallel,
        "keyHeads": config.n_kv_heads,
        "queryKeyNorm": config.query_key_norm,
        "rotary": config.rotary is not None,
        "gated": config.gated,
        "activation": config.activation,
        "headActivation": FAMILIES[config.family].head_activation or config.head_activation,
        "embedScale": model.body.word_scale,
        "positions": model.body.position is not None,
        "positionOffset": config.position_offset,
        "segments": config.n_segments > 0,
        "embedNorm": config.embed_norm,
        "embedProject": model.body.embed_project is not None,
        "finalNorm": config.final_norm,
        "transform": not config.generates,
        "logitSoftCap": config.logit_soft_cap,
    }


@dataclass(frozen=True, repr=False)
class LivePage(Shown):
    """One HTML file that runs a model; it shows itself in a notebook and has `.save(path)`."""

    header: str
    weights: str = ""
    """The bytes of all weights in base64; "" in a page that is given a folder."""
    note: str = ""
    """What 8 bits change; "" where the weights are the model's own."""
    examples: tuple[Example, ...] = ()
    """What a cell of a notebook shows a picture of where no script runs; not in the file."""
    height: int = CELL_HEIGHT
    """CSS pixels in a cell."""
    language: str = "en"
    """What the page speaks: one of `minibert.languages.LANGUAGES`."""

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        blocks = [("weights", self.weights)] if self.weights else []
        blocks = [worker_block(), *blocks]
        return document(self.header, blocks, parts=LIVE_PARTS, language=self.language)

    def __repr__(self) -> str:
        """What a notebook says where it shows neither HTML nor an image."""
        return (
            f"<LivePage of {self.size / 1e6:.1f} MB, in which the model runs when a browser shows"
            " it; save('live.html') writes it to a file>"
        )


def first_text(config: Config, tokenizer: Tokenizer) -> str:
    """What a live page opens with."""
    if config.task == _CLASSES:
        return JUDGED_TEXT
    if config.causal or tokenizer.mask_id is None:
        return LIVE_TEXTS[True]
    return LIVE_TEXTS[False].replace("[MASK]", tokenizer.raw(tokenizer.mask_id))


def still_of(model: RunnableModel, text: str) -> Example:
    """The attention weights of a text, of which a cell shows a picture where no script runs."""
    layers, heads = range(model.config.n_layers), range(model.config.n_heads)
    holding = Holding(tuple(layers), tuple(heads), vectors=False, exact=frozenset())
    return trace_example(Sentence(model.trace(text), 0), "", holding)


@dataclass(frozen=True, repr=False)
class StoryPage(Written):
    """One HTML file with the story of how a transformer chooses a word; `.save(path)` writes it."""

    header: str
    weights: tuple[str, ...]
    """Of each model the bytes of all weights, deflated."""
    language: str = "en"

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        blocks = [(f"weights{i}", packed) for i, packed in enumerate(self.weights)]
        blocks = [worker_block(), *blocks]
        return document(self.header, blocks, parts=STORY_PARTS, language=self.language)

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<StoryPage of {self.size / 1e6:.1f} MB; save('story.html') writes it to a file>"


def story_page(masked: RunnableModel, causal: RunnableModel, *, language: str = "en") -> StoryPage:
    """The exercises as one page, step by step, which runs tiny-bert and tiny-gpt2, in this order.

    `language` is one of `minibert.languages.LANGUAGES`. Raises MinibertError for another one, and
    for a model that the engine in the page does not run.
    """
    held = [_held(model, (), language=language) for model in (masked, causal)]
    header = page_header(story=[live for live, _ in held])
    return StoryPage(header, tuple(packed_text(weights) for _, weights in held), language)


def live_page(
    model: RunnableModel,
    texts: Sequence[str] = (),
    *,
    features: Features | None = None,
    language: str = "en",
) -> LivePage:
    """A page that runs this model in the browser, and opens with one text or two.

    With `features` it can split scores by them. Gated ones, those of normalised vectors or of other
    places than the stream and what blocks write, and skips are refused: `minibert serve` has them.

    Weights are stored as float16 where that changes none of them, else as float32. Of a model that
    has more than 40 MB of them so, matrices are stored in 8 bits with a scale a row, and `note`
    says how much that changes on four sentences. Raises MinibertError for a model that the engine
    in the page does not run: a family that is not in `LIVE_FAMILIES`, another head than a language
    model's, frequencies that depend on the text's length, no tokenizer, or more than 380 million
    weights; TokenizationError for a text without a token.

    `language`, one of `minibert.languages.LANGUAGES`, is what the page speaks; texts and tokens
    stay what they are. Raises MinibertError for another one.
    """
    live, weights = _held(model, texts, features, language)
    held = base64.b64encode(weights).decode("ascii")
    return LivePage(page_header(live=live), held, live["note"], language=language)


def _held(
    model: RunnableModel,
    texts: Sequence[str],
    features: Features | None = None,
    language: str = "en",
) -> tuple[Json, bytes]:
    """What the engine and the page read of a model, and its weights."""
    said = strings(language, "page")
    config, tokenizer = model.config, _checked(model)
    if len(texts) > 1 and config.causal:
        raise _refused(model, "it takes one text: a second one would continue the first")
    if texts:
        tokenizer(*texts)
    unread = () if config.task == _CLASSES else _UNREAD
    named = [(n, p) for n, p in held_by_name(model).items() if not n.startswith(unread)]
    coded = 2 * sum(parameter.numel() for _, parameter in named) > _WHOLE
    entries, weights = _packed(named, coded)
    config_of_page = _config(model)
    if features is not None:
        check_features(features, model, model.name)
        config_of_page["features"], tensors = _dictionary(features)
        more, dictionary = _packed(tensors, coded=False)
        entries += [entry | {"from": len(weights) + entry["from"]} for entry in more]
        weights += dictionary
    note = _note(model, said) if coded else ""
    live = {
        "config": config_of_page,
        "entries": entries,
        "note": note,
        "texts": list(texts) or [first_text(config, tokenizer)],
        "vocabulary": {
            "mask": tokenizer.mask_id,
            "size": tokenizer.vocab_size,
            "structural": sorted(tokenizer.structural_ids),
            "tokenizer": json.loads(tokenizer.to_json()),
        },
    }
    return live, weights


def _dictionary(features: Features) -> tuple[Json, list[tuple[str, Tensor]]]:
    """The dictionary as static/engine/features.js computes it: biases and factors folded in."""
    own = features.dictionary
    of_stream = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
    if (
        own.activation == "gated"
        or own.normalizes != "none"
        or own.W_skip is not None
        or not {features.reads.name, features.writes.name} <= {*of_stream}
    ):
        raise MinibertError(
            f"The engine of a live page does not compute {features!r}: gated ones, those of "
            "normalised vectors or of other places, and skips are left to `minibert serve`."
        )
    matrix, bias = own.W_enc, own.b_enc
    bias = bias - own.b_dec @ matrix if own.subtracts else bias
    if own.centres:
        matrix = matrix - matrix.mean(0)
    if own.rescales:
        matrix, bias = matrix * own.W_dec.norm(dim=-1), bias * own.W_dec.norm(dim=-1)
    tensors = {
        "encoder": matrix.mT,
        "b_enc": bias,
        "directions": own.directions,
        "b_dec": own.b_dec,
    }
    if own.threshold is not None:
        tensors["threshold"] = own.threshold
    about: Json = {"reads": list(features.reads), "writes": list(features.writes)}
    about["k"] = own.k if own.activation == "topk" else 0
    return about, [(f"features.{name}", tensor.float()) for name, tensor in tensors.items()]


def _checked(model: RunnableModel) -> Tokenizer:
    """The tokenizer of a model that the engine runs. Raises MinibertError for any other."""
    config = model.config
    if config.family not in LIVE_FAMILIES:
        raise _refused(model, f"its family is {config.family}; it runs {', '.join(LIVE_FAMILIES)}")
    if config.task not in RUN_TASKS or discriminates(config.family, config.task):
        raise _refused(model, f"its task head is {config.task}; it runs {', '.join(RUN_TASKS)}")
    if model.tokenizer is None:
        raise _refused(model, "it has no tokenizer, so no text can be typed")
    if config.task == _CLASSES and config.problem_type not in ("", _CLASSES_ASKED):
        raise _refused(model, f"its head answers {config.problem_type}; it runs {_CLASSES_ASKED}")
    for rotary in filter(None, (config.rotary, config.local_rotary)):
        if rotary.depends_on_length:
            raise _refused(model, f"its rotary scaling is {rotary.scaling}; it runs others")
    if config.activation not in ACTIVATIONS:
        raise _refused(model, f"its activation ({config.activation}) is not known there")
    held = held_by_name(model).values()
    if any(isinstance(parameter, Int8Weight) for parameter in held):
        raise _refused(model, 'it was loaded with weights="int8"; load it without')
    size = sum(parameter.numel() for parameter in held)
    if size > _LARGEST:
        raise _refused(
            model, f"it has {size / 1e6:.0f} million weights; a page holds {_LARGEST / 1e6:.0f}"
        )
    return model.tokenizer


def _refused(model: RunnableModel, why: str) -> MinibertError:
    return MinibertError(
        f"A live page cannot run {model.name}: {why}. `minibert view` writes a page of one text."
    )


def _config(model: RunnableModel) -> Json:
    config = model.config
    fields = {name: getattr(config, name) for name in _FIELDS}
    layers, family = range(config.n_layers), FAMILIES[config.family]
    return {
        **fields,
        "head_activation": family.head_activation or config.head_activation,
        "first_activation": family.first_activation,
        "reads": "last" if config.decodes else config.pooling,
        "quantities": editable(config),
        "built": built_of(model),
        "embed_scale": model.body.word_scale,
        "name": os.path.basename(os.path.normpath(model.name)),
        "scale": scales_of(config, layers),
        **looking_header(config, layers),
        # The number of tokens is without effect: what depends on it was refused.
        **rotation_header(config, layers, config.n_positions),
    }


def _packed(named: Sequence[tuple[str, Tensor]], coded: bool) -> tuple[list[Json], bytes]:
    """The description of each weight, and the bytes of all of them in a row.

    With `coded` matrices are in 8 bits: the scales of their rows, then the codes.
    """
    entries, parts, place = [], [], 0
    for name, parameter in named:
        values = parameter.detach().cpu()
        # A vector is added or multiplied once, and not worth an error.
        pieces = _codes(name, values) if coded and values.dim() > 1 else (_stored(name, values),)
        data = b"".join(_bytes(piece) for piece in pieces)
        entries.append(
            {
                "dtype": str(pieces[-1].dtype).removeprefix("torch."),
                "from": place,
                "name": name,
                "shape": list(values.shape),
            }
        )
        # Each begins where a number of four bytes may.
        data += b"\0" * (-len(data) % 4)
        parts.append(data)
        place += len(data)
    return entries, b"".join(parts)


def _bytes(values: Tensor) -> bytes:
    numbers = values.contiguous().numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()


def _codes(name: str, values: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of each row, and its numbers as so many scales: int8 from -127 to 127."""
    values = _finite(name, values)
    scales = values.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return scales, (values / scales[:, None]).round().clamp(-127, 127).to(torch.int8)


def in_8_bits(model: RunnableModel) -> RunnableModel:
    """A copy whose matrices are what a large page's file has of them."""
    coded = copy.deepcopy(model)
    for name, parameter in held_by_name(coded).items():
        if parameter.dim() > 1:
            scales, codes = _codes(name, parameter.detach().cpu())
            parameter.data = (codes * scales[:, None]).to(parameter)
    return coded


def _note(model: RunnableModel, texts: dict[str, str]) -> str:
    """A sentence on how far the model in 8 bits is from the model, on a few texts."""
    coded = in_8_bits(model)
    logits, probs, hidden, same, count = 0.0, 0.0, 0.0, 0, 0
    for text in _JUDGED:
        one, other = model.trace(text), coded.trace(text)
        last = model.config.n_layers - 1
        states = [trace[last].resid_post.float() for trace in (one, other)]
        hidden = max(hidden, float((states[1] - states[0]).norm() / states[0].norm()))
        pairs = zip(one, other, strict=True)
        probs = max(probs, *(float((a.probs - b.probs).abs().max()) for a, b in pairs))
        if model.config.task != "none":
            first, second = one.logits, other.logits
            logits = max(logits, float((second - first).abs().max()))
            same += int((first.argmax(-1) == second.argmax(-1)).sum())
            count += first.argmax(-1).numel()
    answers = texts.get(_ANSWERS, _ANSWERS).format(f"{logits:.2g}", same, count) if count else ""
    values = (len(_JUDGED), f"{probs:.2g}", f"{100 * hidden:.1f}", answers)
    return texts.get(_IN_8_BITS, _IN_8_BITS).format(*values)


def _stored(name: str, values: Tensor) -> Tensor:
    values = _finite(name, values)
    half = values.to(torch.float16)
    return half if bool((half.float() == values).all()) else values


def _finite(name: str, values: Tensor) -> Tensor:
    """The values as float32, without loss. Raises MinibertError where that cannot be."""
    single = values.float()
    if not bool((single.to(values.dtype) == values).all()):
        raise MinibertError(
            f"{name} has NaN, or values that float32 does not hold. A live page computes in "
            "float32: load the model with dtype=torch.float32."
        )
    return single
