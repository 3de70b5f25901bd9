"""Attention from outside, checked before any page is made.

Every message names the argument, says what came, what was wanted and what to do.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from minibert.doors import PageSizes
from minibert.errors import AttentionError, check_index, is_whole, whole_number
from minibert.viz.payload import Array

if TYPE_CHECKING:
    from minibert.layers.config import Config
    from minibert.text.tokens import Tokens

    Sizes = Config | PageSizes
else:
    # Nothing here imports torch, without which the page of a saved trace is written.
    Sizes = Tokens = object

Outside = Any
"""What came from outside: nothing is known of it before it is asked."""


@runtime_checkable
class Paged(Protocol):
    """What a page is made of.

    A trace, a stack of an attached model with its padding left out, or a saved trace.
    """

    @property
    def model_name(self) -> str:
        """The name of the model."""

    @property
    def tokens(self) -> Tokens:
        """What was read."""

    @property
    def config(self) -> Sizes:
        """The sizes of the model."""

    def __len__(self) -> int:
        """Layers that can be read."""

    def __getitem__(self, layer: int) -> Outside:
        """One layer, with probs, query, key and value."""


# Half precision leaves a row of 512 weights up to 2e-3 from one; bfloat16, 8e-3.
ROW_SUM_TOLERANCE = 1e-2
_ASK_FOR_ATTENTION = (
    'In transformers load with attn_implementation="eager" and call it with output_attentions=True'
)


def to_array(value: Outside, name: str) -> Array:
    """`value`, a tensor or an array of numbers, as a float NumPy array on the host."""
    if hasattr(value, "detach"):
        # A tensor; NumPy has no bfloat16.
        value = value.detach().cpu().float().numpy()
    try:
        return np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise AttentionError(f"{name} is not a table of numbers: {error}") from error


def of_heads(numbers: Array, heads: Sequence[int]) -> Array:
    """The chosen heads, counted along the first axis; not copied where they are all."""
    return numbers if len(heads) == len(numbers) else numbers[list(heads)]


def attention_layers(
    attention: Outside,
    sentence: int,
    name: str = "attention",
    *,
    square: bool = True,
    normalised: bool = True,
) -> list[Array]:
    """One (head, query, key) array a layer from either form of `attention`.

    Takes a list or tuple of (batch, head, query, key), one a layer, of which `sentence` is
    picked, or one (layer, head, query, key) tensor or array. `name` is the argument's, for errors.
    Rows add up to one, unless `normalised` is False.
    """
    if isinstance(attention, list | tuple):
        layers = [_one_sentence(item, f"{name}[{i}]", sentence) for i, item in enumerate(attention)]
    else:
        table = to_array(attention, name)
        _expect(table, name, "(layer, head, query, key)")
        layers = list(table)
    if not layers:
        raise AttentionError(
            f"{name} is empty; a page needs at least one layer. Since transformers 5 the last part"
            " of some models' output is an empty cross_attentions: give outputs.attentions"
        )
    for i, layer in enumerate(layers):
        if layer.shape != layers[0].shape:
            raise AttentionError(
                f"{name}[{i}] has (head, query, key) {layer.shape}, {name}[0] has"
                f" {layers[0].shape}; all layers of a page must be alike"
            )
        checked_layer(layer, f"{name}[{i}]", row_sums=normalised, square=square)
    return layers


def _one_sentence(item: Outside, name: str, sentence: int) -> Array:
    if item is None:
        raise AttentionError(f"{name} is None: the model gave no attention. {_ASK_FOR_ATTENTION}")
    table = to_array(item, name)
    _expect(table, name, "(batch, head, query, key)")
    return table[check_index("sentence", sentence, len(table), AttentionError, f"{name}: ")]


def _expect(table: Array, name: str, axes: str) -> None:
    if table.ndim != 4:
        hint = ""
        if axes.startswith("(layer") and table.ndim == 5:
            hint = f"; pick one sentence: {name}[:, i]"
        elif table.ndim < 4:
            hint = ". Is this another part of the model's output? " + _ASK_FOR_ATTENTION
        raise AttentionError(f"{name} has shape {table.shape}, expected {axes}{hint}")


def checked_layer(probs: Array, name: str, *, row_sums: bool, square: bool = True) -> Array:
    """`probs` of one layer, (head, query, key), if they can be attention weights.

    Raises AttentionError when an axis is empty, queries and keys differ in number (with
    `square`), a value is NaN, infinite, below 0 or above 1, or, with `row_sums`, a row does
    not add up to one.
    """
    if probs.ndim != 3 or 0 in probs.shape:
        raise AttentionError(f"{name} has shape {probs.shape}, expected (head, query, key), none 0")
    if square and probs.shape[1] != probs.shape[2]:
        raise AttentionError(
            f"{name} has {probs.shape[1]} queries and {probs.shape[2]} keys; this page shows"
            " the attention of a text to itself, where both are the tokens"
        )
    # NaN is neither: two passes over the numbers, where a search takes many.
    if not (probs.min() >= -ROW_SUM_TOLERANCE and probs.max() <= 1 + ROW_SUM_TOLERANCE):
        _refuse(probs, name)
    if row_sums:
        _check_row_sums(probs, name)
    return probs


def _refuse(probs: Array, name: str) -> None:
    """Raise AttentionError for the first value that is not a weight."""
    finite = np.isfinite(probs)
    if not finite.all():
        head, query, key = np.argwhere(~finite)[0]
        raise AttentionError(
            f"{name} is {probs[head, query, key]} at head {head}, query {query}, key {key};"
            " attention weights must be finite numbers. Where these are rows of padding, cut it"
            " away from weights and tokens"
        )
    outside = (probs < -ROW_SUM_TOLERANCE) | (probs > 1 + ROW_SUM_TOLERANCE)
    head, query, key = np.argwhere(outside)[0]
    raise AttentionError(
        f"{name} is {probs[head, query, key]:.4g} at head {head}, query {query}, key {key};"
        " attention weights lie between 0 and 1. Are these scores, before the softmax, or weights"
        " with dropout, from a model without model.eval()?"
    )


def _check_row_sums(probs: Array, name: str) -> None:
    sums = probs.sum(axis=-1)
    wrong = np.abs(sums - 1) > ROW_SUM_TOLERANCE
    if wrong.any():
        head, query = np.argwhere(wrong)[0]
        raise AttentionError(
            f"{name} adds up to {sums[head, query]:.4g} at head {head}, query {query}; each row"
            " of attention must add up to 1. Leave out padding, or check the order of the axes"
        )


def checked_tokens(
    tokens: Outside, n_tokens: int, name: str = "tokens", holder: str = "attention"
) -> list[str]:
    """`tokens` as a list of strings, one for each of the `n_tokens` positions of `holder`."""
    if isinstance(tokens, str) or not isinstance(tokens, Sequence | np.ndarray):
        raise AttentionError(f"{name} must be a list of strings, one a token, not {type(tokens)}")
    # NumPy's own string type is one too; a page should not depend on which came.
    strings = [str(token) if isinstance(token, str) else token for token in tokens]
    for i, token in enumerate(strings):
        if not isinstance(token, str):
            raise AttentionError(f"{name}[{i}] is {token!r}, expected a string")
    if len(strings) != n_tokens:
        raise AttentionError(
            f"{name} has {len(strings)} strings, {holder} has {n_tokens} positions; they must"
            " match one to one, special tokens included"
        )
    return strings


def checked_numbers(chosen: Outside, n: int, name: str) -> list[int]:
    """Layers, heads or sentences in rising order: all `n` for None; one number is a list of one.

    Negative numbers count from the end.
    """
    if chosen is None:
        return list(range(n))
    several = isinstance(chosen, Iterable) and not is_whole(chosen)
    what = name.removeprefix("include_").removesuffix("s")
    numbers = {
        check_index(what, one, n, AttentionError, f"{name}: ")
        for one in (chosen if several else (chosen,))
    }
    if not numbers:
        raise AttentionError(f"{name} is empty; leave it out to show all {n}")
    return sorted(numbers)


def numbers_on_page(chosen: Outside, n: int, held: list[int], name: str) -> list[int]:
    """The numbers of layers or heads to open with, if the page holds them."""
    numbers = checked_numbers(chosen, n, name)
    for number in numbers:
        if number not in held:
            raise AttentionError(f"{name}={number} is not on the page, which holds {held}")
    return numbers


def checked_second_start(start: Outside, n_tokens: int) -> int | None:
    """The position of the second text's first token; None where there is one text."""
    if start is None:
        return None
    last = n_tokens - 1
    return whole_number("sentence_b_start", start, AttentionError, least=1, most=last)
