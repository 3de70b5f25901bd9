"""Patterns of attention that somebody else computed, and of tokens as a vocabulary writes them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from minibert.analysis.patterns import PATTERNS, Marks, numbered
from minibert.survey.patterns import HeadPatterns, PatternSums, Targets, shift_of

SPECIAL, DELIMITERS = ("[CLS]", "[SEP]", "<|endoftext|>"), ("[SEP]",)


def marks_of(strings: Sequence[str], *, causal: bool) -> Marks:
    """What is known of tokens as "[CLS]", "straw", "##berries" or " brown"."""
    special, delimiter = (
        torch.tensor([string in some for string in strings]) for some in (SPECIAL, DELIMITERS)
    )
    readable = tuple(string.removeprefix("##") for string in strings)
    none = (None,) * len(strings)
    return Marks(numbered(strings), tuple(strings), none, ~special, delimiter, readable, causal)


def patterns_of_attention(
    attention: Iterable[Tensor], tokens: Iterable[Sequence[str]], *, causal: bool
) -> HeadPatterns:
    """The result for probs of each document, (layer, head, query, key)."""
    sums = None
    for number, (probs, strings) in enumerate(zip(attention, tokens, strict=True)):
        sums = sums or PatternSums(PATTERNS.values(), *probs.shape[:2])
        marks, name = marks_of(strings, causal=causal), str(number)
        whole, shift = slice(0, len(marks)), shift_of(0, name)
        targets = Targets.of(sums.patterns, marks, whole, shift=shift, dtype=probs.dtype)
        sums.begin(targets, range(len(probs)))
        for layer, of_layer in enumerate(probs):
            sums.add(layer, of_layer, targets, document=name)
        sums.close()
    assert sums is not None
    return HeadPatterns.of([sums])
