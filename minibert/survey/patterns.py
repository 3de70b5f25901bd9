"""Heads named by what they do: ten patterns, with score, confidence interval and examples.

    found = patterns(model, texts)
    print(found)
    found.best("induction"), found.examples("induction", 5, 5), found.named()

What a pattern is, is in pattern_table.py; the result, in head_patterns.py. Here a model is run, or
somebody's attention is read.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from minibert.analysis.patterns import chosen_delimiters
from minibert.analysis.repeated import draws_of
from minibert.errors import AttentionError
from minibert.quantities import Float, Int
from minibert.survey.document_rows import DocumentRows, document_rows, surveyable
from minibert.survey.document_traces import generator_of
from minibert.survey.head_patterns import HeadPatterns
from minibert.survey.marks import Marks
from minibert.survey.pattern_sums import PatternSums, Targets
from minibert.survey.pattern_table import PATTERNS, Pattern
from minibert.survey.text_parts import Texts

if TYPE_CHECKING:
    from minibert.survey.options import Given, Surveyable

__all__ = ["patterns", "patterns_of_attention"]

# Numbers of attention that are read at once: 16 MiB in float32.
_NUMBERS = 2**22


def patterns(
    model: "Given",
    texts: Texts,
    *,
    repeated: Int[Tensor, "draws position"] | None = None,
    delimiters: Collection[int] | None = None,
    stack: str | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> HeadPatterns:
    """What every head of a model does: means over documents of what each document scores.

    `model` is one of minibert.load, or of minibert.attach with a tokenizer: then the live model
    runs as it is, and `stack` names one where there are several. `texts` are what `text_parts`
    takes, with `longest` tokens of a part: pairs are needed for the same word in the other
    sentence. Induction and duplicate are measured on `repeated`, random sequences that come twice,
    as `minibert.analysis.repeated_ids` gives them, where nothing but looking back helps; by default
    100 draws of 2 x 50 tokens.
    `delimiters` are ids, by default the tokenizer's sep_id or, without one, its eos_id. `seed`
    and the document's id draw how far the cells of the "moved" baselines are away.

    Raises TokenizationError for what the model cannot read, and SurveyError for an attached model
    or a stack that cannot be surveyed (`minibert.survey.survey` says which).
    """
    subject = surveyable(model, stack, longest)
    marks = chosen_delimiters(subject, delimiters)
    draws = draws_of(subject) if repeated is None else repeated
    size = (subject.config.n_layers, subject.config.n_heads)
    sums = PatternSums(_of("corpus"), *size)
    _measure(subject, document_rows(subject, texts, longest=longest), sums, marks, seed)
    looking_back = PatternSums(_of("repeated"), *size)
    _measure(subject, document_rows(subject, draws), looking_back, marks, seed)
    return HeadPatterns.of([sums, looking_back])


def patterns_of_attention(
    attention: Iterable[Float[Tensor, "layer head query key"]],
    tokens: Iterable[Sequence[str]],
    *,
    causal: bool,
    documents: Sequence[str] | None = None,
    seed: int = 0,
) -> HeadPatterns:
    """The same of attention that somebody else computed, one document at a time.

    `tokens` are the strings of the vocabulary, as "[CLS]", "straw", "##berries" or " brown". All
    patterns are measured on these texts, induction and duplicate included. Raises AttentionError
    where attention and tokens do not belong together.
    """
    sums: PatternSums | None = None
    for number, (probs, strings) in enumerate(zip(attention, tokens, strict=True)):
        n_layers, n_heads, queries, keys = probs.shape
        if queries != keys or keys != len(strings):
            raise AttentionError(
                f"attention of document {number} has shape {tuple(probs.shape)} and there are "
                f"{len(strings)} tokens; expected (layer, head, token, token)."
            )
        sums = PatternSums(PATTERNS.values(), n_layers, n_heads) if sums is None else sums
        if sums.total.shape[1:] != (n_layers, n_heads):
            raise AttentionError(
                f"attention of document {number} has {n_layers} layers of {n_heads} heads; the "
                f"documents before have {sums.total.shape[1]} of {sums.total.shape[2]}."
            )
        name = str(number) if documents is None else documents[number]
        marks = Marks.of_strings(strings, causal=causal)
        whole, shift = slice(0, len(marks)), _shift(seed, name)
        targets = Targets.of(sums.patterns, marks, whole, shift=shift, dtype=probs.dtype)
        sums.begin(targets, range(n_layers))
        for layer, of_layer in enumerate(probs):
            sums.add(layer, of_layer, targets, document=name)
        sums.close()
    if sums is None:
        raise AttentionError("There is no document; give the attention of one at least.")
    return HeadPatterns.of([sums])


def _shift(seed: int, document: str) -> int:
    """How many places the cells of a document are moved for a baseline: 1 to 4, either way."""
    return int(generator_of(seed, document).choice([-4, -3, -2, -1, 1, 2, 3, 4]))


def _of(texts: str) -> list[Pattern]:
    return [pattern for pattern in PATTERNS.values() if pattern.texts == texts]


def _measure(
    model: "Surveyable",
    documents: Iterable[DocumentRows],
    sums: PatternSums,
    delimiters: list[int],
    seed: int,
) -> None:
    """Add every document to the sums.

    Layers that see the same keys are measured together: a row counts in a layer where it sees a key
    that the pattern means.
    """
    for document in documents:
        shift = _shift(seed, document.id)
        for part in document.parts:
            marks = Marks.of_tokens(part.tokens, delimiters, causal=model.config.causal)
            size = max(1, _NUMBERS // (model.config.n_heads * len(marks)))
            seen = [(replace(marks, seen=keys), layers) for keys, layers in part.seen()]
            for start in range(0, len(marks), size):
                queries = slice(start, min(start + size, len(marks)))
                for own, layers in seen:
                    targets = Targets.of(
                        sums.patterns, own, queries, shift=shift, dtype=model.dtype
                    )
                    sums.begin(targets, layers)
                    for layer in layers:
                        sums.add(layer, part.probs(layer, queries), targets, document=document.id)
        sums.close()
