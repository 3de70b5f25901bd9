"""One or two texts in a model, however the model is made and its tokenizer called.

model, tokenizer, texts -> tokens -> trace, and where the second text begins
"""

from dataclasses import dataclass, replace
from typing import Any

from minibert.attached.attach import Attached
from minibert.errors import AttentionError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.viz.labels import readable
from minibert.viz.output_trace import gives_vectors, output_trace

__all__ = ["OneText", "read_text"]

_TYPES = ("bert", "gpt2", "roberta", "xlnet")


@dataclass(frozen=True)
class OneText:
    """The texts in the model."""

    trace: Any
    """What `trace[layer].probs`, `.query` and `.key` are read from; a batch of one."""
    texts: tuple[str, ...]
    second: int | None
    """The position of the second text's first token."""


def read_text(
    model: Any, model_type: Any, tokenizer: Any, sentence_a: Any, sentence_b: Any
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
    model: Attached, model_type: Any, tokenizer: Any, texts: tuple[str, ...]
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


def _check_type(given: Any, names: tuple[str, ...]) -> None:
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


def _in_own_model(model: Any, model_type: Any, tokenizer: Any, texts: tuple[str, ...]) -> OneText:
    if model_type not in _TYPES:
        expected = ", ".join(f'"{known}"' for known in _TYPES)
        raise AttentionError(f"model_type={model_type!r}, expected one of {expected}")
    tokens, second = _pieced(tokenizer, model_type, texts)
    pair = second is not None and model_type == "bert"
    trace = output_trace(model, tokens, pair=pair, causal=model_type == "gpt2")
    return OneText(trace, texts, second)


def _called(tokenizer: Any, texts: tuple[str, ...]) -> Tokens:
    """Of a tokenizer of transformers, which adds what begins and ends texts itself."""
    encoded = tokenizer(*texts)
    segments = encoded.get("token_type_ids")
    words = {tokenizer.mask_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    return Tokens.from_ids(
        [encoded["input_ids"]],
        segments=None if segments is None else [segments],
        tokenizer=_Vocabulary(tokenizer, frozenset(tokenizer.all_special_ids) - words),
    )


def _pieced(tokenizer: Any, model_type: str, texts: tuple[str, ...]) -> tuple[Tokens, int | None]:
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

    def __init__(self, tokenizer: Any, structural_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.structural_ids = structural_ids

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def string(self, token_id: int) -> str:
        """The string as a person reads it."""
        return readable(self.raw(token_id))
