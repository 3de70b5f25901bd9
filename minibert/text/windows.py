"""A text of any length as windows that a model can read.

Place: `model.windows(text, stride=...)` gives Windows, which overlap so that no token lacks
context; `windows.tokens` goes into the model as any batch does, and `windows.merge` puts what came
out together again, one value a token of the text. `equal_parts` cuts without overlap.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.quantities import Int, Shaped
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.text.words import Words, written

if TYPE_CHECKING:
    LongText = str | Words
    Whole = int
    Values = Shaped[Tensor, "window position *rest"]
else:
    # Checked below, with an error that says what to do; a run-time type checker must not get in
    # before it.
    LongText = Whole = Values = object


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of one text, one a row of `tokens`, all of the same length.

    text      the whole text; spans and words of `tokens` count within it
    whole     the tokens of the whole text, special ones left out, as a batch of one
    tokens    the windows, each with its special tokens
    starts    for each window, which token of `whole` it begins with
    sources   (window, position) of each token of `whole`, where it has the most context:
              the most tokens on its shorter side; for a causal model, the most before it
    """

    text: str
    whole: Tokens
    tokens: Tokens
    starts: tuple[int, ...]
    sources: Int[Tensor, "token 2"]

    def __repr__(self) -> str:
        rows, length = self.tokens.ids.shape
        return f"Windows({rows} of {length} tokens, over a text of {self.whole.ids.shape[1]})"

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.starts)

    def batches(self, size: Whole) -> Iterator[Tokens]:
        """The windows in batches of at most `size`."""
        _whole_number("size", size, least=1, most=None, why="windows of a batch")
        for first in range(0, len(self), size):
            yield _rows(self.tokens, slice(first, first + size))

    def merge(self, values: Values) -> Shaped[Tensor, "token *rest"]:
        """One value for each token of the whole text, from the window where it has most context.

        `values` is anything with one entry a token of `tokens`: hidden states, logits, entropies.
        Raises TokenizationError where the shape is another, and for what is no tensor.
        """
        if not isinstance(values, Tensor):
            raise TokenizationError(
                f"merge: the values are a {type(values).__name__}; expected a tensor."
            )
        expected = tuple(self.tokens.ids.shape)
        if tuple(values.shape[:2]) != expected:
            raise TokenizationError(
                f"merge: the values have shape {tuple(values.shape)}; expected one for each token "
                f"of the windows: {expected} and anything behind."
            )
        window, position = self.sources.to(values.device).unbind(-1)
        return values[window, position]


def windows(
    source: Any,
    text: LongText,
    *,
    stride: Whole,
    size: Whole | None = None,
    causal: bool | None = None,
) -> Windows:
    """The overlapping windows of a text: each token of it stands in at least one.

    source   a model, or a Tokenizer; then `size` must be given
    stride   tokens of the text from one window's beginning to the next's; the last window begins
             earlier than that, so that it is as long as the others
    size     tokens of a window, special ones included: the model's positions when not given
    causal   whether only what stands before a token is context, as for GPT-2; the model knows

    A text that fits makes one window, which is what the tokenizer gives. Raises TokenizationError
    for an empty text, a size that the model does not have, and a stride that would leave tokens
    out or never arrive.
    """
    tokenizer, limit, looks_back = _asked(source)
    if not isinstance(text, str | Words):
        raise TokenizationError(
            f"windows: a text must be one str, not {type(text).__name__}; give texts one by one."
        )
    if tokenizer is None:
        raise TokenizationError(f"windows: {source.name} has no tokenizer; give one that has.")
    tokens = tokenizer(text)
    inside = _inside(tokens)
    first, behind = inside[0], tokens.lengths[0] - inside[-1] - 1
    room = _room(size, limit, first + behind)
    _whole_number("stride", stride, least=1, most=room, why=f"a window holds {room} of the text")
    starts = _starts(len(inside), room, stride)
    places = [_places(start, room, first, behind, tokens.lengths[0]) for start in starts]
    return Windows(
        text=written(text),
        whole=columns(tokens, [inside]),
        tokens=columns(tokens, places),
        starts=starts,
        sources=_sources(
            len(inside), starts, room, first, looks_back if causal is None else causal
        ),
    )


def equal_parts(tokens: Tokens, longest: int) -> tuple[npt.NDArray[np.int64], ...]:
    """The positions of each part of one text that is cut into parts of at most `longest` tokens.

    Parts are of about the same length; no token of the text is in two of them, and each has the
    special tokens of a whole text. A text that fits is one part. Raises TokenizationError where the
    special tokens leave no room.
    """
    length = tokens.lengths[0]
    if length <= longest:
        return (np.arange(length),)
    inside = _inside(tokens)
    first, last = inside[0], inside[-1]
    before, behind = np.arange(first), np.arange(last + 1, length)
    room = longest - len(before) - len(behind)
    if room < 1:
        raise TokenizationError(
            f"A text of {length} tokens cannot be cut into parts of {longest}: "
            f"{len(before) + len(behind)} of each are special tokens."
        )
    parts = np.array_split(np.arange(first, last + 1), -(-(last + 1 - first) // room))
    return tuple(np.concatenate([before, part, behind]) for part in parts)


def _inside(tokens: Tokens) -> list[int]:
    """The positions of the tokens of the text itself."""
    # Only what the tokenizer's template adds stands for no characters.
    return [position for position, span in enumerate(tokens.spans[0]) if span is not None]


def _asked(source: Any) -> tuple[Tokenizer | None, int | None, bool]:
    """The tokenizer, the limit of positions and whether attention is causal."""
    if isinstance(source, Tokenizer):
        return source, None, False
    config = getattr(source, "config", None)
    if config is None or not hasattr(source, "tokenizer"):
        raise TokenizationError(
            f"windows of a {type(source).__name__}: expected a model or a Tokenizer."
        )
    return source.tokenizer, config.n_positions, config.causal


def _room(size: Any, limit: int | None, n_special: int) -> int:
    """The tokens of the text that a window holds."""
    if size is None and limit is None:
        raise TokenizationError(
            "windows of a Tokenizer: it has no limit of its own; give size=, tokens of a window."
        )
    why = f"{n_special} of a window are special tokens"
    _whole_number("size", limit if size is None else size, least=n_special + 1, most=limit, why=why)
    return (limit if size is None else size) - n_special  # type: ignore[operator]


def _whole_number(name: str, value: Any, *, least: int, most: int | None, why: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise TokenizationError(f"{name}={value!r}: expected a whole number {bounds} ({why}).")


def _starts(length: int, room: int, stride: int) -> tuple[int, ...]:
    last = max(length - room, 0)
    return (*range(0, last, stride), last)


def _places(start: int, room: int, first: int, behind: int, length: int) -> list[int]:
    """The positions of the whole sentence that make a window: special, text, special."""
    stop = min(start + room, length - first - behind)
    text = range(first + start, first + stop)
    return [*range(first), *text, *range(length - behind, length)]


def _sources(
    length: int, starts: tuple[int, ...], room: int, first: int, causal: bool
) -> Int[Tensor, "token 2"]:
    token, start = torch.arange(length), torch.tensor(starts)
    if causal:
        # The earliest window that the token is in.
        window = torch.searchsorted(start, token - room + 1)
    else:
        # The token in the middle would be best; the windows next to that place come closest.
        after = torch.searchsorted(2 * start, 2 * token - room + 1).clamp(max=len(starts) - 1)
        before = (after - 1).clamp(min=0)
        window = torch.where(
            _shorter_side(token, start[before], room) >= _shorter_side(token, start[after], room),
            before,
            after,
        )
    return torch.stack([window, token - start[window] + first], dim=1)


def _shorter_side(token: Tensor, start: Tensor, room: int) -> Tensor:
    return torch.minimum(token - start, start + room - 1 - token)


def columns(tokens: Tokens, places: list[list[int]]) -> Tokens:
    """One row for each list of positions of the one sentence in `tokens`."""
    index = torch.tensor(places)

    def pick(rows: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(rows[0][position] for position in chosen) for chosen in places)

    # The text is of the whole sentence.
    picked = replace(tokens, texts=()).each(
        lambda table: table[0][index], lambda rows: pick(rows) if rows else ()
    )
    return replace(picked, texts=tokens.texts * len(places))


def _rows(tokens: Tokens, rows: slice) -> Tokens:
    """Some of the sentences, which are equally long."""
    return tokens.each(lambda table: table[rows], lambda sentences: sentences[rows])
