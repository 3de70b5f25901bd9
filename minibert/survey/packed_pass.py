"""Texts through a model in packed passes, and the values of chosen points for each token."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import SurveyError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import absent_because
from minibert.layers.layer_pass import LayerPass
from minibert.model import Model
from minibert.quantities import QUANTITIES, TokenIds
from minibert.survey.formats import Document
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens, padded
from minibert.text.windows import equal_parts
from minibert.trace.places import check_index
from minibert.trace.run import embedded, logits_of, reads_single_positions, run_layers

__all__ = ["CollectedPoint", "PackedPass", "TokenizedText", "as_points", "batches", "tokenized"]

Floats = npt.NDArray[np.floating[Any]]
Item = TypeVar("Item")


@dataclass(frozen=True)
class CollectedPoint:
    """A place in the pass whose values are collected: a quantity, its layer, one head or all."""

    name: str
    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        return "-".join(str(p) for p in (self.name, self.layer, self.head) if p is not None)


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The tokens of a document, and the windows that the model sees of it.

    windows   positions of the whole text, special tokens in each window; one window for a text
              that fits
    """

    document: Document
    tokens: Tokens
    windows: tuple[npt.NDArray[np.int64], ...]

    @property
    def size(self) -> int:
        """Tokens that the model computes."""
        return sum(map(len, self.windows))


def as_points(keys: Iterable[Any], model: Model) -> tuple[CollectedPoint, ...]:
    """The points of keys such as ("resid_post", 3), ("z", 3, 5) and "embed"; each once.

    Raises SurveyError for what the model does not have, and for matrices.
    """
    points = tuple(_as_point(key, model) for key in keys)
    if not points:
        raise SurveyError('points=[]: expected at least one, such as ("resid_post", 3).')
    if len(set(points)) < len(points):
        twice = next(p for p in points if points.count(p) > 1)
        raise SurveyError(f"the point {twice} is named twice.")
    return points


def _as_point(key: Any, model: Model) -> CollectedPoint:
    config: Config = model.config
    parts = (key,) if isinstance(key, str) else key
    # What there is one of in a text is no token's; a norm behind the layers is not computed here.
    left_out = {"mask", "pooled", "final_norm_scale"}
    names = [n for n, q in QUANTITIES.items() if n not in left_out and "query" not in q.axes]
    if not isinstance(parts, tuple | list) or not 1 <= len(parts) <= 3 or parts[0] not in names:
        raise SurveyError(
            f"{key!r} cannot be collected; expected (name, layer) or (name, layer, head), the name "
            f"one of {', '.join(names)}."
        )
    name, quantity = parts[0], QUANTITIES[parts[0]]
    if name == "logits" and not reads_single_positions(model.head):
        raise SurveyError(f"logits of {model.name} belong to a whole text, not to its tokens.")
    if quantity.per_layer == (len(parts) == 1) or len(parts) > 2 + quantity.per_head:
        wanted = ["name", *["layer"] * quantity.per_layer, *["head"] * quantity.per_head]
        raise SurveyError(f"{key!r}: of {name} expected ({', '.join(wanted)}).")
    where = f"{key!r}: "
    numbers = [
        check_index(what, number, most, SurveyError, where)
        for what, number, most in zip(
            ("layer", "head"), parts[1:], (config.n_layers, config.n_heads), strict=False
        )
    ]
    absent = config.absent_in(numbers[0]) if numbers else frozenset[str]()
    if name in absent:
        raise SurveyError(f"{key!r} cannot be collected. {absent_because(name, config)}")
    return CollectedPoint(name, *numbers)


def tokenized(document: Document, model: Model) -> TokenizedText:
    """The tokens of a document; a text that is longer than the model is cut into windows.

    Windows are of about the same length, and no token of the text is in two of them. Raises
    TokenizationError for a text without tokens, and for a pair that is longer than the model.
    """
    tokenizer: Any = model.tokenizer
    limit = model.config.n_positions
    longest = limit if document.pair else None
    tokens = tokenizer(*document.contents, max_positions=longest)
    return TokenizedText(document, tokens, equal_parts(tokens, limit))


def batches(items: Iterable[Item], most: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in their order, in batches that end with the one that reaches `most` tokens."""
    held: list[Item] = []
    tokens = 0
    for item in items:
        held.append(item)
        tokens += size(item)
        if tokens >= most:
            yield held
            held, tokens = [], 0
    if held:
        yield held


class PackedPass:
    """Computes the values of points for texts, without padding, `most` tokens or more at a time."""

    def __init__(self, model: Model, points: Sequence[CollectedPoint], most: int) -> None:
        self.model, self.points, self.most = model, points, most
        layers = [p.layer for p in points if p.layer is not None]
        whole = any(p.name == "logits" for p in points)
        self._stop = model.config.n_layers if whole else max(layers, default=-1) + 1

    def shapes(self) -> dict[CollectedPoint, tuple[int, ...]]:
        """The shape of one token's value at each point."""
        found = self._values(torch.zeros(1, 1, dtype=torch.int64), None, [1])
        return {point: value.shape[1:] for point, value in found.items()}

    def __call__(self, texts: Sequence[TokenizedText]) -> dict[CollectedPoint, Floats]:
        """(token, ...) for each point, for the tokens of all windows of the texts, in order."""
        windows = [(text.tokens, window) for text in texts for window in text.windows]
        # A text may be a whole book, too long for one pass.
        groups = batches(windows, self.most, lambda one: len(one[1]))
        parts = [self._of_windows(group) for group in groups]
        return {point: np.concatenate([part[point] for part in parts]) for point in self.points}

    def _of_windows(
        self, windows: Sequence[tuple[Tokens, npt.NDArray[np.int64]]]
    ) -> dict[CollectedPoint, Floats]:
        ids = padded([tokens.ids[0][window].tolist() for tokens, window in windows], 0)
        kinds = padded([tokens.segments[0][window].tolist() for tokens, window in windows], 0)
        return self._values(ids, kinds, [len(window) for _, window in windows])

    @torch.no_grad()
    def _values(
        self, ids: TokenIds, kinds: TokenIds | None, lengths: list[int]
    ) -> dict[CollectedPoint, Floats]:
        model, device = self.model, self.model.body.word.weight.device
        mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
        inputs = Inputs(
            ids.to(device), mask.to(device), None if kinds is None else kinds.to(device)
        ).checked(model.config, model.name)
        allowed = AllowedKeys(1, sum(lengths), device, model.config.causal, packed=tuple(lengths))
        found: dict[CollectedPoint, Floats] = {}

        def visit(at: LayerPass) -> None:
            for point in self.points:
                if point.layer == at.index:
                    found[point] = _rows(getattr(at, point.name), point)

        embed = embedded(model.body, inputs, allowed)
        hidden = run_layers(
            model.body,
            embed,
            Evaluation(allowed, model.impl),
            stop=self._stop,
            keep=lambda layer: frozenset(p.name for p in self.points if p.layer == layer),
            visit=visit,
        )
        for point in self.points:
            if point.name == "embed":
                found[point] = _rows(embed, point)
            elif point.name == "logits":
                final = model.body.final(hidden)
                found[point] = _rows(logits_of(model, final, inputs, allowed), point)
        return found


def _rows(value: Tensor, point: CollectedPoint) -> Floats:
    """(token, ...) of a quantity of one row of packed tokens."""
    value = value[0]
    if QUANTITIES[point.name].per_head:
        value = value[point.head] if point.head is not None else value.transpose(0, 1)
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.cpu().numpy()
