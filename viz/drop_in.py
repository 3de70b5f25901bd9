"""`head_view` and `model_view` with BertViz's parameters, in their order, for our pages.

Code written for BertViz runs after a change of its import. What differs: nothing is fetched from
the network, and the page has all views, whichever it opens with; docs/bertviz.md has the rest. See
Vig 2019, "A multiscale visualization of attention in the Transformer model", for the two views.

As BertViz' functions do, they show their page at once where a cell of a notebook runs, so that a
call in the middle of a cell or in a loop is seen. The page is returned too, and as the last value
of the same cell it is not shown a second time.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minibert.errors import AttentionError
from minibert.viz.example import Example, Label, labels_from_strings, weights_example
from minibert.viz.inputs import (
    ROW_SUM_TOLERANCE,
    Outside,
    attention_layers,
    checked_numbers,
    checked_second_start,
    checked_tokens,
    numbers_on_page,
)
from minibert.viz.page import Page
from minibert.viz.payload import Array


@dataclass(frozen=True, repr=False)
class _ShownPage(Page):
    """A page that a cell has shown already."""

    cell: int = -1
    """The number of that cell."""

    def _ipython_display_(self) -> None:
        """Nothing in the cell that has shown it; in another one IPython continues as usual."""
        shell = _shell()
        if shell is None or shell.execution_count != self.cell:
            raise NotImplementedError


def shown_at_once(page: Page) -> Page:
    """The page, shown where IPython runs a cell; elsewhere only returned."""
    shell = _shell()
    if shell is None:
        return page
    from IPython.display import display

    display(page)
    return _ShownPage(page.examples, page.view, page.title, page.start, shell.execution_count)


def _shell() -> Outside:
    """IPython's shell where there is one; none where IPython was not imported."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def head_view(
    attention: Outside = None,
    tokens: Outside = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    layer: Outside = None,
    heads: Outside = None,
    encoder_attention: Outside = None,
    decoder_attention: Outside = None,
    cross_attention: Outside = None,
    encoder_tokens: Outside = None,
    decoder_tokens: Outside = None,
    include_layers: Outside = None,
    html_action: str = "view",
) -> Page:
    """The page of attention weights, opened with lines from each token to where it looks.

    attention         one tensor (1, head, query, key) a layer, in a list or stacked, or one
                      (layer, head, query, key), with `tokens`; or, of an encoder and a decoder,
                      any of the three below. Rows that do not add up to 1, as after dropout, are
                      drawn as they are, and the page says so
    sentence_b_start  the position of the second text's first token, where there are two
    prettify_tokens   show Ġ, ▁, ## and </w> as the spaces and joints they stand for
    layer, heads      what is chosen when the page opens; by default the first layer, all heads, or
                      the first head of more than 200 tokens. `heads` may be one number
    encoder_attention, decoder_attention   self-attention, with the tokens of their side
    cross_attention   (1, head, decoder token, encoder token) a layer, with both sides' tokens
    include_layers    layers that the page holds; all by default
    html_action       "view" shows the page at once where a cell of a notebook runs; "return" does
                      not. Either way it is returned, and outside of notebooks nothing is shown

    Negative numbers of layers and heads count from the end.

    Raises AttentionError naming the argument.
    """
    return _page("head", locals())


def model_view(
    attention: Outside = None,
    tokens: Outside = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    display_mode: str = "dark",
    encoder_attention: Outside = None,
    decoder_attention: Outside = None,
    cross_attention: Outside = None,
    encoder_tokens: Outside = None,
    decoder_tokens: Outside = None,
    include_layers: Outside = None,
    include_heads: Outside = None,
    html_action: str = "view",
) -> Page:
    """The page of attention weights, opened with a small picture of every head.

    display_mode   "dark" or "light"; a click on the page changes it
    include_heads  heads that the page holds; all by default

    The other parameters are those of `head_view`. Raises AttentionError naming the argument.
    """
    return _page("model", locals())


def _page(view: str, given: dict[str, Outside]) -> Page:
    """The page of what `head_view` or `model_view` was given, by the names of their parameters."""
    chosen = {"layer": given.get("layer"), "heads": given.get("heads")}
    examples = _examples(given)
    return shown(examples, view, given["html_action"], theme=given.get("display_mode"), **chosen)


def shown(
    examples: Sequence[Example],
    view: str,
    html_action: Outside,
    *,
    layer: Outside = None,
    heads: Outside = None,
    theme: Outside = None,
) -> Page:
    """The page of these examples that opens with this view, layer, heads and theme."""
    if html_action not in ("view", "return"):
        raise AttentionError(f'html_action={html_action!r}, expected "view" or "return"')
    start = []
    first = examples[0].about
    sizes = first["sizes"]
    if layer is not None:
        chosen = numbers_on_page(layer, sizes["n_layers"], first["layers"], "layer")
        start.append(("layer", str(chosen[0])))
    if heads is not None:
        chosen = numbers_on_page(heads, sizes["n_heads"], first["heads"], "heads")
        start.append(("heads", ".".join(map(str, chosen))))
    if theme is not None:
        if theme not in ("dark", "light"):
            raise AttentionError(f'display_mode={theme!r}, expected "dark" or "light"')
        start.append(("theme", theme))
    page = Page(tuple(examples), view=view, start=tuple(start))
    return shown_at_once(page) if html_action == "view" else page


def _examples(given: dict[str, Outside]) -> list[Example]:
    sides = [name for name in _SIDES if given[name] is not None]
    if not sides:
        raise AttentionError(
            "no attention is given; expected attention, or any of encoder_attention,"
            " decoder_attention and cross_attention"
        )
    if sides[0] == "attention":
        misplaced = [*sides[1:], *(n for n in ("encoder_tokens", "decoder_tokens") if given[n])]
        if misplaced:
            raise AttentionError(f"{misplaced[0]} is of encoder and decoder: leave out attention")
    for name in ("tokens", "sentence_b_start"):
        if sides[0] != "attention" and given[name] is not None:
            raise AttentionError(f"{name} belongs to attention, which is not given")
    return [_example(name, given) for name in sides]


# Axes of the layers of one sentence on top of one another: (layer, 1, head, query, key).
_STACKED = 5

# The name in the page, and the tokens of those that look and of those that are looked at.
_SIDES = {
    "attention": ("", "tokens", "tokens"),
    "encoder_attention": ("Encoder", "encoder_tokens", "encoder_tokens"),
    "decoder_attention": ("Decoder", "decoder_tokens", "decoder_tokens"),
    "cross_attention": ("Decoder → Encoder", "decoder_tokens", "encoder_tokens"),
}


def _example(argument: str, given: dict[str, Outside]) -> Example:
    name, looking, looked_at = _SIDES[argument]
    square, attention = looking == looked_at, given[argument]
    if getattr(attention, "ndim", 0) == _STACKED:
        attention = list(attention)
    if isinstance(attention, list | tuple):
        _check_one_sentence(attention, argument)
    checked = attention_layers(attention, 0, argument, square=square, normalised=False)
    note = _note(checked)
    n_heads, n_queries, n_keys = checked[0].shape
    start = checked_second_start(given["sentence_b_start"], n_queries)
    labels = _labels(given, looking, n_queries, f"{argument}'s query axis", start)
    key_labels = (
        None if square else _labels(given, looked_at, n_keys, f"{argument}'s key axis", None)
    )
    layers = checked_numbers(given["include_layers"], len(checked), "include_layers")
    example = weights_example(
        {layer: checked[layer] for layer in layers},
        labels,
        n_layers=len(checked),
        heads=checked_numbers(given.get("include_heads"), n_heads, "include_heads"),
        key_labels=key_labels,
        name=name,
    )
    about = {**example.about, "normalised": not note}
    return replace(example, about=about).with_blocks((), note)


def _note(layers: list[Array]) -> str:
    """What to say where rows have another sum than 1; "" where they do not."""
    sums = [layer.sum(axis=-1) for layer in layers]
    low, high = min(float(one.min()) for one in sums), max(float(one.max()) for one in sums)
    if max(1 - low, high - 1) <= ROW_SUM_TOLERANCE:
        return ""
    return (
        f"The weights of a token do not always add up to 1 here: the sums are from {low:.3g} to"
        f" {high:.3g}. They are drawn as they were given. Dropout does this (a model in training"
        " mode), and masks after the softmax. Statistics are of the weights as drawn."
    )


def _check_one_sentence(attention: Sequence[Outside], name: str) -> None:
    for i, layer in enumerate(attention):
        n_sentences = len(layer) if getattr(layer, "ndim", 0) == 4 else 1
        if n_sentences > 1:
            raise AttentionError(
                f"{name}[{i}] holds {n_sentences} sentences, expected one; cut the others away,"
                " as in [layer[:1] for layer in attention]"
            )


def _labels(
    given: dict[str, Outside], name: str, n: int, holder: str, start: int | None
) -> list[Label]:
    if given[name] is None:
        raise AttentionError(f"{name} is not given; {holder} has {n} positions to name")
    strings = checked_tokens(given[name], n, name, holder)
    return labels_from_strings(strings, start, given["prettify_tokens"])
