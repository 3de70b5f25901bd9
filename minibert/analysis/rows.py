"""A trace cut to some positions, and its numbers in float32 at least."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.evaluation import Evaluation
from minibert.layers.linear import values_of
from minibert.quantities import QUANTITIES, Int
from minibert.text.inputs import Inputs
from minibert.trace.edit import Places
from minibert.trace.read import Trace

# What attention looks at lies at other positions; only what it gave is cut.
_ACROSS_POSITIONS = frozenset(
    {"query_unrotated", "key_unrotated", "query", "key", "value", "scores", "probs"}
)


def rows_of(
    trace: Trace, sentences: Int[Tensor, " sentence"], positions: Int[Tensor, "sentence chosen"]
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
    cut = Trace(trace.unchanged_model(), inputs, Evaluation(allowed), until=trace.until)
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


def index_of(
    places: Places, chosen: Sequence[Sequence[int]]
) -> tuple[Int[Tensor, "sentence 1"], Int[Tensor, "sentence chosen"]]:
    """The index of some positions of each sentence in (batch, position, ...).

    Sentences with fewer of them end in more of their last one.
    """
    columns = [places.index(n, each)[1] for n, each in enumerate(chosen)]
    longest = max(map(len, columns))
    table = torch.tensor([each + each[-1:] * (longest - len(each)) for each in columns])
    return torch.arange(len(table))[:, None], table


def _pick(name: str, value: Tensor, sentences: Tensor, positions: Tensor) -> Tensor:
    if name not in QUANTITIES or not QUANTITIES[name].per_head:
        return value[sentences[:, None], positions]
    # Two lists of indices around the head axis bring the chosen places to the front.
    return value[sentences[:, None], :, positions].transpose(1, 2)


def wide(x: Tensor) -> Tensor:
    """A tensor without its gradient, in float32 where it is stored in fewer bits."""
    return values_of(x).to(torch.promote_types(x.dtype, torch.float32))
