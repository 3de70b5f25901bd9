"""`show` with the parameters of bertviz.neuron_view: query, key and their product, of a model.

BertViz needs its own copies of three models for it; here it is any model that minibert reads.
"""

from typing import Any

from minibert.errors import AttentionError
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.viz.drop_in import shown
from minibert.viz.labels import readable
from minibert.viz.viewing import view

__all__ = ["show"]


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
) -> Any:
    """The page of a text in a model, opened with the neurons of query and key.

    model         a model of minibert, or one of transformers with its `tokenizer`
    model_type    not used: the model knows its type
    sentence_a, sentence_b   the text, and a second one for a pair
    display_mode  "dark" or "light"
    layer, head   what is chosen when the page opens

    Raises AttentionError naming the argument.
    """
    if not isinstance(sentence_a, str) or not sentence_a:
        raise AttentionError(f"sentence_a={sentence_a!r}, expected a text")
    if isinstance(model, Model):
        trace = model.trace(sentence_a, sentence_b)
    elif tokenizer is None:
        raise AttentionError("tokenizer is not given; a model of transformers needs its own")
    else:
        trace = Model.from_transformers(model).trace(_tokens(tokenizer, sentence_a, sentence_b))
    page = view(trace, view="neuron")
    heads = None if head is None else [head]
    return shown(page.examples, "neuron", html_action, layer=layer, heads=heads, theme=display_mode)


def _tokens(tokenizer: Any, sentence_a: str, sentence_b: str | None) -> Tokens:
    encoded = tokenizer(sentence_a, sentence_b)
    segments = encoded.get("token_type_ids")
    return Tokens.from_ids(
        [encoded["input_ids"]],
        segments=None if segments is None else [segments],
        tokenizer=_Vocabulary(tokenizer),
    )


class _Vocabulary:
    """A tokenizer of transformers as `Tokens.from_ids` asks for one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        words = {tokenizer.mask_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
        self.structural_ids = frozenset(tokenizer.all_special_ids) - words

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def string(self, token_id: int) -> str:
        """The string as a person reads it."""
        return readable(self.raw(token_id))
