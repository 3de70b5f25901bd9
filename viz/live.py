"""A page that runs a model: weights and tokenizer in one HTML file that opens without a network.

model -> what static/engine reads of its config, tokenizer.json, weights as float16 -> document

The engine in the file runs BERT and GPT-2, small ones: any other model is refused by name.
"""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.layers.config import ACTIVATIONS, Config
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.text.tokenizer import Tokenizer
from minibert.viz.document import LIVE_PARTS, document, worker_block
from minibert.viz.engine_models import other_choice
from minibert.viz.payload import header_json
from minibert.viz.saving import write_page

__all__ = ["LIVE_TEXTS", "LivePage", "RunnableModel", "live_page", "live_samples"]

# Heads that the engine has, by family.
_TASKS = {"bert": ("none", "masked-lm", "pre-training"), "gpt2": ("none", "causal-lm")}
# Weights in the file: every page opens with unpacking all of them.
_LARGEST = 40_000_000
_FORMAT = 2
# What stands in the field to begin with.
LIVE_TEXTS = {
    "bert": ("The boys [MASK] very tired.",),
    "gpt2": ("red horse blue door green tree red horse blue",),
}
# What the engine does not read.
_UNREAD = ("body.pooler.", "head.next_sentence.")
_FIELDS = (
    *("family", "task", "vocab_size", "n_positions", "n_layers", "n_heads", "d_model", "d_mlp"),
    *("n_segments", "norm_eps", "activation", "causal", "pre_norm"),
)


@runtime_checkable
class RunnableModel(Protocol):
    """What is read of a model: `minibert.model.Model` is one."""

    config: Config
    tokenizer: Tokenizer | None
    name: str

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter once, by our name."""


@dataclass(frozen=True, repr=False)
class LivePage:
    """One HTML file that runs a model; `.save(path)` writes it."""

    header: str
    weights: str
    """The bytes of all weights in base64."""

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        blocks = (worker_block(), ("weights", self.weights))
        return document(self.header, blocks, parts=LIVE_PARTS)

    @property
    def html(self) -> str:
        """The whole file as one text."""
        return "".join(self.pieces())

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(len(piece.encode()) for piece in self.pieces())

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<LivePage of {self.size / 1e6:.1f} MB; save('live.html') writes it to a file>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path of the file, now written whole or not at all; see `saving.write_page`.

        Raises MinibertError when the folder is missing, may not be written to, or is full.
        """
        return write_page(self.pieces(), path)


def live_page(model: RunnableModel, texts: Sequence[str] = ()) -> LivePage:
    """A page that runs this model in the browser, and opens with one text or two.

    Weights are stored as float16 where that changes none of them, else as float32. Raises
    MinibertError for a model that the engine in the page does not run: another family than BERT
    and GPT-2, another head than a language model's, no tokenizer, or more than 40 MB of weights.
    """
    config, tokenizer = model.config, _checked(model)
    named = [(n, p) for n, p in model.named_parameters() if not n.startswith(_UNREAD)]
    entries, weights = _packed(named)
    header = {
        "examples": [],
        "format": _FORMAT,
        "live": {
            "config": _config(model),
            "entries": entries,
            "samples": live_samples(pairs=config.n_segments > 1),
            "texts": list(texts) or list(LIVE_TEXTS[config.family]),
            "vocabulary": {
                "mask": tokenizer.mask_id,
                "size": tokenizer.vocab_size,
                "structural": sorted(tokenizer.structural_ids),
                "tokenizer": json.loads(tokenizer.to_json()),
            },
        },
        "title": None,
        "view": "head",
    }
    return LivePage(header_json(header), base64.b64encode(weights).decode("ascii"))


def live_samples(*, pairs: bool) -> list[list[str]]:
    """Texts for a picture of many: pairs where the model takes two, else each as one text."""
    if pairs:
        return [list(pair) for pair in SAMPLE_PAIRS]
    return [[" ".join(pair)] for pair in SAMPLE_PAIRS]


def _checked(model: RunnableModel) -> Tokenizer:
    """The tokenizer of a model that the engine runs. Raises MinibertError for any other."""
    config, tasks = model.config, _TASKS.get(model.config.family)
    if tasks is None:
        raise _refused(model, f"its family is {config.family}; it runs {', '.join(_TASKS)}")
    if config.task not in tasks:
        heads = ", ".join(tasks)
        raise _refused(model, f"its task head is {config.task}; of {config.family} it runs {heads}")
    if model.tokenizer is None:
        raise _refused(model, "it has no tokenizer, so no text can be typed")
    if choice := other_choice(config):
        raise _refused(model, f"its {choice}, which is not known there")
    if config.activation not in ACTIVATIONS:
        raise _refused(model, f"its activation ({config.activation}) is not known there")
    # 2 bytes each at least.
    size = 2 * sum(parameter.numel() for _, parameter in model.named_parameters())
    if size > _LARGEST:
        raise _refused(
            model, f"its weights take {size / 1e6:.0f} MB; a page holds {_LARGEST / 1e6:.0f} MB"
        )
    return model.tokenizer


def _refused(model: RunnableModel, why: str) -> MinibertError:
    return MinibertError(
        f"A live page cannot run {model.name}: {why}. A page of one text is written by "
        "`minibert view` for any model."
    )


def _config(model: RunnableModel) -> dict[str, Any]:
    config = model.config
    scale = [float(config.attention_scale(layer)) for layer in range(config.n_layers)]
    fields = {name: getattr(config, name) for name in _FIELDS}
    return {**fields, "name": os.path.basename(os.path.normpath(model.name)), "scale": scale}


def _packed(named: Sequence[tuple[str, Tensor]]) -> tuple[list[dict[str, Any]], bytes]:
    """What each weight is, and the bytes of all of them one behind the other."""
    entries, parts, place = [], [], 0
    for name, parameter in named:
        stored = _stored(name, parameter.detach().cpu())
        data = stored.contiguous().numpy().astype(stored.numpy().dtype.newbyteorder("<")).tobytes()
        entries.append(
            {
                "dtype": str(stored.dtype).removeprefix("torch."),
                "from": place,
                "name": name,
                "shape": list(stored.shape),
            }
        )
        # Each begins where a number of four bytes may.
        data += b"\0" * (-len(data) % 4)
        parts.append(data)
        place += len(data)
    return entries, b"".join(parts)


def _stored(name: str, values: Tensor) -> Tensor:
    for dtype in (torch.float16, torch.float32):
        stored = values.to(dtype)
        if bool((stored.to(values.dtype) == values).all()):
            return stored
    raise MinibertError(
        f"{name} has NaN, or values that float32 does not hold. A live page computes in float32: "
        "load the model with dtype=torch.float32."
    )
