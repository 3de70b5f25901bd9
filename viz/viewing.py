"""Pages from traces and from plain attention tensors: `view` and `attention_page`.

traces or tensors -> inputs (checked) -> examples -> page
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from minibert.errors import AttentionError
from minibert.viz.example import Example, weights_example
from minibert.viz.inputs import (
    attention_layers,
    checked_index,
    checked_numbers,
    checked_second_start,
    checked_tokens,
)
from minibert.viz.labels import TokensLike, labels_from_strings
from minibert.viz.lens import lens_of
from minibert.viz.page import Page, checked_view
from minibert.viz.page_size import CODED, Sources, fitting_sources, with_value
from minibert.viz.patterns import patterns_header
from minibert.viz.relevance import relevance_header, relevance_of_each
from minibert.viz.trace_example import Sentence, trace_example
from minibert.viz.vectors import Holding

__all__ = ["TraceLike", "attention_page", "view"]

_OVERVIEW = "This page holds thumbnails only: the largest weight of each block of tokens."


@runtime_checkable
class _Sizes(Protocol):
    @property
    def n_layers(self) -> int: ...

    @property
    def n_heads(self) -> int: ...


@runtime_checkable
class TraceLike(Protocol):
    """What a page reads of a trace; `trace[layer].probs` is (batch, head, query, key)."""

    @property
    def model_name(self) -> str:
        """What the model was loaded as."""

    @property
    def tokens(self) -> TokensLike:
        """The sentences."""

    @property
    def config(self) -> _Sizes:
        """How many layers and heads the model has."""

    def __len__(self) -> int:
        """Layers that can be read."""

    def __getitem__(self, layer: int) -> Any: ...


if TYPE_CHECKING:
    Traces = TraceLike | Sequence[TraceLike] | Mapping[str, TraceLike]
    Numbers = Iterable[int] | None
    Exact = bool | tuple[int, int] | Iterable[tuple[int, int]] | None
    Strings = Sequence[str]
else:
    # Checked here and in inputs.py, with an error that says what to do; a run-time type checker
    # must not get in before it.
    Traces = Numbers = Exact = Strings = object


def view(
    traces: Traces,
    *,
    view: str = "head",
    sentences: Numbers = None,
    layers: Numbers = None,
    heads: Numbers = None,
    vectors: bool = True,
    exact: Exact = None,
    lens: bool | None = None,
    relevance: Any = None,
    patterns: Any = None,
    overview_only: bool = False,
    title: str | None = None,
) -> Page:
    """The page of a trace, or of several: all pictures, linked with one another.

    traces         a trace, a list of them, or named ones: {"before": trace, "after": edited}
    view           the picture that it opens with, of page.VIEWS
    sentences      those of a batch, by number; all by default. Each is an example of the page
    layers, heads  what the page holds, all by default; numbers count from 0
    vectors        hold query and key: the neuron and arithmetic views need them. In half
                   precision, and value too, while the page stays below 0.5 MB or 31 kB a token;
                   else in a byte a number, at most half a hundredth of its vector's largest off
    exact          heads whose query, key and value are held in single precision: a pair
                   (layer, head), a list of pairs, or True for all
    lens           hold what each layer would predict; by default where the model has a
                   vocabulary head and it does not take long
    relevance      what the text view shades tokens by at first: the result of `relevance`,
                   `relevance_of` or `integrated_embeddings` of minibert.analysis, or an array
                   (token) or (query, key). Of several traces, in the same form as these
    patterns       names of heads that the model view marks: what `patterns` of
                   minibert.survey.patterns gives, or lists of (layer, head) by name
    overview_only  hold only thumbnails of at most 64 x 64 cells a head: a small file of a long
                   text, for the model view
    title          the heading; what the page is about by default

    Weights in the map, neuron and arithmetic views are within 1.2e-3 of the trace where the page
    holds query and key in half precision; those in the head and model views, and all where it does
    not, are within 4e-3. Above 256 tokens (512 in a causal model), and where query and key take a
    byte a number, only these are held, unless they do not give the weights, as after an edit of
    scores. The same traces give the same bytes.

    Raises AttentionError naming the argument when one does not fit.
    """
    checked_view(view)
    if overview_only and exact is not None:
        raise AttentionError("exact needs vectors, which overview_only=True leaves out")
    sources: Sources = []
    relevances = []
    named = _named(traces)
    for (name, trace), given in zip(
        named, relevance_of_each(relevance, traces, len(named)), strict=True
    ):
        holding = _holding(trace, layers, heads, exact, vectors=vectors, overview=overview_only)
        numbers = _sentences(sentences, len(trace.tokens.raw))
        held = [Sentence(trace, number) for number in numbers]
        sources.extend((name, one, holding) for one in held)
        relevances += [relevance_header(given, one, alone=len(held) == 1) for one in held]
    if lens is None and overview_only:
        lens = False
    sources = fitting_sources(sources)
    examples = [
        _example(*source, lens, relevance, patterns)
        for source, relevance in zip(sources, relevances, strict=True)
    ]
    examples = with_value(examples, sources)
    start = (("shade", "relevance"),) if any(relevances) else ()
    view = _opening(view, examples, overview_only)
    return Page(tuple(examples), view=view, title=title, start=start)


def _named(traces: Any) -> list[tuple[str, TraceLike]]:
    """The traces of any form of the argument, each with its name."""
    if isinstance(traces, Mapping):
        named = [(str(name), trace) for name, trace in traces.items()]
    elif isinstance(traces, list | tuple):
        named = [("", trace) for trace in traces]
    else:
        named = [("", traces)]
    if not named:
        raise AttentionError("traces is empty; a page needs at least one")
    for _, trace in named:
        if not isinstance(trace, TraceLike):
            raise AttentionError(
                f"traces holds {type(trace).__name__}, expected what model.trace(text) returns;"
                " for attention tensors there is attention_page(attention, tokens)"
            )
    return named


def _sentences(chosen: Any, n: int) -> list[int]:
    if chosen is None:
        return list(range(n))
    try:
        numbers = [operator.index(number) for number in chosen]
    except TypeError as error:
        raise AttentionError(f"sentences={chosen!r}, expected a list of whole numbers") from error
    if not numbers:
        raise AttentionError("sentences is empty; leave it out to show all")
    return [checked_index(number, n, "sentences", "the trace") for number in numbers]


def _holding(
    trace: Any, layers: Any, heads: Any, exact: Any, *, vectors: bool, overview: bool
) -> Holding:
    shown_layers = checked_numbers(layers, len(trace), "layers")
    shown_heads = checked_numbers(heads, trace.config.n_heads, "heads")
    return Holding(
        layers=tuple(shown_layers),
        heads=tuple(shown_heads),
        vectors=bool(vectors) and not overview,
        exact=_exact_heads(exact, shown_layers, shown_heads),
        overview=overview,
    )


def _exact_heads(exact: Any, layers: list[int], heads: list[int]) -> frozenset[tuple[int, int]]:
    on_page = frozenset((layer, head) for layer in layers for head in heads)
    if exact is None or isinstance(exact, bool):
        return on_page if exact else frozenset()
    try:
        given = list(exact)
        pairs = given if given and not hasattr(given[0], "__index__") else [given]
        chosen = [(operator.index(layer), operator.index(head)) for layer, head in pairs]
    except (TypeError, ValueError) as error:
        raise AttentionError(
            f"exact={exact!r}, expected (layer, head), a list of such pairs, or True"
        ) from error
    for layer, head in chosen:
        if (layer, head) not in on_page:
            raise AttentionError(
                f"exact names layer {layer}, head {head}, which is not on the page: it has the"
                f" layers {layers} and the heads {heads}"
            )
    return frozenset(chosen)


def _example(
    name: str,
    sentence: Sentence,
    holding: Holding,
    lens: bool | None,
    relevance: dict[str, Any] | None,
    patterns: Any,
) -> Example:
    example = trace_example(sentence, name, holding)
    if holding.overview:
        example = example.with_blocks((), _OVERVIEW)
    found, note = lens_of(sentence.trace, sentence.index, len(sentence.labels), lens)
    example = example.with_blocks((), note)
    if holding.coded and holding.vectors:
        example = example.with_blocks((), CODED)
    sizes = sentence.trace.config
    named = patterns_header(patterns, sizes.n_layers, sizes.n_heads)
    about = {"lens": found, "relevance": relevance, "patterns": named}
    return replace(example, about={**example.about, **about})


def _opening(view: str, examples: list[Example], overview_only: bool) -> str:
    """The view that the page opens with, if it holds what that needs."""
    if overview_only:
        return "model"
    held = {block.entry["quantity"] for example in examples for block in example.blocks}
    if view in ("neuron", "arithmetic") and "query" not in held:
        raise AttentionError(f'view="{view}" needs query and key, which vectors=False leaves out')
    if view == "layers" and not any(example.about["lens"] for example in examples):
        raise AttentionError(
            'view="layers" needs what each layer would predict: a model with a vocabulary head,'
            " and lens=True where that takes long"
        )
    return view


def attention_page(
    attention: Any,
    tokens: Strings,
    *,
    sentence_b_start: int | None = None,
    sentence: int = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    model: str = "",
    title: str | None = None,
    view: str = "head",
) -> Page:
    """The page of attention weights from any model.

    attention         a list or tuple of (batch, head, query, key), one a layer, as
                      transformers returns it, or one (layer, head, query, key) array
    tokens            the tokenizer's strings, one a position
    sentence_b_start  the position of the second text's first token, where there are two
    sentence          which one of the batch
    layers, heads     what the page holds, all by default; numbers count from 0
    view              the picture that it opens with: "head", "model", "map" or "text"

    Weights on the page are within 4e-3 of those given. Raises AttentionError naming the
    argument: a wrong shape, NaN, rows that do not add up to one (to 1e-2, for half precision),
    tokens that do not match, or nothing at all.
    """
    checked = attention_layers(attention, sentence)
    n_heads, n_tokens, _ = checked[0].shape
    strings = checked_tokens(tokens, n_tokens)
    labels = labels_from_strings(strings, checked_second_start(sentence_b_start, n_tokens))
    example = weights_example(
        {layer: checked[layer] for layer in checked_numbers(layers, len(checked), "layers")},
        labels,
        n_layers=len(checked),
        heads=checked_numbers(heads, n_heads, "heads"),
        model=model,
    )
    return Page((example,), view=_opening(checked_view(view), [example], False), title=title)
