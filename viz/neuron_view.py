"""`show` and `get_attention` with the parameters of bertviz.neuron_view.

BertViz needs its own copies of three models for them. Here it is any model that minibert reads, or
one of those copies, whose own numbers are shown: their output ends with a mapping a layer: "attn",
"queries" and "keys" (XLNet: "attn" alone), (batch, head, ...) each.

model, tokenizer, texts -> tokens -> trace, and where the second text begins -> page
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from minibert.attached.attach import Attached
from minibert.errors import AttentionError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.viz.drop_in import shown
from minibert.viz.example import Example, Sentence, readable, trace_example
from minibert.viz.inputs import Outside
from minibert.viz.page import Page
from minibert.viz.vectors import Holding
from minibert.viz.viewing import view


@dataclass(frozen=True)
class _Sizes:
    n_layers: int
    n_heads: int
    d_head: int
    causal: bool

    def attention_scale(self, layer: int) -> float:
        """The models of this kind all scale by their heads' width."""
        return float(self.d_head) ** -0.5


@dataclass(frozen=True)
class _Layer:
    given: Mapping[str, Tensor]
    where: str

    @property
    def probs(self) -> Tensor:
        """(1, head, query, key)."""
        return self._read("attn")

    @property
    def query(self) -> Tensor:
        """(1, head, position, d_head)."""
        return self._read("queries")

    @property
    def key(self) -> Tensor:
        """(1, head, position, d_head)."""
        return self._read("keys")

    def _read(self, name: str) -> Tensor:
        if name not in self.given:
            raise AttentionError(
                f"{self.where} has {', '.join(self.given)} and no {name!r}: this model does not"
                " give query and key. head_view and model_view show its weights"
            )
        return self.given[name]


@dataclass(frozen=True)
class OutputTrace:
    """The layers of one text, as `minibert.viz.example` reads those of a trace."""

    model_name: str
    tokens: Tokens
    config: _Sizes
    layers: tuple[_Layer, ...]

    def __len__(self) -> int:
        """Layers that can be read."""
        return len(self.layers)

    def __getitem__(self, layer: int) -> _Layer:
        """One layer."""
        return self.layers[layer]


def gives_vectors(model: Outside) -> bool:
    """True for a module that is none of today's transformers, which name their type."""
    config = getattr(model, "config", None)
    return isinstance(model, nn.Module) and not hasattr(config, "model_type")


def output_trace(model: nn.Module, tokens: Tokens, *, pair: bool, causal: bool) -> OutputTrace:
    """The model's own numbers for these tokens, without dropout; the model stays as it is.

    Raises AttentionError for a model that cannot read the tokens, or whose output does not end
    with a mapping a layer.
    """
    name = type(model).__name__
    parameter = next(model.parameters(), torch.empty(0))
    ids = tokens.ids.to(parameter.device)
    given = {"token_type_ids": tokens.segments.to(parameter.device)} if pair else {}
    with torch.no_grad(), _evaluating(model):
        try:
            output = model(ids, **given)
        except (IndexError, RuntimeError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise AttentionError(
                f"{name} could not read {ids.shape[1]} tokens ({reason}); expected a text that"
                " fits its positions and a tokenizer of its vocabulary"
            ) from error
    layers = output[-1] if isinstance(output, Sequence) and output else ()
    if not isinstance(layers, Sequence) or not layers or not all(map(_has_weights, layers)):
        raise AttentionError(
            f"the output of {name} does not end with a mapping of attn, queries and keys a layer;"
            " give a model of transformers, of minibert, or of bertviz.transformers_neuron_view"
        )
    read = tuple(_Layer(layer, f"layer {i} of {name}'s output") for i, layer in enumerate(layers))
    n_heads, d_head = read[0].probs.shape[1], read[0].given.get("queries", torch.empty(0)).shape[-1]
    sizes = _Sizes(len(read), n_heads, d_head, causal)
    return OutputTrace(name, tokens, sizes, read)


def _has_weights(layer: object) -> bool:
    return isinstance(layer, Mapping) and "attn" in layer


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout inside; every module's mode is as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


_TYPES = ("bert", "gpt2", "roberta", "xlnet")


@dataclass(frozen=True)
class OneText:
    """The texts in the model."""

    trace: Outside
    """What `trace[layer].probs`, `.query` and `.key` are read from; a batch of one."""
    texts: tuple[str, ...]
    second: int | None
    """The position of the second text's first token."""


def read_text(
    model: Outside, model_type: Outside, tokenizer: Outside, sentence_a: object, sentence_b: object
) -> OneText:
    """The trace of a text, or of a pair, in a model of minibert, transformers or BertViz.

    Raises AttentionError naming the argument that is missing or that another one contradicts.
    """
    if not isinstance(sentence_a, str) or not sentence_a:
        raise AttentionError(f"sentence_a={sentence_a!r}, expected a text")
    if sentence_b is not None and not isinstance(sentence_b, str):
        raise AttentionError(f"sentence_b={sentence_b!r}, expected a text or None")
    texts = (sentence_a, sentence_b) if sentence_b else (sentence_a,)
    if isinstance(model, Attached):
        return _in_attached(model, model_type, tokenizer, texts)
    if not isinstance(model, Model) and tokenizer is None:
        raise AttentionError("tokenizer is not given; a model of transformers needs its own")
    if gives_vectors(model) and not isinstance(model, Model):
        return _in_own_model(model, model_type, tokenizer, texts)
    ours = model if isinstance(model, Model) else Model.from_transformers(model)
    config = ours.config
    _check_type(model_type, (config.model_type, config.family))
    _check_texts(texts, config.model_type, causal=config.causal)
    if tokenizer is None or tokenizer is ours.tokenizer or isinstance(tokenizer, Tokenizer):
        read = ours.tokenize if tokenizer is None else tokenizer
        tokens, alone = read(*texts), read(sentence_a)
    elif callable(tokenizer):
        tokens, alone = _called(tokenizer, texts), _called(tokenizer, texts[:1])
    else:
        tokens, second = _pieced(tokenizer, model_type or config.family, texts)
        return OneText(ours.trace(tokens), texts, second)
    return OneText(ours.trace(tokens), texts, _second(tokens, alone, texts))


def _in_attached(
    model: Attached, model_type: Outside, tokenizer: Outside, texts: tuple[str, ...]
) -> OneText:
    tokenizer = model.tokenizer if tokenizer is None else tokenizer
    if not callable(tokenizer):
        raise AttentionError("tokenizer is not given; minibert.attach(model, tokenizer=...) has it")
    kind = getattr(getattr(model.model, "config", None), "model_type", "")
    _check_type(model_type, (kind,))
    place = next(model.model.parameters()).device
    encoded = tokenizer(*texts, return_tensors="pt")
    trace = model.trace(**{name: one.to(place) for name, one in encoded.items()}).paged()
    _check_texts(texts, kind, causal=trace.config.causal)
    tokens = _called(tokenizer, texts)
    second = _second(tokens, _called(tokenizer, texts[:1]), texts)
    return OneText(replace(trace, tokens=tokens), texts, second)


def _check_type(given: object, names: tuple[str, ...]) -> None:
    if given is not None and given not in names:
        raise AttentionError(
            f'model_type={given!r}, but the model is {names[0]}; leave it out or say "{names[0]}"'
        )


def _check_texts(texts: tuple[str, ...], kind: str, *, causal: bool) -> None:
    if len(texts) > 1 and causal:
        raise AttentionError(
            f"sentence_b is given, but {kind} reads one text; put both into sentence_a"
        )


def _second(tokens: Tokens, alone: Tokens, texts: tuple[str, ...]) -> int | None:
    """Where the second text begins; None without one."""
    if len(texts) == 1:
        return None
    second = len(alone.raw[0])
    if tokens.raw[0][:second] != alone.raw[0]:
        raise AttentionError(
            "the tokens of sentence_a and sentence_b do not begin with those of sentence_a, so"
            " that where sentence_b begins is not known; give both as one text"
        )
    return second


def _in_own_model(
    model: Outside, model_type: Outside, tokenizer: Outside, texts: tuple[str, ...]
) -> OneText:
    if model_type not in _TYPES:
        expected = ", ".join(f'"{known}"' for known in _TYPES)
        raise AttentionError(f"model_type={model_type!r}, expected one of {expected}")
    tokens, second = _pieced(tokenizer, model_type, texts)
    pair = second is not None and model_type == "bert"
    trace = output_trace(model, tokens, pair=pair, causal=model_type == "gpt2")
    return OneText(trace, texts, second)


def _called(tokenizer: Outside, texts: tuple[str, ...]) -> Tokens:
    """Of a tokenizer of transformers, which adds what begins and ends texts itself."""
    encoded = tokenizer(*texts)
    segments = encoded.get("token_type_ids")
    words = {tokenizer.mask_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    return Tokens.from_ids(
        [encoded["input_ids"]],
        segments=None if segments is None else [segments],
        tokenizer=_Vocabulary(tokenizer, frozenset(tokenizer.all_special_ids) - words),
    )


def _pieced(
    tokenizer: Outside, model_type: str, texts: tuple[str, ...]
) -> tuple[Tokens, int | None]:
    """Of a tokenizer that only cuts texts into pieces, and the position of the second text.

    What begins and ends texts is added as each type of model was trained with.
    """
    if len(texts) > 1 and model_type not in ("bert", "roberta"):
        raise AttentionError(f"sentence_b is given, but model_type {model_type!r} reads one text")
    first, *others = (list(tokenizer.tokenize(text)) for text in texts)
    ends: dict[str, str] = {}
    if model_type != "gpt2":
        for name in ("cls_token", "sep_token"):
            ends[name] = getattr(tokenizer, name, None) or ""
            if not ends[name]:
                raise AttentionError(f"tokenizer has no {name}, which a {model_type} model needs")
    begin, end = list(ends.values()) or ("", "")
    if model_type == "xlnet":
        first = [*first, end, begin]
    elif model_type != "gpt2":
        first = [begin, *first, end]
    join = [end] if model_type == "roberta" else []
    rest = [token for other in others for token in (*join, *other, end)]
    ids = tokenizer.convert_tokens_to_ids([*first, *rest])
    structural = tokenizer.convert_tokens_to_ids(list(ends.values())) if ends else []
    segments = [0] * len(first) + [int(model_type == "bert")] * len(rest)
    vocabulary = _Vocabulary(tokenizer, frozenset(structural))
    tokens = Tokens.from_ids([ids], segments=[segments], tokenizer=vocabulary)
    return tokens, len(first) if rest else None


class _Vocabulary:
    """A tokenizer from outside, as `Tokens.from_ids` asks for one."""

    def __init__(self, tokenizer: Outside, structural_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.structural_ids = structural_ids

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def string(self, token_id: int) -> str:
        """The string as a person reads it."""
        return readable(self.raw(token_id))


_NO_VALUE = "The value vectors are not here: the output of this model does not have them."


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
    model: Outside,
    model_type: str | None,
    tokenizer: Outside,
    sentence_a: str,
    sentence_b: str | None = None,
    include_queries_and_keys: bool = False,
) -> dict[str, dict[str, list[Outside]]]:
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
    found: dict[str, dict[str, list[Outside]]] = {}
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


def _of_each_head(layer: Outside) -> Outside:
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
