"""Pages from traces and from plain attention tensors: `view` and `attention_page`.

traces or tensors -> inputs (checked) -> examples, with what each layer would predict, and names of
heads -> page, with less of the vectors where it would be large
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from minibert.errors import (
    AttentionError,
    MinibertError,
    is_whole,
    whole_number,
    within_memory,
)
from minibert.untrusted import Json
from minibert.viz.example import (
    Example,
    Sentence,
    labels_from_strings,
    trace_example,
    weights_example,
)
from minibert.viz.inputs import (
    Outside,
    Paged,
    attention_layers,
    checked_numbers,
    checked_second_start,
    checked_tokens,
)
from minibert.viz.page import Page, checked_view
from minibert.viz.vectors import Holding, packed_values, value_size, vectors_size

_TOP = 5
# Multiplications that a page may cost beside the model's own: under a second on two cores.
_CHEAP = 2 * 10**10
# What is shown has two digits; more would only make the file longer.
_DECIMALS = 5

_NONE = "There is no picture of what each layer would predict: this model has no head over words."
_LONG = (
    "What each layer would predict is left out, since it would take longer than the model itself;"
    " view(..., lens=True) puts it in."
)


def lens_of(
    trace: Paged, sentence: int, length: int, wanted: bool | None
) -> tuple[Json | None, str]:
    """The header's `lens` of a sentence of a trace, or None and a note that says why not.

    For `wanted` None it is there where the model has a vocabulary head and reading it is cheap.
    Raises AttentionError where it is wanted and the model has none.
    """
    if wanted is False:
        return None, ""
    from minibert.trace.read import Trace

    if not isinstance(trace, Trace):
        if wanted is None:
            return None, ""
        raise AttentionError(f"lens=True: {type(trace).__name__} has no model to read layers with")
    if not has_lens(trace):
        if wanted:
            raise AttentionError("lens=True: this model has no output head over words")
        return None, _NONE
    config = trace.config
    cost = (len(trace) + 1) * length * config.d_model * config.vocab_size
    if wanted is None and cost > _CHEAP:
        return None, _LONG
    return computed_lens(trace, sentence, length), ""


def has_lens(trace: "Trace") -> bool:
    """True where the trace's model has a vocabulary head, which reads what each layer leaves."""
    from minibert.analysis.arguments import vocabulary_head

    with suppress(MinibertError):
        return vocabulary_head(trace.model) is not None
    return False


def computed_lens(trace: "Trace", sentence: int, length: int) -> Json:
    """`lens` of data.js: points, and the 5 most probable tokens at each, by position.

    Raises TraceError for a model without a vocabulary head.
    """
    import torch

    from minibert.analysis.lens import logit_lens
    from minibert.analysis.rows import rows_of

    one = rows_of(trace, torch.tensor([sentence]), torch.arange(length)[None])
    lens = logit_lens(one, points=("embed", "resid_post"), top=_TOP)
    probs = [
        [[round(p, _DECIMALS) for p in ranks] for ranks in row[0]] for row in lens.probs.tolist()
    ]
    ids = lens.ids.tolist()
    strings = [[[lens.words[i] for i in ranks] for ranks in row[0]] for row in ids]
    return {"points": list(lens.rows), "probs": probs, "strings": strings}


# A page is as large as this, or as so many bytes a token, before it holds less of the vectors.
_SMALL_PAGE, _BYTES_A_TOKEN = 500_000, 31_250
# Script, style and tokens, about.
_SHELL = 100_000

_NO_VALUE = (
    "The value vectors are left out, since the page would be above {room}; exact=(layer, head)"
    " puts in those of a head."
)
CODED = (
    "Query and key are rounded to hundredths of each vector's largest number, to keep the page"
    " small; exact=(layer, head) puts in those of a head as the model had them."
)

Sources = list[tuple[str, Sentence, Holding]]


def fitting_sources(sources: Sources) -> Sources:
    """The sources, with vectors in a byte a number where the page would be large in halves."""
    if _size_in_halves(sources) <= _room(sources):
        return sources
    return [(name, one, replace(holding, coded=True)) for name, one, holding in sources]


def _room(sources: Sources) -> int:
    """Bytes that a page of these sentences may take."""
    n_tokens = sum(len(sentence.labels) for _, sentence, _ in sources)
    return max(_SMALL_PAGE, n_tokens * _BYTES_A_TOKEN)


def _size_in_halves(sources: Sources) -> int:
    """Bytes of the page that holds query and key in half precision, about."""
    vectors = (
        vectors_size(holding, len(sentence.labels), sentence.trace.config)
        for _, sentence, holding in sources
        if holding.vectors
    )
    return sum(vectors, _SHELL)


def with_value(examples: list[Example], sources: Sources) -> list[Example]:
    """The examples, with value if the page stays small, else with a note."""
    if not any(holding.vectors for _, _, holding in sources):
        return examples
    room = _room(sources)
    size = _SHELL + sum(example.size for example in examples)
    size += sum(
        value_size(holding, len(sentence.labels), sentence.trace.config)
        for _, sentence, holding in sources
    )
    if size > room:
        note = _NO_VALUE.format(room=f"{room / 1e6:.1f} MB")
        return [example.with_blocks((), note) for example in examples]
    return [
        example.with_blocks(packed_values(sentence.vectors, holding, sentence.trace.config))
        for example, (_, sentence, holding) in zip(examples, sources, strict=True)
    ]


# The page of a saved trace is written without torch, so what needs it is imported when it is used.
if TYPE_CHECKING:
    from minibert.doors import View
    from minibert.features import Features
    from minibert.trace.read import Trace

    Traces = Paged | Sequence[Paged] | Mapping[str, Paged]
    Numbers = Iterable[int] | None
    Exact = bool | tuple[int, int] | Iterable[tuple[int, int]] | None
    Strings = Sequence[str]
    Dictionaries = Features | None
else:
    # Checked here and in inputs.py, with an error that says what to do; a run-time type checker
    # must not get in before it.
    Traces = Numbers = Exact = Strings = Dictionaries = object
    View = str


@within_memory
def view(
    traces: Traces,
    *,
    view: View = "head",
    sentences: Numbers = None,
    layers: Numbers = None,
    heads: Numbers = None,
    vectors: bool = True,
    exact: Exact = None,
    lens: bool | None = None,
    why: Exact = None,
    features: Dictionaries = None,
    title: str | None = None,
) -> Page:
    """The page of a trace, or of several: all pictures, linked with one another.

    traces         a trace, a list of them, or named ones: {"before": trace, "after": edited}
    view           the picture that it opens with, of page.VIEWS
    sentences      those of a batch, by number; all by default. Each is an example of the page
    layers, heads  what the page holds, all by default; negative numbers count from the end
    vectors        hold query and key: the neuron and arithmetic views need them. In half
                   precision, and value too, while the page stays below 0.5 MB or 31 kB a token;
                   else in a byte a number, at most half a hundredth of its vector's largest off
    exact          heads whose query, key and value are held in single precision: a pair
                   (layer, head), a list of pairs, or True for all
    lens           hold what each layer would predict; by default where the model has a
                   vocabulary head and it does not take long
    why            heads of whose weights the page can say why they are large, all above 1 %, down
                   to the words, chosen as in `exact` (True for all heads is slow, and the file much
                   larger, for many heads and tokens), or False for none; by default as many of the
                   largest weights, without what their heads had read, as fit into 4 % of the page
                   and a fixed amount of computing
    features       those of minibert.features.load, by which the page can split the same weights
    title          the heading; what the page is about by default

    Weights in the map, neuron and arithmetic views are within 1.2e-3 of the trace where the page
    holds query and key in half precision; those in the head and model views, and all where it does
    not, are within 4e-3. Above 256 tokens (512 in a causal model), and where query and key take a
    byte a number, only these are held, unless they do not give the weights, as after an edit of
    scores. The same traces give the same bytes.

    Raises AttentionError naming the argument when one does not fit.
    """
    checked_view(view)
    sources: Sources = []
    for name, trace in _named(traces):
        holding = _holding(trace, layers, heads, exact, vectors=vectors)
        numbers = checked_numbers(sentences, len(trace.tokens.raw), "sentences")
        sources.extend((name, Sentence(trace, number), holding) for number in numbers)
    sources = fitting_sources(sources)
    examples = with_value([_example(*one, lens) for one in sources], sources)
    examples = [
        _with_reasons(example, sentence, holding, why, features)
        for example, (_, sentence, holding) in zip(examples, sources, strict=True)
    ]
    return Page(tuple(examples), view=_opening(view, examples), title=title)


def _named(traces: Outside) -> list[tuple[str, Paged]]:
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
        if not isinstance(trace, Paged):
            raise AttentionError(
                f"traces holds {type(trace).__name__}, expected what model.trace(text) returns;"
                " for attention tensors there is attention_page(attention, tokens)"
            )
    return named


def _holding(
    trace: Outside, layers: Outside, heads: Outside, exact: Outside, *, vectors: bool
) -> Holding:
    shown_layers = checked_numbers(layers, len(trace), "layers")
    shown_heads = checked_numbers(heads, trace.config.n_heads, "heads")
    return Holding(
        layers=tuple(shown_layers),
        heads=tuple(shown_heads),
        vectors=bool(vectors),
        exact=_exact_heads(exact, shown_layers, shown_heads),
    )


def _exact_heads(
    exact: Outside, layers: Sequence[int], heads: Sequence[int], name: str = "exact"
) -> frozenset[tuple[int, int]]:
    on_page = frozenset((layer, head) for layer in layers for head in heads)
    if exact is None or isinstance(exact, bool):
        return on_page if exact else frozenset()
    whole = partial(whole_number, name, error=AttentionError, least=0)
    try:
        given = list(exact)
        pairs = given if given and not is_whole(given[0]) else [given]
        chosen = [(whole(layer), whole(head)) for layer, head in pairs]
    except (TypeError, ValueError) as error:
        raise AttentionError(f"{name}={exact!r}, expected pairs (layer, head), or True") from error
    for layer, head in chosen:
        if (layer, head) not in on_page:
            raise AttentionError(
                f"{name} names layer {layer}, head {head}, which is not on the page: it has the"
                f" layers {list(layers)} and the heads {list(heads)}"
            )
    return frozenset(chosen)


def _example(name: str, sentence: Sentence, holding: Holding, lens: bool | None) -> Example:
    example = trace_example(sentence, name, holding)
    found, note = lens_of(sentence.trace, sentence.index, len(sentence.labels), lens)
    example = example.with_blocks((), note)
    if holding.coded and holding.vectors:
        example = example.with_blocks((), CODED)
    return replace(example, about={**example.about, "lens": found})


def _with_reasons(
    example: Example, sentence: Sentence, holding: Holding, why: Outside, features: Outside
) -> Example:
    """The example with reasons of its weights, where it holds the vectors of a model's trace."""
    if why is False and features is None:
        return example
    from minibert.features import Features
    from minibert.trace.read import Trace
    from minibert.viz.reasons import page_reasons

    if features is not None and (why is False or not isinstance(features, Features)):
        raise AttentionError(
            f"features={features!r:.80}: expected what minibert.features.load gives"
            "; with why=False there is nothing that features could split."
        )
    if not isinstance(sentence.trace, Trace) or not holding.vectors:
        if why is None and features is None:
            return example
        raise AttentionError(
            f"why={why!r:.80} needs the trace of a model that minibert.load gives, and "
            "vectors=True: scores are split into what the model's own parts wrote."
        )
    heads = None
    if why is not None:
        heads = _exact_heads(why, holding.layers, holding.heads, "why")
    try:
        size = _SHELL + example.size
        found = page_reasons(sentence, holding, heads, size, _CHEAP // 10, features)
    except MinibertError:
        # A page of a trace whose model has no parts to read is shown without.
        if heads is not None or features is not None:
            raise
        found = None
    if found is None:
        return example
    return replace(example.with_blocks(found.blocks), about={**example.about, "why": found.header})


def _opening(view: str, examples: list[Example]) -> str:
    """The view that the page opens with, if it holds what that needs."""
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
    attention: Outside,
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
    layers, heads     what the page holds, all by default; negative numbers count from the end
    view              the picture that it opens with: "head", "model" or "map"

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
    return Page((example,), view=_opening(checked_view(view), [example]), title=title)
