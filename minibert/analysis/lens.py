"""The logit lens: what the model would predict if it stopped at each layer.

The stream of a layer is read as though it were the last one: the final norm (GPT-2) and the
unembedding, or the masked-language-model head (BERT), a soft cap included (Gemma 2). Nothing is
learnt for it.

Source: nostalgebraist 2020, "Interpreting GPT: the logit lens"; the final norm divides by what it
finds in the vector it reads, as there. Where an edit of the trace has it divide by something else
(`final_norm_scale`), it divides every vector of that position by this.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_trace,
    chosen_positions,
    known_tokens,
    listed,
    token_name,
    vocabulary_head,
)
from minibert.analysis.rows import at_positions, index_of, wide
from minibert.attached.read import AttachedTrace
from minibert.errors import TraceError, did_you_mean, whole_number
from minibert.layers.parts import divisor
from minibert.quantities import Float, Hidden, Int, NormScale
from minibert.result import Result, sourced
from minibert.trace.layer_view import divisors_of_final, normed_in_layer
from minibert.trace.read import Trace
from minibert.trace.run import TracedModel

# In the order of the data. embed comes once, the others in every layer.
POINTS = ("embed", "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")

# Logits that are held at once: 16 MiB in float32, which stay in reach of a processor's caches and
# of the allocator, so that every piece uses the same pages again.
_NUMBERS = 2**22
# Neighbours in the vocabulary of which the largest is found first.
_BLOCK = 128


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogitLens(Result[Tensor]):
    """The predictions at each point of the stream: (row, batch, position, rank).

    A row is one point of one layer; their labels are in the order of the data: "embed",
    "resid_post 0", "resid_post 1". `values` are the probabilities of `ids`, in a softmax over the
    whole vocabulary.

    ids            the most probable tokens, the first one first
    positions      the columns of each sentence, as its positions; further columns are padding
    words          the tokens in `ids` as a person reads them
    logits         every logit, where they were asked for
    """

    ids: Int[Tensor, "row batch position rank"]
    positions: tuple[tuple[int, ...], ...]
    words: dict[int, str]
    logits: Float[Tensor, "row batch position vocab"] | None = None

    @property
    def probs(self) -> Float[Tensor, "row batch position rank"]:
        """The values by the name that they have in a trace."""
        return self.values

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows."""
        return tuple(map(str, self.labels["row"]))

    def texts(self, sentence: int, rank: int = 0) -> list[list[str]]:
        """The predicted tokens of one sentence as a person reads them, by row and position."""
        columns = slice(len(self.positions[sentence]))
        ids = self.ids[:, sentence, columns, rank].tolist()
        return [[self.words.get(i, str(i)) for i in row] for row in ids]


@sourced
@torch.no_grad()
def logit_lens(
    trace: Trace | AttachedTrace,
    *,
    points: str | Sequence[str] = "resid_post",
    top: int = 5,
    positions: int | Sequence[int] | None = None,
    keep_logits: bool = False,
) -> LogitLens:
    """The prediction of each layer at each position, most probable tokens first.

    logits = head(final(x)), x = resid_post of the layer: final is GPT-2's last norm (nothing in
    BERT), head the model's own. `points` are any of POINTS; attn_out and mlp_out, which are added
    to a stream but are not one, are read by themselves, as though they were: as added, after the
    norm of a block's output where there is one (Gemma 2). The row of the last resid_post is what
    the model predicts. Of an attached model the trace is read where its blocks and its head were
    found (docs/attach.md); embed is what enters its first layer.

    `positions` are counted in each sentence, negative ones from its last token; by default all.
    Memory is bounded by top-k of each position; `keep_logits` keeps row x batch x position x vocab
    numbers. A trace made with until= gives the rows of its layers.

    Gradients are not kept. Raises TraceError for a model without a vocabulary head, a point or
    position that does not exist and a top below 1.
    """
    names = _checked_points(points)
    top = whole_number("top", top, TraceError, least=1)
    if isinstance(trace, AttachedTrace):
        found = _of_attached(trace, names, positions)
    else:
        found = _of_loaded(trace, names, positions)
    labels, streams = zip(*found.streams, strict=True)
    read = _read(found, torch.stack(streams), min(top, found.known), keep_logits)
    given = tuple(
        tuple(strings[place] for place in places)
        for strings, places in zip(found.strings, found.chosen, strict=True)
    )
    return LogitLens(
        read["probs"],
        "row batch position rank",
        title="Logit lens",
        unit="probability",
        labels={"row": labels},
        tokens=given,
        limits=(0.0, 1.0),
        positions=found.chosen,
        words={i: found.token_name(i) for i in read["ids"].unique().tolist()},
        ids=read["ids"],
        logits=read.get("logits"),
    )


@dataclass(frozen=True)
class _Found:
    """The streams of a trace at the chosen positions, and what reads them.

    logits   of rows of streams, and what an edit has the last norm divide by in each of them
    known    vocabulary entries that have a token
    """

    streams: Iterable[tuple[str, Hidden]]
    chosen: tuple[tuple[int, ...], ...]
    strings: Sequence[Sequence[str]]
    logits: Callable[[Tensor, Tensor | None], Tensor]
    scale: NormScale | None
    vocabulary: int
    known: int
    token_name: Callable[[int], str]


def _of_loaded(
    trace: Trace, names: frozenset[str], positions: int | Sequence[int] | None
) -> _Found:
    check_trace(trace)
    model = trace.unchanged_model()
    vocabulary_head(model)
    chosen = chosen_positions(trace, positions)
    cut = trace if positions is None else at_positions(trace, chosen)
    return _Found(
        _streams(cut, names),
        chosen,
        trace.tokens.strings,
        partial(_logits, model),
        _written_scale(cut),
        model.config.vocab_size,
        known_tokens(model),
        partial(token_name, model),
    )


def _of_attached(
    trace: AttachedTrace, names: frozenset[str], positions: int | Sequence[int] | None
) -> _Found:
    stack, unembedding = trace.unembedding()
    chosen = chosen_positions(stack, positions)
    index = index_of(stack.places, chosen)

    def streams() -> Iterator[tuple[str, Tensor]]:
        if "embed" in names:
            yield "embed", stack[0].resid_pre[index]
        for here in stack:
            for name in POINTS[1:]:
                if name in names:
                    yield f"{name} {here.layer}", here.as_added(name)[index]

    size = int(trace.logits.shape[-1])
    return _Found(
        streams(),
        chosen,
        stack.tokens.strings,
        lambda rows, _: unembedding.logits(rows[None])[0],
        None,
        size,
        size if stack.tokenizer is None else min(size, len(stack.tokenizer)),
        stack.token_name,
    )


def _streams(trace: Trace, names: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    if "embed" in names:
        yield "embed", trace.embed
    for here in trace:
        layer = trace.unchanged_model().body.layers[here.layer]
        output = {"attn_out": "attention_output_norm", "mlp_out": "mlp_output_norm"}
        for name in POINTS[1:]:
            if name in names:
                value, norm = getattr(here, name), output.get(name, "")
                if getattr(layer, norm, None) is not None:
                    value = normed_in_layer(here, norm, value)
                yield f"{name} {here.layer}", value


def _written_scale(trace: Trace) -> NormScale | None:
    """What an edit has the last norm divide by; nan where it divides by what it finds."""
    if trace.until is not None:
        return None
    divisors = divisors_of_final(trace, trace[-1].resid_post)
    if divisors is None:
        return None
    scale, own = divisors
    # A pass that keeps gradients keeps a scale that nobody edited, too.
    rounding = 4 * torch.finfo(scale.dtype).eps
    return torch.where(torch.isclose(scale, own, rtol=rounding, atol=0), torch.nan, scale)


def _read(
    found: _Found, hidden: Float[Tensor, "row batch position d_model"], top: int, keep_logits: bool
) -> dict[str, Tensor]:
    """What the head reads in each stream, some of all the vectors at a time."""
    flat, axes, scale = hidden.flatten(0, 2), hidden.shape[:3], found.scale
    size = max(1, _NUMBERS // found.vocabulary)
    scales = None if scale is None else scale.expand(*axes, 1).flatten(0, 2).split(size)
    pieces = []
    for n, part in enumerate(flat.split(size)):
        logits = wide(found.logits(part, None if scales is None else scales[n]))
        pieces.append(_predictions(logits, top, found.known))
        if keep_logits:
            pieces[-1]["logits"] = logits
    joined = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    return {name: value.unflatten(0, axes) for name, value in joined.items()}


def _logits(
    model: TracedModel,
    hidden: Float[Tensor, "row d_model"],
    scale: Float[Tensor, "row 1"] | None,
) -> Float[Tensor, "row vocab"]:
    divisors, norm = None, model.body.final_norm
    if scale is not None and norm is not None:
        own = divisor(norm, hidden[None])
        divisors = torch.where(scale.isnan(), own, scale), own
    # A vocabulary head reads neither ids nor mask; every head is called with them.
    ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
    return vocabulary_head(model)(model.body.final(hidden[None], divisors), None, ids, None)[0]


def _predictions(logits: Float[Tensor, "row vocab"], top: int, known: int) -> dict[str, Tensor]:
    total = logits.logsumexp(-1, keepdim=True)
    values, ids = _largest(logits[:, :known], top)
    return {"ids": ids, "probs": (values - total).exp()}


def _largest(logits: Float[Tensor, "row vocab"], top: int) -> tuple[Tensor, Tensor]:
    """`logits.topk(top)`, which lists every number of a row with its place before it chooses.

    The largest numbers are in the blocks with the largest maxima, which are found at the speed of
    reading, or behind the last whole block.
    """
    count = logits.shape[1] // _BLOCK
    if count <= top:
        return logits.topk(top)
    blocks = logits[:, : count * _BLOCK].unflatten(1, (count, _BLOCK))
    chosen = blocks.amax(-1).topk(top).indices  # row top
    ids = torch.arange(logits.shape[1], device=logits.device)
    inside = ids[: count * _BLOCK].view(count, _BLOCK)[chosen].flatten(1)
    places = torch.cat([inside, ids[count * _BLOCK :].expand(len(logits), -1)], 1)
    values, found = logits.gather(1, places).topk(top)
    return values, places.gather(1, found)


def _checked_points(points: str | Sequence[str]) -> frozenset[str]:
    several = [points] if isinstance(points, str) else points
    names = listed(several, "points", TraceError, f"some of {POINTS}")
    wrong = [name for name in names if not isinstance(name, str) or name not in POINTS]
    if wrong or not names:
        what = (
            f"{wrong[0]!r:.80} is not a point of the stream{did_you_mean(wrong[0], POINTS)}"
            if wrong
            else "points is empty"
        )
        raise TraceError(f"{what}; there are {', '.join(POINTS)}.")
    return frozenset(names)
