"""`show` and `get_attention` with the parameters of bertviz.neuron_view.

BertViz needs its own copies of three models for them. Here it is any model that minibert reads, or
one of those copies, whose own numbers are shown.
"""

from dataclasses import replace
from typing import Any

from minibert.errors import AttentionError
from minibert.viz.drop_in import shown
from minibert.viz.example import Example
from minibert.viz.one_text import OneText, read_text
from minibert.viz.output_trace import OutputTrace
from minibert.viz.page import Page
from minibert.viz.trace_example import Sentence, trace_example
from minibert.viz.vectors import Holding
from minibert.viz.viewing import view

__all__ = ["get_attention", "show"]

_NO_VALUE = "The value vectors are not here: the output of this model does not have them."


def show(
    model: Any,
    model_type: str | None = None,
    tokenizer: Any = None,
    sentence_a: str | None = None,
    sentence_b: str | None = None,
    display_mode: str = "dark",
    layer: Any = None,
    head: Any = None,
    html_action: str = "view",
) -> Page:
    """The page of a text in a model, opened with the neurons of query and key.

    model         a model of minibert, what `minibert.attach` gives, one of transformers with its
                  `tokenizer`, or one of bertviz.transformers_neuron_view with its `tokenizer` and
                  `model_type`
    model_type    the model's, or None; what contradicts the model is refused
    sentence_a, sentence_b   the text, and a second one for a pair
    display_mode  "dark" or "light"
    layer, head   what is chosen when the page opens; negative numbers count from the end
    html_action   as in `minibert.viz.head_view`

    The model's mode and weights stay as they are; there is no dropout. Raises AttentionError
    naming the argument.
    """
    text = read_text(model, model_type, tokenizer, sentence_a, sentence_b)
    if isinstance(text.trace, OutputTrace):
        example = _own_example(text.trace)
    else:
        [example] = view(text.trace, view="neuron").examples
    heads = None if head is None else [head]
    examples = [_with_texts(example, text)]
    return shown(examples, "neuron", html_action, layer=layer, heads=heads, theme=display_mode)


def _own_example(trace: OutputTrace) -> Example:
    sizes = trace.config
    layers, heads = tuple(range(sizes.n_layers)), tuple(range(sizes.n_heads))
    holding = Holding(layers, heads, vectors=True, exact=frozenset(), overview=False)
    example = trace_example(Sentence(trace, 0), "", holding)
    if example.about["edited"]:
        raise AttentionError(
            f"the query and key of {trace.model_name}'s output do not give its weights by the"
            " softmax of query·key / sqrt(d_head). Is this its model_type? Where it is, head_view"
            " and model_view show the weights"
        )
    return example.with_blocks((), _NO_VALUE)


def _with_texts(example: Example, text: OneText) -> Example:
    """The example with the texts that were given, and where the second one begins."""
    about = {**example.about, "texts": list(text.texts)}
    if text.second is not None:
        n_tokens = len(about["tokens"]["text"])
        segment = [int(i >= text.second) for i in range(n_tokens)]
        about["tokens"] = {**about["tokens"], "segment": segment}
    return replace(example, about=about)


def get_attention(
    model: Any,
    model_type: str | None,
    tokenizer: Any,
    sentence_a: str,
    sentence_b: str | None = None,
    include_queries_and_keys: bool = False,
) -> dict[str, dict[str, list[Any]]]:
    """The weights of a text in a model as nested lists, in the form that BertViz gives them.

    "all", and for a pair also "aa", "ab", "ba" and "bb" (from the first letter's text to the
    second's), are each

        left_text, right_text   strings of the tokens that look and that are looked at
        attn                    a layer each, (head, query, key)
        queries, keys           a layer each, (head, position, d_head); only if asked for

    The arguments are those of `show`. Raises AttentionError naming the argument.
    """
    text = read_text(model, model_type, tokenizer, sentence_a, sentence_b)
    names = _names(text)
    cut = len(names) if text.second is None else text.second
    parts = {"all": slice(None), "a": slice(0, cut), "b": slice(cut, None)}
    wanted = {"all": ("all", "all")}
    if text.second is not None:
        wanted |= {one + other: (one, other) for one in "ab" for other in "ab"}
    found: dict[str, dict[str, list[Any]]] = {}
    for name, (left, right) in wanted.items():
        queries, keys = parts[left], parts[right]
        layers = [text.trace[i] for i in range(len(text.trace))]
        found[name] = {
            "attn": [layer.probs[0, :, queries, keys].tolist() for layer in layers],
            "left_text": names[queries],
            "right_text": names[keys],
        }
        if include_queries_and_keys:
            found[name]["queries"] = [layer.query[0, :, queries].tolist() for layer in layers]
            found[name]["keys"] = [_of_each_head(layer)[:, keys].tolist() for layer in layers]
    return found


def _of_each_head(layer: Any) -> Any:
    """The keys that each head reads, (head, position, d_head); heads may share them."""
    return layer.key[0].repeat_interleave(layer.query.shape[1] // layer.key.shape[1], 0)


def _names(text: OneText) -> list[str]:
    """The vocabulary's strings; spaces for their marks, and [CLS] and [SEP] in every vocabulary."""
    raw = list(text.trace.tokens.raw[0])
    special = text.trace.tokens.special[0]
    causal = bool(text.trace.config.causal)
    ends = {"<s>": "[CLS]", "<cls>": "[CLS]", "</s>": "[SEP]", "<sep>": "[SEP]"}
    return [
        ends.get(token, token)
        if is_special and not causal
        else token.replace("Ġ", " ").replace("▁", " ")
        for token, is_special in zip(raw, special, strict=True)
    ]
