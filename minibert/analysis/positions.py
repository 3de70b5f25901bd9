"""A trace cut to some positions, so that what is computed on reading is computed for those alone.

Place: beside the analyses that ask about one position of a long text.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import QUANTITIES, Int
from minibert.trace.places import check_index
from minibert.trace.read import Trace

__all__ = ["at_positions", "chosen_positions", "rows_of"]

# What attention looks at lies at other positions; only what it gave is cut.
_ACROSS_POSITIONS = frozenset({"query", "key", "value", "scores", "probs"})


def rows_of(
    trace: Trace,
    sentences: Int[Tensor, " sentence"],
    positions: Int[Tensor, "sentence chosen"],
) -> Trace:
    """A trace with the axes (sentence, ..., chosen, ...) in place of (batch, ..., position, ...).

    z and whatever follows from it can be read, and the residual streams; query, key, value, scores
    and probs cannot, since rows of z need all their keys.
    """
    cut = Trace(trace.model, trace.inputs, trace.evaluation, until=trace.until)
    cut.kept["embed"] = _pick("embed", trace.embed, sentences, positions)
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


def at_positions(trace: Trace, positions: Sequence[int]) -> Trace:
    """The trace of every sentence at the same positions."""
    B = trace.allowed.batch
    device = trace.embed.device
    columns = torch.tensor(positions, dtype=torch.int64, device=device)
    return rows_of(trace, torch.arange(B, device=device), columns.expand(B, -1))


def chosen_positions(trace: Trace, positions: Any) -> tuple[int, ...]:
    """The positions counted from the front: all of them for None, or one, or a sequence.

    Raises TraceError for one that does not exist and for none at all.
    """
    N = trace.allowed.position
    if positions is None:
        return tuple(range(N))
    several = positions if isinstance(positions, Sequence) else [positions]
    chosen = [check_index("position", each, N) for each in several]
    if not chosen:
        raise TraceError(f"positions is empty; expected some of 0 to {N - 1}, or None for all.")
    return tuple(chosen)


def _pick(name: str, value: Tensor, sentences: Tensor, positions: Tensor) -> Tensor:
    if not QUANTITIES[name].per_head:
        return value[sentences[:, None], positions]
    # Two lists of indices around the head axis bring the chosen places to the front.
    return value[sentences[:, None], :, positions].transpose(1, 2)
