"""Relevance as a page holds it: a number a token, for the text view to shade by.

What `analysis` returns, or an array of any other method -> checked -> the header's `relevance`
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert.analysis.integrated import IntegratedEmbeddings
from minibert.analysis.relevance import AttentionRelevance, PositionRelevance, Relevance
from minibert.errors import AttentionError
from minibert.viz.inputs import Array, to_array
from minibert.viz.trace_example import Sentence

__all__ = ["relevance_header", "relevance_of_each"]

# A table of more tokens would make the header longer than all weights.
_LONGEST = 512
# What is shown has three digits.
_DIGITS = 5
_FORMS = (
    "expected what relevance(trace), relevance_of(trace, position) or integrated_embeddings"
    " returns, an array (token) or an array (query, key)"
)


def relevance_of_each(given: Any, traces: Any, n: int) -> list[Any]:
    """What is given for each of the `n` traces, None where nothing is: in the form of `traces`."""
    if given is None:
        return [None] * n
    if isinstance(traces, Mapping):
        if not isinstance(given, Mapping):
            raise AttentionError(
                f"relevance is {type(given).__name__}, expected as for traces a name each:"
                f" {{{next(iter(traces))!r}: ...}}"
            )
        unknown = [name for name in given if name not in traces]
        if unknown:
            raise AttentionError(f"relevance names {unknown[0]!r}, traces has {list(traces)}")
        return [given.get(name) for name in traces]
    if not isinstance(traces, list | tuple):
        return [given]
    if not isinstance(given, list | tuple) or len(given) != n:
        came = f"{len(given)}" if isinstance(given, list | tuple) else type(given).__name__
        raise AttentionError(
            f"relevance is {came}, expected as for traces a list of {n}, None for those without"
        )
    return list(given)


def relevance_header(given: Any, sentence: Sentence, *, alone: bool) -> dict[str, Any] | None:
    """The header's `relevance` of a sentence; `alone`: its trace has no other on the page.

    Raises AttentionError for another text's, a wrong shape, or what is not finite.
    """
    if given is None:
        return None
    if isinstance(given, AttentionRelevance):
        raise AttentionError(
            "relevance is AttentionRelevance, a number for each weight; the page shades tokens:"
            " relevance(trace) and relevance_of(trace, position) give a number each"
        )
    name, of = "relevance", None
    if isinstance(given, Relevance | PositionRelevance | IntegratedEmbeddings):
        numbers, where = _of_sentence(given, sentence)
        of = given.positions[sentence.index] if isinstance(given, PositionRelevance) else None
        name = "integrated gradients" if isinstance(given, IntegratedEmbeddings) else name
    else:
        numbers, where = _of_array(given, alone), "relevance"
    numbers = _checked(numbers, where, len(sentence.labels))
    if numbers.ndim == 1:
        return {"name": name, "of": of, "rows": None, "values": _written(numbers)}
    usual = len(numbers) - 1 if sentence.trace.config.causal else 0
    return {"name": name, "of": usual, "rows": [_written(row) for row in numbers], "values": None}


def _of_sentence(
    given: Relevance | PositionRelevance | IntegratedEmbeddings, sentence: Sentence
) -> tuple[Array, str]:
    """The numbers of a result, its padding left out, and what they are in an error."""
    index, n = sentence.index, len(sentence.labels)
    strings = sentence.trace.tokens.strings
    if len(given.labels) != len(strings) or given.labels[index] != strings[index]:
        raise AttentionError(
            "relevance is of another text than the trace: make it from the same trace, after"
            " trace.backward(y)"
        )
    kind = type(given).__name__
    if isinstance(given, Relevance):
        return to_array(given.values[index, :n, :n], kind), f"relevance.values[{index}]"
    if isinstance(given, PositionRelevance):
        return to_array(given.values[0, index, :n], kind), f"relevance.values[0, {index}]"
    return to_array(given.tokens[index, :n], kind), f"relevance.tokens[{index}]"


def _of_array(given: Any, alone: bool) -> Array:
    if isinstance(given, str | bytes | Mapping):
        raise AttentionError(f"relevance is {type(given).__name__}, {_FORMS}")
    try:
        numbers = to_array(given, "relevance")
    except AttentionError as error:
        raise AttentionError(f"relevance is {type(given).__name__}, {_FORMS}") from error
    if not alone:
        raise AttentionError(
            "relevance is an array, of one text, and the trace has several on this page; choose"
            " one with sentences=[i]"
        )
    return numbers


def _checked(numbers: Array, where: str, n: int) -> Array:
    if numbers.shape not in ((n,), (n, n)):
        raise AttentionError(
            f"{where} has shape {numbers.shape}, the text has {n} tokens: expected ({n},), or"
            f" ({n}, {n}) as (query, key)"
        )
    if not np.isfinite(numbers).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
        raise AttentionError(f"{where} is {numbers[place]} at {place}; expected finite numbers")
    if numbers.ndim == 2 and n > _LONGEST:
        raise AttentionError(
            f"{where} is (query, key) of {n} tokens, more than {_LONGEST}; give the row of one"
            " query, as relevance_of(trace, position) does"
        )
    return numbers


def _written(numbers: Sequence[float] | Array) -> list[float]:
    return [float(f"{number:.{_DIGITS}g}") for number in numbers]
