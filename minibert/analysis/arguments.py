"""What an analysis is given, checked before anything is computed: values, positions, tokens.

Position 0 is a sentence's first token and -1 its last real one. Padding is not a position.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from minibert.attached.attach import Attached
from minibert.attached.read import AttachedTrace, StackTrace
from minibert.errors import (
    EditError,
    MinibertError,
    TokenizationError,
    TraceError,
    check_flag,
    did_you_mean,
    is_whole,
)
from minibert.layers.bodies import VocabularyHead
from minibert.layers.config import Config
from minibert.quantities import Int
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.edit import Chosen, Places
from minibert.trace.identity import Sources
from minibert.trace.read import Trace
from minibert.trace.run import TracedModel

Item = TypeVar("Item")
Each = Chosen | Sequence[Chosen]
"""One position for all sentences, or a list with the position or positions of every sentence."""
Aligned = Mapping[str, Each]
"""Named places, each in every sentence."""


def check_trace(trace: object, name: str = "trace") -> None:
    """Raise TraceError for what is not a trace, and for a trace of packed sentences."""
    if isinstance(trace, AttachedTrace | StackTrace):
        raise TraceError(
            f"{name} is of an attached model, {trace.model_name}, and this reads the weights of a "
            "model that minibert loads. Traces of attached models are read by logit_lens, "
            "decompose, why_logit, ablate_heads, patch_heads, patch_positions and "
            "attention_knockout."
        )
    if not isinstance(trace, Trace):
        raise TraceError(f"{name} is a {type(trace).__name__}; expected what model.trace gives.")
    if trace.allowed.packed is not None:
        raise TraceError(
            f"{name} is a packed trace, whose sentences share one row; give the trace of one of "
            "its sentences, as trace.text(0)."
        )


def check_unedited(trace: Trace | AttachedTrace, *, attached: bool = False) -> None:
    """Raise TraceError for a trace that was made with edits, where they would be lost.

    For one of an attached model too, unless `attached`.
    """
    if not attached or not isinstance(trace, AttachedTrace):
        check_trace(trace)
    edited = trace.edited if isinstance(trace, AttachedTrace) else trace.edited_from is not None
    if edited:
        raise TraceError(
            "This trace was made with edits, but this function runs the text "
            "again without them. Give the trace of the text without edits."
        )


def check_model(model: object) -> None:
    """Raise TraceError for what is not a minibert model."""
    if isinstance(model, Attached):
        raise TraceError(
            f"{model.name} is attached, and this reads a model that minibert loads. For "
            "an attached model there are pages, survey and patterns. See docs/attach.md#a-corpus"
        )
    if not isinstance(getattr(model, "config", None), Config) or not hasattr(model, "body"):
        raise TraceError(f"model is a {type(model).__name__}; expected what minibert.load() gives.")


def check_callable(function: object, name: str, error: type[MinibertError]) -> None:
    """Raise the error for what cannot be called."""
    if not callable(function):
        raise error(f"{name} is a {type(function).__name__}; expected a function.")


def check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise TraceError for a value that is not one of the choices."""
    # Asked first: an array compares with each choice entry by entry.
    if not isinstance(value, str) or value not in choices:
        guess = did_you_mean(value, choices)
        expected = ", ".join(map(repr, choices))
        raise TraceError(f"{name}={value!r:.80}{guess}: expected one of {expected}.")


def listed(
    values: Iterable[Item], name: str, error: type[MinibertError], expected: str
) -> list[Item]:
    """The values as a list; the error for what is not a collection of values, text included."""
    if not isinstance(values, str | bytes):
        try:
            return list(values)
        except TypeError:
            # A tensor without axes has an iterator, which refuses.
            pass
    raise error(f"{name}={values!r:.80}: expected {expected}.")


def places_of(trace: Trace | AttachedTrace | StackTrace) -> Places:
    """Where the sentences of a trace are, of a loaded or of an attached model."""
    return Places.of(trace.allowed) if isinstance(trace, Trace) else trace.places


def real_tokens(trace: Trace | AttachedTrace) -> tuple[int, ...]:
    """The number of tokens of each sentence, padding left out."""
    return places_of(trace).lengths


def check_pair(
    trace: Trace | AttachedTrace,
    source: Trace | AttachedTrace,
    name: str = "source",
    *,
    other_model: bool = False,
    attached: bool = False,
) -> None:
    """Raise TraceError for what is not a trace, and EditError for texts of different lengths.

    EditError too for a source of another model, unless `other_model`, and TraceError for traces of
    attached models, unless `attached`.
    """
    for each, called in ((trace, "trace"), (source, name)):
        if not attached or not isinstance(each, AttachedTrace):
            check_trace(each, called)
    check_flag("other_model", other_model, EditError)
    if not other_model:
        Sources(trace.unchanged_model()).check(source.unchanged_model(), source.model_name, name)
    ours, theirs = real_tokens(trace), real_tokens(source)
    if ours != theirs:
        named = (", ".join(map(str, lengths)) for lengths in (ours, theirs))
        raise EditError(
            f"The two texts have {' and '.join(named)} tokens; patching takes a "
            "value from the same position, so they need the same length."
        )


def one_each(given: object, count: int, what: str, error: type[MinibertError]) -> list[Any]:
    """A value for each sentence, from one for all of them or a sequence of one for each.

    Raises the error where there are not as many as sentences.
    """
    if isinstance(given, Tensor | np.ndarray):
        given = given.tolist()
    several = isinstance(given, Sequence) and not isinstance(given, str)
    values = list(given) if several else [given] * count  # type: ignore[call-overload]
    if len(values) != count:
        raise error(
            f"There are {len(values)} {what} for {count} sentences; expected one for each, or a "
            "single one for all."
        )
    return values


def one_position_each(trace: Trace, position: int | Sequence[int]) -> tuple[int, ...]:
    """One position of each sentence, counted from its front.

    `position` is one for all sentences, found in each of them, or a sequence of one for each.
    Raises TraceError for a position that a sentence does not have.
    """
    places = places_of(trace)
    chosen = enumerate(one_each(position, len(places.lengths), "positions", TraceError))
    # Each in a list of its own: a slice or None is not a single position.
    return tuple(places.positions(sentence, [one])[0] for sentence, one in chosen)


def positions_each(
    trace: Trace | AttachedTrace, chosen: Each, name: str
) -> tuple[tuple[int, ...], ...]:
    """The positions of a place in each sentence, counted from its front.

    `chosen` is one position for all sentences, or a list with the positions of each. Raises
    EditError for another number of entries, for positions that are not there, and for a flat list
    beside several sentences, which could be the positions of all or one of each.
    """
    places = places_of(trace)
    B = len(places.lengths)
    chosen = chosen.tolist() if isinstance(chosen, Tensor | np.ndarray) else chosen
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        if len(chosen) != B:
            raise EditError(
                f"{name}: {len(chosen)} entries for {B} sentences; expected one position for all, "
                "or a list with the positions of each sentence."
            )
        entries = list(chosen)
        if B > 1 and all(isinstance(one, int) for one in entries):
            raise EditError(
                f"{name}: {entries!r:.80} could be one position of each sentence, or positions of "
                f"all. Write {[[one] for one in entries]!r:.80} for one of each, "
                f"{[entries] * B!r:.80} for all."
            )
    else:
        entries = [chosen] * B
    if None in entries:
        raise EditError(f"{name}: expected positions, found None.")
    where = f"{name}: "
    return tuple(
        tuple(places.positions(sentence, one, error=EditError, where=where))
        for sentence, one in enumerate(entries)
    )


def aligned_positions(
    trace: Trace | AttachedTrace, aligned: Aligned
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The positions of each named place in every sentence; EditError for anything else."""
    if not isinstance(aligned, Mapping) or not aligned:
        raise EditError('aligned: expected places by name: {"subject": [[2, 3], [2]], "end": -1}.')
    return {
        str(name): positions_each(trace, chosen, f"aligned[{name!r:.80}]")
        for name, chosen in aligned.items()
    }


def phrase_positions(trace: Trace, phrase: str | Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The positions of the tokens of a phrase in each sentence, where it stands first.

    `phrase` is one for all sentences, or a list with one for each; case does not count. Raises
    EditError for a sentence without its phrase, and for sentences given as ids, which have no text.
    """
    check_trace(trace)
    B = trace.allowed.batch
    expected = "a phrase, or a list with one for each sentence"
    phrases = (
        [phrase] * B if isinstance(phrase, str) else listed(phrase, "phrase", EditError, expected)
    )
    if len(phrases) != B:
        raise EditError(f"phrase: {len(phrases)} phrases for {B} sentences; expected one for each.")
    return tuple(_phrase(trace.tokens[n], one, n) for n, one in enumerate(phrases))


def _phrase(tokens: Tokens, phrase: str, sentence: int) -> tuple[int, ...]:
    wanted = phrase.strip().lower() if isinstance(phrase, str) else ""
    text, before = 0, 0
    for number, whole in enumerate(tokens.texts[0] if tokens.texts else ()):
        start = whole.lower().find(wanted) if wanted else -1
        if start < 0:
            continue
        found = []
        for position, span in enumerate(tokens.spans[0]):
            if span is None:
                continue
            # Characters are counted in each text of a pair, so there they begin again.
            text, before = text + (span[0] < before), span[0]
            if text == number and span[1] > start and span[0] < start + len(wanted):
                found.append(position)
        return tuple(found)
    raise EditError(
        f"The phrase {phrase!r:.80} does not stand in sentence {sentence}, whose tokens are "
        f"{' '.join(map(repr, tokens.strings[0])):.200}; give positions instead."
    )


def chosen_positions(
    trace: Trace | StackTrace, positions: int | Sequence[int] | None
) -> tuple[tuple[int, ...], ...]:
    """The positions of each sentence, counted from its front: one, several, or None for all.

    Raises TraceError for a position that a sentence does not have, for none at all, and for one
    that is named twice.
    """
    places = places_of(trace)
    several = positions is None or isinstance(positions, Sequence | Tensor)
    chosen: Chosen = positions if several else [positions]  # type: ignore[list-item]
    return tuple(
        tuple(places.positions(sentence, chosen)) for sentence in range(len(places.lengths))
    )


def vocabulary_head(model: TracedModel) -> VocabularyHead:
    """The head with one logit a vocabulary entry at each position.

    Raises TraceError for a model without one.
    """
    head = model.head
    if not isinstance(head, VocabularyHead):
        raise TraceError(
            f"{model.name} has no logits of tokens: its task is {model.config.task!r}. Expected a "
            'model with a vocabulary head: task "causal-lm", "masked-lm" or "pre-training" '
            "(ELECTRA's pre-training has none)."
        )
    return head


def token_id(model: TracedModel, token: object) -> int:
    """The id of a token, given as its id or as text that is one token (" Paris", "##s", "[SEP]").

    Raises TokenizationError for an id outside the vocabulary, for text that is not a token or more
    than one, and for text where the model has no tokenizer.
    """
    if isinstance(token, str):
        return token_id(model, to_single_token(model, token))
    size = model.config.vocab_size
    if not is_whole(token):
        raise TokenizationError(
            f"{token!r} is not a token; expected an id from 0 to {size - 1}, or the token as text."
        )
    number = operator.index(token)
    if not 0 <= number < size:
        raise TokenizationError(f"Token id {number}: expected 0 to {size - 1} for {model.name}.")
    return number


def to_single_token(model: TracedModel | Tokenizer, text: str) -> int:
    """The id of a text that is one token, such as " Paris" or "##s", of a model or a tokenizer.

    Raises TokenizationError for text that is several tokens, which it names, or none, and for a
    model without a tokenizer.

    >>> import minibert
    >>> to_single_token(minibert.load("tiny-gpt2"), " the")
    263
    """
    if not isinstance(text, str):
        raise TokenizationError(f"{text!r:.80} is not a text; expected one token, as ' Paris'.")
    name = "this tokenizer" if isinstance(model, Tokenizer) else model.name
    tokenizer: Tokenizer | None = model if isinstance(model, Tokenizer) else model.tokenizer
    if tokenizer is None:
        raise TokenizationError(f"{name} has no tokenizer, so {text!r} has no id; give the id.")
    pieces = tokenizer.encode(text)
    if len(pieces) == 1 and pieces[0] != tokenizer.unk_id:
        return int(pieces[0])
    # A piece of a word, as "##s", is an entry of its own that no text begins with.
    entries = (i for i in range(tokenizer.vocab_size) if tokenizer.raw(i) == text)
    found = next(entries, None)
    if found is not None:
        return found
    if len(pieces) > 1:
        names = ", ".join(repr(tokenizer.string(piece)) for piece in pieces)
        raise TokenizationError(f"{text!r} is {len(pieces)} tokens of {name}: {names}. Give one.")
    raise TokenizationError(f"{text!r} is not a token of {name}; give one of its tokens, or an id.")


def token_ids(model: TracedModel, tokens: object, count: int) -> Int[Tensor, " sentence"]:
    """One id a sentence, from one token for all of them or a sequence of one for each.

    Raises TokenizationError as `token_id`, and where there are not as many tokens as sentences.
    """
    chosen = one_each(tokens, count, "tokens", TokenizationError)
    ids = [token_id(model, token) for token in chosen]
    return torch.tensor(ids, dtype=torch.int64, device=model.body.device)


def token_name(model: TracedModel, token: int) -> str:
    """The token as a person reads it; its id where the model has no tokenizer."""
    return str(token) if model.tokenizer is None else model.tokenizer.string(token)


def known_tokens(model: TracedModel) -> int:
    """Vocabulary entries that have a token: a padded vocabulary has more logits."""
    size, tokenizer = model.config.vocab_size, model.tokenizer
    return size if tokenizer is None else min(size, tokenizer.vocab_size)
