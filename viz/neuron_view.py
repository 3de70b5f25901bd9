"""`show` with the parameters of bertviz.neuron_view, of any model instead of three copies."""

from dataclasses import replace
from typing import Any

from minibert.attached.attach import Attached, attach
from minibert.errors import AttentionError
from minibert.model import Model
from minibert.viz.drop_in import shown
from minibert.viz.inputs import Outside
from minibert.viz.page import Page
from minibert.viz.viewing import view


def show(
    model: Outside,
    model_type: str | None = None,
    tokenizer: Outside = None,
    sentence_a: str | None = None,
    sentence_b: str | None = None,
    display_mode: str = "dark",
    layer: object = None,
    head: object = None,
    html_action: str = "view",
) -> Page:
    """The page of a text in a model, opened with the neurons of query and key.

    model         a model of minibert, what `minibert.attach` gives, or one of transformers with
                  its `tokenizer`
    model_type    the model's, or None; what contradicts the model is refused
    sentence_a, sentence_b   the text, and a second one for a pair
    display_mode  "dark" or "light"
    layer, head   what is chosen when the page opens; negative numbers count from the end
    html_action   as in `minibert.viz.head_view`

    A model of transformers in training mode keeps its dropout: call model.eval(). Raises
    AttentionError naming the argument.
    """
    for name, text in (("sentence_a", sentence_a), ("sentence_b", sentence_b or "no second text")):
        if not isinstance(text, str) or not text:
            raise AttentionError(f"{name}={text!r}, expected a text")
    texts = tuple(filter(None, (sentence_a, sentence_b)))
    ours = isinstance(model, Model)
    if ours:
        read = model.tokenize
        known: tuple[str, ...] = (model.config.model_type, model.config.family)
        if tokenizer not in (None, model.tokenizer):
            raise AttentionError("tokenizer: a minibert model has its own; leave it out")
    else:
        given = tokenizer or getattr(model, "tokenizer", None)
        if not callable(given):
            raise AttentionError("tokenizer is not given; a model of transformers needs its own")
        model = model if isinstance(model, Attached) else attach(model, tokenizer=given)
        known = (getattr(getattr(model.model, "config", None), "model_type", ""),)
        read = given
    if model_type is not None and model_type not in known:
        raise AttentionError(
            f'model_type={model_type!r}, but the model is {known[0]}; expected "{known[0]}"'
        )
    trace = _trace(model, read, texts)
    if len(texts) > 1 and trace.config.causal:
        raise AttentionError(f"sentence_b is given and {known[0]} reads one text; use sentence_a")
    [example] = view(trace, view="neuron").examples
    about = {**example.about, "texts": list(texts)}
    if len(texts) > 1:
        alone = read(sentence_a)
        second = alone.lengths[0] if ours else len(alone["input_ids"])
        n_tokens = len(about["tokens"]["text"])
        about["tokens"] = {
            **about["tokens"], "segment": [int(i >= second) for i in range(n_tokens)]
        }  # fmt: skip
    heads = None if head is None else [head]
    examples = [replace(example, about=about)]
    return shown(examples, "neuron", html_action, layer=layer, heads=heads, theme=display_mode)


def _trace(model: Model | Attached, read: Any, texts: tuple[str, ...]) -> Any:
    """What `view` reads of the texts in the model."""
    if isinstance(model, Model):
        return model.trace(read(*texts))
    place = next(model.model.parameters()).device
    encoded = read(*texts, return_tensors="pt")
    return model.trace(**{name: one.to(place) for name, one in encoded.items()}).paged()
