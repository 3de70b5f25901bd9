"""Why the heads of a layer look where they look, over whole texts: who feeds queries and keys.

The mean of the tables of `why` over all pairs of positions, weighted by attention, with one
attention a component, in which its part of the keys stands in place of the values. No matrix of
query and key is held whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minibert.analysis.reading import into_stream, seen_keys, turns, with_constants
from minibert.analysis.reasons import one_text
from minibert.analysis.rows import at_positions, wide
from minibert.analysis.stream import (
    Component,
    Written,
    check_total,
    embedding_of,
    layer_of,
    sum_rounding,
)
from minibert.layers.turns import rotate
from minibert.quantities import Float
from minibert.result import Result, sourced
from minibert.trace.read import Trace

# Queries whose weights are held at once.
_QUERIES = 128


@sourced
@torch.no_grad()
def why_heads(trace: Trace, layer: int) -> Result[Tensor]:
    """What makes the heads of a layer look where they look, over all tokens of all sentences.

    The axes are (head, query_component, key_component): the mean over queries of the scores
    weighted by attention, less their plain mean over the keys that the query may see, as a sum over
    pairs of components. Parts that are equal for all keys are 0. A large entry of a head says that
    the head finds its tokens by this pair. It is measured on data; `composition_scores` reads the
    weights.

    No whole matrix of query and key is held. It computes rows of 128 queries at a time, with one
    attention for each component, in which the component's part of the keys replaces the values.
    Memory: component x position x d_head numbers for each side of one head, and z and mlp_out of
    all layers below. Time: that of some forward passes, most for the last layer. The sums are those
    of `why` within 1e-5 of the largest entry in float32.

    Raises TraceError for a layer that does not exist, and where an edit wrote something that no
    component did.
    """
    one_text(trace, 0)
    layer, heads = trace[layer].layer, range(trace.config.n_heads)
    texts = [trace.text(sentence) for sentence in range(len(trace.tokens.lengths))]
    found = [heads_over_text(text, layer, heads, written_below(text, layer)) for text in texts]
    return Result(
        torch.stack([each.pairs for each in found]).sum(0) / sum(trace.tokens.lengths),
        "head query_component key_component",
        title=f"What makes the heads of layer {layer} look",
        unit="score",
        labels={"query_component": found[0].components[0], "key_component": found[0].components[1]},
        signed=True,
    )


class HeadSums(NamedTuple):
    """What makes some heads of a layer look, and what they move, summed over the tokens of a text.

    pairs        the table of `why_heads`, not yet divided by the number of tokens
    moved        z · (the part of z whose values the component wrote); their sum is ‖z‖²
    components   the names of those that write to the query, to the key and to the value
    """

    pairs: Float[Tensor, "some_head query_component key_component"]
    moved: Float[Tensor, "some_head value_component"]
    components: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def written_below(text: Trace, layer: int, places: Sequence[int] | None = None) -> Written:
    """What was written to the stream of one sentence below a layer, at some or all positions."""
    embedding = embedding_of(text)
    if places is not None:
        embedding = [(component, part[:, list(places)]) for component, part in embedding]
        text = at_positions(text, [places])
    return Written(text, layer, "resid_pre", heads=True, embedding=embedding, folded=True)


def parts_of_head(
    text: Trace, layer: int, name: str, head: int, written: Written, places: Sequence[int]
) -> tuple[tuple[Component, ...], Float[Tensor, "component position d_head"]]:
    """The parts of the queries, keys or values of one head at these positions, rotated.

    `head` is a key-value head for key and value; `written` is of these positions.
    """
    attention = layer_of(text[layer]).attention
    eye = torch.eye(attention.d_head, dtype=wide(text.embed).dtype, device=text.embed.device)
    # As one set of directions for all positions: a rotation would give each its own.
    reading = into_stream(text, layer, name, head, places, eye[None], rotated=False)
    names, parts = with_constants(*written.numbers(reading.reader), reading.constants)
    if attention.rotary is not None and name != "value":
        cosine, sine = turns(text, layer)
        turned = cosine[..., list(places), :], sine[..., list(places), :]
        parts = rotate(parts[:, None], turned)[:, 0]
    return names, parts


@torch.no_grad()
def heads_over_text(text: Trace, layer: int, heads: Sequence[int], written: Written) -> HeadSums:
    """The sums of one sentence. Raises TraceError where an edit wrote what no component did."""
    group, scale = layer_of(text[layer]).attention.group, layer_of(text[layer]).attention.scale
    pairs, moved = list[Tensor](), list[Tensor]()
    names = dict[str, tuple[str, ...]]()
    parts = dict[str, Tensor]()
    last, places = -1, range(text.allowed.position)
    for head in heads:
        for side in ("query", "key", "value") if head // group != last else ("query",):
            own = head if side == "query" else head // group
            components, parts[side] = parts_of_head(text, layer, side, own, written, places)
            names[side] = components
        last = head // group
        z = wide(text[layer, head].z)[0]
        table, number, read = _of_pairs(text, layer, head, (parts["query"], parts["key"]), z)
        table = table * scale
        what = f"The sum of the scores of head {layer}-{head}, weighted,"
        # A head that looks evenly has the sum 0, up to the rounding of its scores.
        lengths = [float(torch.linalg.vector_norm(parts[side].sum(0))) for side in ("query", "key")]
        rounding = torch.finfo(table.dtype).eps * scale * lengths[0] * lengths[1]
        beside = max(abs(number.item()), rounding / sum_rounding(table.dtype))
        check_total(table, number.item(), what, text.embed.dtype, beside)
        pairs.append(table)
        moved.append((parts["value"] * read).sum((1, 2)))
    return HeadSums(
        torch.stack(pairs), torch.stack(moved), (names["query"], names["key"], names["value"])
    )


def _of_pairs(
    text: Trace,
    layer: int,
    head: int,
    parts: tuple[Tensor, Tensor],
    z: Float[Tensor, "position d_head"],
) -> tuple[
    Float[Tensor, "query_component key_component"],
    Float[Tensor, ""],
    Float[Tensor, "position d_head"],
]:
    """The sum over all pairs of positions, weighted; that of the scores; and z by what it read.

    One attention a component, in which its part of the keys stands in place of the values.
    """
    queries, keys = parts  # component position d_head
    length, found = queries.shape[1], queries.new_zeros(len(queries), len(keys))
    side_by_side = keys.transpose(0, 1).flatten(1)  # position component*d_head
    expected, read = found.new_zeros(()), torch.zeros_like(z)
    for first in range(0, length, _QUERIES):
        places = list(range(first, min(first + _QUERIES, length)))
        seen = seen_keys(text, layer, places).to(keys.dtype)
        at = text.at(layer, slice(head, head + 1), places)
        probs = wide(at.probs)[0, 0]
        rows = probs - seen / seen.sum(-1, keepdim=True)
        expected = expected + (rows * wide(at.scores)[0, 0].where(seen > 0, 0)).sum()
        some = seen.any(0).nonzero()[:, 0]
        here = slice(int(some[0]), int(some[-1]) + 1)
        looked = (rows[:, here] @ side_by_side[here]).unflatten(1, (len(keys), -1))
        found += queries[:, places].flatten(1) @ looked.transpose(0, 1).flatten(1).mT
        read += probs.mT @ z[places]
    return found, expected, read
