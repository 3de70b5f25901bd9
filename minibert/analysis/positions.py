"""The positions that an analysis is asked about, counted in each sentence, and a trace cut to them.

Position 0 is a sentence's first token and -1 its last real one. Padding is no position.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace, listed
from minibert.errors import EditError, TraceError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.evaluation import Evaluation
from minibert.quantities import QUANTITIES, Int
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.places import Chosen, Places
from minibert.trace.read import Trace

__all__ = [
    "Aligned",
    "aligned_positions",
    "at_positions",
    "check_same_lengths",
    "chosen_positions",
    "one_position_each",
    "phrase_positions",
    "positions_each",
    "real_tokens",
    "rows_of",
]

Each = Chosen | Sequence[Chosen]
"""One position for all sentences, or a list with the position or positions of every sentence."""
Aligned = Mapping[str, Each]
"""Named places, each in every sentence."""

# What attention looks at lies at other positions; only what it gave is cut.
_ACROSS_POSITIONS = frozenset(
    {"query_unrotated", "key_unrotated", "query", "key", "value", "scores", "probs"}
)


def real_tokens(trace: Trace) -> tuple[int, ...]:
    """The number of tokens of each sentence, padding left out."""
    return Places.of(trace.allowed).lengths


def check_same_lengths(trace: Trace, source: Trace, name: str = "source") -> None:
    """Raise TraceError for what is no trace, EditError for texts of different lengths."""
    check_trace(trace)
    check_trace(source, name)
    ours, theirs = real_tokens(trace), real_tokens(source)
    if ours != theirs:
        named = (", ".join(map(str, lengths)) for lengths in (ours, theirs))
        raise EditError(
            f"The two texts have {' and '.join(named)} tokens; patching takes a "
            "value from the same position, so they need the same length."
        )


def one_position_each(trace: Trace, position: int | Sequence[int]) -> tuple[int, ...]:
    """One position of each sentence, counted from its front.

    `position` is one for all sentences, found in each of them, or a sequence of one for each.
    Raises TraceError for a position that a sentence does not have.
    """
    places = Places.of(trace.allowed)
    B = len(places.lengths)
    if isinstance(position, Tensor) and position.dim():
        position = position.tolist()
    given = list(position) if isinstance(position, Sequence) else [position] * B
    if len(given) != B:
        raise TraceError(
            f"There are {len(given)} positions for {B} sentences; expected one for each, or a "
            "single one for all."
        )
    # Each in a list of its own: a slice or None is no single position.
    return tuple(places.positions(sentence, [one])[0] for sentence, one in enumerate(given))


def positions_each(trace: Trace, chosen: Each, name: str) -> tuple[tuple[int, ...], ...]:
    """The positions of a place in each sentence, counted from its front.

    `chosen` is one position for all sentences, or a list with the positions of each. Raises
    EditError for another number of entries, for positions that are not there, and for a flat list
    beside several sentences, which could be the positions of all or one of each.
    """
    places = Places.of(trace.allowed)
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


def aligned_positions(trace: Trace, aligned: Aligned) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The positions of each named place in every sentence; EditError for what is no such thing."""
    if not isinstance(aligned, Mapping) or not aligned:
        raise EditError(
            'aligned: expected places by name, as {"subject": [[2, 3], [2]], "end": -1}.'
        )
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
    trace: Trace, positions: int | Sequence[int] | None
) -> tuple[tuple[int, ...], ...]:
    """The positions of each sentence, counted from its front: one, several, or None for all.

    Raises TraceError for a position that a sentence does not have, for none at all, and for one
    that is named twice.
    """
    places = Places.of(trace.allowed)
    several = positions is None or isinstance(positions, Sequence | Tensor)
    chosen: Chosen = positions if several else [positions]  # type: ignore[list-item]
    return tuple(
        tuple(places.positions(sentence, chosen)) for sentence in range(len(places.lengths))
    )


def rows_of(
    trace: Trace,
    sentences: Int[Tensor, " sentence"],
    positions: Int[Tensor, "sentence chosen"],
) -> Trace:
    """A trace with the axes (sentence, ..., chosen, ...) in place of (batch, ..., position, ...).

    What is computed on reading is computed for these positions alone. z and whatever follows from
    it can be read, and the residual streams; query, key, value, scores and probs cannot, since rows
    of z need all their keys.
    """
    ids, segments = trace.inputs.ids, trace.inputs.segments
    inputs = Inputs(
        _pick("ids", ids, sentences, positions),
        None,
        None if segments is None else _pick("segments", segments, sentences, positions),
    )
    batch, position = inputs.ids.shape
    allowed = AllowedKeys(batch, position, ids.device, trace.allowed.causal)
    cut = Trace(trace.model, inputs, Evaluation(allowed), until=trace.until)
    cut.autocast = trace.autocast
    cut.kept["embed"] = _pick("embed", trace.embed, sentences, positions)
    if "final_norm_scale" in trace.kept:
        scale = trace.kept["final_norm_scale"]
        cut.kept["final_norm_scale"] = _pick("final_norm_scale", scale, sentences, positions)
    for layer in range(len(trace)):
        kept = trace.records[layer] if layer < len(trace.records) else {}
        kept = {"z": trace.read("z", layer)} | kept
        cut.records.append(
            {
                name: _pick(name, value, sentences, positions)
                for name, value in kept.items()
                if name not in _ACROSS_POSITIONS
            }
        )
    return cut


def at_positions(trace: Trace, positions: Sequence[Sequence[int]]) -> Trace:
    """The trace cut to these positions of each sentence, as many of each."""
    device = trace.embed.device
    columns = torch.tensor(positions, dtype=torch.int64, device=device)
    return rows_of(trace, torch.arange(len(positions), device=device), columns)


def _pick(name: str, value: Tensor, sentences: Tensor, positions: Tensor) -> Tensor:
    if name not in QUANTITIES or not QUANTITIES[name].per_head:
        return value[sentences[:, None], positions]
    # Two lists of indices around the head axis bring the chosen places to the front.
    return value[sentences[:, None], :, positions].transpose(1, 2)
