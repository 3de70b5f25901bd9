"""What is written to the residual stream: who writes (`Component`), and the stream as their sum.

Pre-norm families add to the stream and nothing else happens to it. In post-norm families each
block ends in a LayerNorm; with its standard deviation frozen it is an affine map (`FrozenNorm`),
so that every earlier component is carried through it, and its bias is a component of its own. Where
a block's output goes through a norm before the sum (Gemma 2, OLMo 2), what the block wrote is
carried through that one. The sum is the stream exactly in all of them, up to rounding.

What enters layer 0 is a sum too, of word, position and segment embeddings (`embedding_parts`). With
other positions or segments it is what would enter if the tokens stood elsewhere or were of another
text, and an edit of `embed` puts it in, so that no weight is written:

    same = embedding_parts(model, text, positions=[0] * 7)
    trace = model.trace(text, edit={"embed": same.embed})

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", "High-level
architecture" and "Handling layer normalization".
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model, check_trace, chosen_positions
from minibert.analysis.rows import at_positions, index_of, wide
from minibert.attached.block import NormOf
from minibert.attached.read import AttachedLayer, AttachedTrace, StackTrace
from minibert.errors import TraceError, did_you_mean
from minibert.layers.linear import Int8Weight, held, matrix_of, offset_of
from minibert.layers.parts import Divisors, FeedForward, Layer, Norm, deviation
from minibert.model import Input, Model
from minibert.quantities import Float, Hidden, TokenIds
from minibert.result import Result, sourced
from minibert.text.inputs import in_range
from minibert.text.tokens import beside
from minibert.trace.layer_view import LayerTrace, divisors_of_final, divisors_of_layer
from minibert.trace.read import Trace

_POINTS = ("resid_pre", "resid_mid", "resid_post")
# Rows of the stream that are taken apart at once: what is held beside the result.
_ROWS = 32
# How far a sum may be off, as a share of the largest part; in half precision far more.
_ROUNDING, _HALF_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}, 0.1


class Component(str):
    """The name of a writer to the stream, with its kind, layer and head.

    Layer and head count from 0, and are None where they do not apply.

    embed                    what enters layer 0
    head 9-6                 head_out of layer 9, head 6
    attention bias 9         b_O of layer 9, where it has one
    attention norm bias 9    the bias of the LayerNorm after attention (post-norm families)
    attention output norm bias 9    the bias of a LayerNorm that attention alone goes through
    mlp 9                    mlp_out of layer 9, its bias b_out included
    mlp norm bias 9          the bias of the LayerNorm after the MLP (post-norm families)
    mlp output norm bias 9   the bias of a LayerNorm that the MLP alone goes through
    attention 9              attn_out of layer 9, where heads are not told apart

    `why` takes embed apart (word embedding, position embedding, segment embedding, embedding norm
    bias), and its components go on to the query or key: attention norm bias 9 of a norm in front of
    attention (GPT-2), query bias, key bias. neuron 9-345 is neuron 345 of the MLP of layer 9, and
    mlp rest 9 what is left of it. With features= feature 9-345 is one of them, and feature rest 9,
    feature bias 9, feature skip 9 and feature error 9 what is left of what they are parts of.

    What a block writes goes through its output norm first, where the model has one (Gemma 2,
    OLMo 2). What lies between the stream and a logit has biases too: final norm bias (GPT-2),
    transform bias and transform norm bias (the masked-language-model head), unembedding bias.
    """

    kind: str
    layer: int | None
    head: int | None

    def __new__(cls, kind: str, layer: int | None = None, head: int | None = None) -> "Component":
        """The name in the list above."""
        place = "" if layer is None else f" {layer}" + ("" if head is None else f"-{head}")
        self = super().__new__(cls, kind + place)
        self.kind, self.layer, self.head = kind, layer, head
        return self


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm with what it divided by: weight · (x − mean) / deviation + bias, a linear map.

    carry        takes a part of the input to its part of the output
    transposed   takes a direction that reads the output to the one that reads the same of the
                 input, but for what the norm divided by

    RMSNorm takes no mean away and has no bias.

    Source: Elhage et al. 2021, "Handling layer normalization"; TransformerLens' apply_ln_to_stack.
    """

    weight: Float[Tensor, " width"]
    bias: Float[Tensor, " width"] | None
    deviation: Float[Tensor, "*rows 1"]
    centres: bool

    @classmethod
    def of(
        cls, norm: Norm, x: Float[Tensor, "*rows width"], divisors: Divisors | None = None
    ) -> "FrozenNorm":
        """The map that `norm` was for this input; `divisors` are those of `normed`.

        Of a norm of a trace take `of_layer` or `of_final`, which know what an edit wrote.
        """
        bias = None if norm.bias is None else wide(norm.bias)
        divided_by = deviation(norm, wide(x))
        if divisors is not None:
            to, own = map(wide, divisors)
            # As in `normed`, so that a rounded scale that nobody changed changes nothing.
            divided_by = 1 / (1 / divided_by + 1 / to - 1 / own)
        return cls(wide(norm.scale), bias, divided_by, norm.centres)

    @classmethod
    def of_live(cls, norm: NormOf) -> "FrozenNorm":
        """The map that a norm of an attached model was, found from what it read and gave.

        Raises TraceError for a module that is neither an RMSNorm nor a LayerNorm.
        """
        module, read, gave = norm
        own = {name.rpartition(".")[2]: wide(one) for name, one in module.named_parameters()}
        bias = own.pop("bias", None)
        target = wide(gave) if bias is None else wide(gave) - bias
        size = wide(read).new_ones(read.shape[-1])
        # Gemma's weight is what is added to 1.
        weights = [each for one in own.values() for each in (one, 1 + one)] or [size]
        error = _ROUNDING.get(gave.dtype, _HALF_ROUNDING) * target.abs().max()
        for weight, centres in product(weights, (False, True)):
            found = cls(weight, bias, size[:1], centres)
            scaled = found.scaled(wide(read))
            squares = scaled.square().sum(-1, keepdim=True)
            along = (scaled * target).sum(-1, keepdim=True)
            # A row of zeros, as padding has them, is 0 whatever divides it.
            divided_by = torch.where(squares > 0, squares / along, 1)
            # transformers computes some in float32, whatever the model is.
            if (scaled / divided_by - target).abs().max() <= max(error, 1e-5 * target.abs().max()):
                return cls(weight, bias, divided_by, centres)
        raise TraceError(f"{type(module).__name__} is not a norm that is linear when it is frozen.")

    @classmethod
    def of_layer(
        cls, at: LayerTrace, name: str, x: Float[Tensor, "batch position width"]
    ) -> "FrozenNorm | None":
        """The map that a norm of this layer was, "mlp_norm" for example; None without such a norm.

        x is what the norm reads.
        """
        norm = getattr(layer_of(at), name)
        return None if norm is None else cls.of(norm, x, divisors_of_layer(at, name, x))

    @classmethod
    def of_final(cls, trace: Trace) -> "FrozenNorm | None":
        """The map that the norm after the layers was; None without one."""
        norm, last = trace.unchanged_model().body.final_norm, trace[-1].resid_post
        return None if norm is None else cls.of(norm, last, divisors_of_final(trace, last))

    def carry(self, part: Float[Tensor, "*parts width"]) -> Float[Tensor, "*parts width"]:
        """weight · (part − mean) / deviation; the bias belongs to no part."""
        return self.scaled(part) / self.deviation

    def scaled(self, part: Float[Tensor, "*parts width"]) -> Float[Tensor, "*parts width"]:
        """weight · (part − mean): what the norm does to every row alike."""
        return self.weight * self._centred(part)

    def transposed(self, direction: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The transpose of `scaled`."""
        return self._centred(self.weight * direction)

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centres else x


class NormsOfBlock(NamedTuple):
    """The norms of attention or of the MLP; None where the model has none in that place.

    before   of what the block reads from the stream
    output   of what it writes, before the sum with the stream
    after    of that sum
    """

    before: Norm | None
    output: Norm | None
    after: Norm | None

    @classmethod
    def of(cls, layer: Layer, block: str) -> "NormsOfBlock":
        """The norms of a layer's "attention" or "mlp"."""
        norm, output = getattr(layer, f"{block}_norm"), getattr(layer, f"{block}_output_norm")
        return cls(None if layer.after else norm, output, norm if layer.after else None)


def layer_of(at: LayerTrace) -> Layer:
    """The layer's weights."""
    return at.trace.unchanged_model().body.layers[at.layer]


def mlp_of(at: LayerTrace) -> FeedForward:
    """The weights of its MLP. Raises TraceError for a layer without one."""
    mlp = layer_of(at).mlp
    if mlp is None:
        raise TraceError(f"layer {at.layer}: the layers of this model have no MLP.")
    return mlp


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Parts(Result[Tensor]):
    """Numbers with an axis of components."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The component that wrote each part: the labels of that axis."""
        return cast(tuple[Component, ...], self.labels["component"])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Decomposition(Parts):
    """The parts of one residual stream, (component, batch, position, d_model), as written.

    positions    those of each sentence; what the parts hold after its last one is padding
    """

    layer: int
    point: str
    positions: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> Hidden:
        """The sum of the parts: the stream itself, up to rounding."""
        return self.values.sum(0)

    @property
    def cumulative(self) -> Float[Tensor, "component batch position d_model"]:
        """The sum of each part and all before it; the last one is the stream.

        In pre-norm families the sums up to each mlp are the streams of the layers below.
        """
        return self.values.cumsum(0)

    def shares(self) -> Float[Tensor, "component batch position"]:
        """The share of each part in the stream: part·stream / ‖stream‖²; they sum to 1."""
        total = self.total
        return (self.values * total).sum(-1) / total.square().sum(-1)

    def shown(self) -> Result[Tensor]:
        """The shares."""
        names, unit = "component batch position", "share of the stream"
        return Result(self.shares(), names, self.title, unit, self.labels, self.tokens, signed=True)


@sourced
@torch.no_grad()
def decompose(
    trace: Trace | AttachedTrace,
    layer: int = -1,
    *,
    point: str = "resid_post",
    heads: bool = True,
    positions: int | Sequence[int] | None = None,
) -> Decomposition:
    """The parts that a layer's resid_post (or resid_mid, resid_pre) is the sum of.

    `heads=False` takes attention as one component a layer, its bias included. `positions` are
    those to compute, all by default: the result holds component x batch x position x d_model
    numbers, which for long texts and many heads is much. Little is held beside the result: 32 rows
    of the stream are taken apart at a time.

    The sum is the stream within rounding: 1e-5 of its largest part in float32, 1e-10 in float64.
    That holds for edited traces too where the edit is of what a component writes (embed, z,
    head_out, mlp_out and what they follow from), or of what a norm divides by. Raises TraceError
    for those that it does not hold for: what an edit of a residual stream wrote, or of attn_out
    unless `heads=False`, is not a part.

    Of an attached model of one stack the parts are what its blocks wrote; a factor of a block is in
    its parts.

    Gradients are not kept. Raises TraceError for a layer, point or position that does not exist or
    was not computed.
    """
    if not isinstance(trace, AttachedTrace):
        check_trace(trace)
    layer = trace[layer].layer
    if not isinstance(point, str) or point not in _POINTS:
        raise TraceError(
            f"{point!r:.80} is not a residual stream"
            f"{did_you_mean(point, _POINTS)}; there are {', '.join(_POINTS)}."
        )
    if isinstance(trace, AttachedTrace):
        return _of_attached(trace.only(), layer, point, positions, heads=heads)
    chosen = chosen_positions(trace, positions)
    columns = [list(range(trace.allowed.position))] * len(chosen) if positions is None else chosen
    # Of a trace with until= the z of the last layer is computed here, once for all positions.
    whole = positions is None and trace.until is None
    cut = trace if whole else at_positions(trace, columns)
    size = max(1, _ROWS // len(chosen))
    parts, components = torch.empty(0), tuple[Component, ...]()
    for first in range(0, len(columns[0]), size):
        some = slice(first, first + size)
        places = [each[some] if whole else range(len(each))[some] for each in columns]
        found = Written(at_positions(cut, places), layer, point, heads=heads).vectors()
        components, of_rows = zip(*found, strict=True)
        if trace.edited_from is not None:
            _check_sum(of_rows, getattr(cut[layer], point)[:, some], f"{point} {layer}")
        if not first:
            rows = (len(chosen), len(columns[0]), trace.config.d_model)
            parts = of_rows[0].new_empty(len(of_rows), *rows)
        for target, part in zip(parts, of_rows, strict=True):
            target[:, some] = part
    strings = zip(trace.tokens.strings, chosen, strict=True)
    return Decomposition(
        parts,
        "component batch position d_model",
        title=f"{point} {layer}",
        labels={"component": components},
        tokens=tuple(tuple(tokens[place] for place in places) for tokens, places in strings),
        layer=layer,
        point=point,
        positions=chosen,
    )


def _of_attached(
    stack: StackTrace,
    layer: int,
    point: str,
    positions: int | Sequence[int] | None,
    *,
    heads: bool,
) -> Decomposition:
    chosen = chosen_positions(stack, positions)
    index = index_of(stack.places, chosen)
    found = live_written(stack, layer, point, heads=heads).vectors()
    parts = [part[index] for _, part in found]
    stream = stack[layer].quantity(point)[index]
    # Norms of transformers compute in float32 at most, whatever the model is.
    narrow = stream.float() if stream.dtype == torch.float64 else stream
    _check_sum(parts, narrow, f"{point} {layer}")
    strings = zip(stack.tokens.strings, chosen, strict=True)
    return Decomposition(
        torch.stack(parts),
        "component batch position d_model",
        title=f"{point} {layer}",
        labels={"component": tuple(component for component, _ in found)},
        tokens=tuple(tuple(tokens[place] for place in places) for tokens, places in strings),
        layer=layer,
        point=point,
        positions=chosen,
    )


def _check_sum(parts_of: Sequence[Tensor], stream: Tensor, name: str) -> None:
    """Raise TraceError where an edit wrote something that no component did."""
    parts = torch.stack(list(parts_of))
    largest = torch.linalg.vector_norm(parts, torch.inf, dim=(0, -1))
    limit = _ROUNDING.get(stream.dtype, _HALF_ROUNDING) * largest
    if ((parts.sum(0) - wide(stream)).abs().amax(-1) > limit).any():
        raise TraceError(
            f"{name} of this trace is not the sum of what its components wrote: it was edited "
            "where none of them writes (resid_pre, resid_mid, resid_post, or attn_out, which "
            "heads=False takes as it is). Edit embed, z, head_out or mlp_out, or decompose the "
            "unedited trace."
        )


def sum_rounding(dtype: torch.dtype) -> float:
    """How far a sum may be off from a number that was computed on another way, as a score is."""
    return {torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, _HALF_ROUNDING)


def check_total(
    parts: Tensor, number: float, what: str, dtype: torch.dtype, beside: float = 0.0
) -> None:
    """Raise TraceError where the parts are not the number that the trace has.

    `beside` is the size of the numbers that it is a difference of.
    """
    total = parts.sum().item()
    size = max(parts.abs().max().item(), beside)
    if not abs(total - number) <= sum_rounding(dtype) * size:
        raise TraceError(
            f"{what} is {number:.6g} in this trace, and what its components wrote gives "
            f"{total:.6g}. Either an edit wrote something between (a residual stream, attn_out, an "
            "input, query, key, scores or logits): explain the unedited trace, or edit embed, z, "
            "head_out or mlp_out. Or the model's weights were changed since: make the trace again."
        )


class Reader(NamedTuple):
    """Numbers that are linear in the vectors of one sentence: scale · (directions · vector).

    directions   those of each position, or one for all of them
    scale        what differs from position to position, such as what a norm divided by
    """

    directions: Float[Tensor, "position read width"]
    scale: Float[Tensor, "position 1"]

    def in_front_of(self, norm: FrozenNorm) -> "Reader":
        """A reader of the same numbers before a norm of these positions."""
        deviation = norm.deviation.reshape(self.scale.shape)
        return Reader(norm.transposed(self.directions), self.scale / deviation)

    def behind(self, matrix: Float[Tensor, "width d_model"]) -> "Reader":
        """A reader of the same numbers before a projection that gives matrix · vector."""
        return Reader(self.directions @ matrix, self.scale)

    def along(self, vector: Float[Tensor, " read"]) -> "Reader":
        """The numbers of each position weighted and summed, as one."""
        return Reader(torch.einsum("prm,r->pm", self.directions, vector)[:, None], self.scale)

    def constant(self, bias: Float[Tensor, " width"]) -> Float[Tensor, "position read"]:
        """The numbers of a vector that is the same at all positions."""
        return (self.directions @ bias) * self.scale

    def of(self, write: "Write") -> Float[Tensor, "component position read"]:
        """The numbers of what was written, one sentence."""
        values, to = write.values[:, 0], self.directions
        if len(to) == 1:
            to = to if write.matrix is None else to @ write.matrix.mT
            return (values @ to.mT) * self.scale
        vectors = write.vectors()[:, 0]
        return torch.einsum("npm,prm->npr", vectors, to) * self.scale


class Write(NamedTuple):
    """What some components wrote: values · matrix, or values where there is no matrix."""

    components: tuple[Component, ...]
    values: Float[Tensor, "component batch position width"]
    matrix: Float[Tensor, "component width d_model"] | None = None

    def vectors(self) -> Float[Tensor, "component batch position d_model"]:
        """What each wrote."""
        return self.values if self.matrix is None else self.values @ self.matrix[:, None]


class Block(NamedTuple):
    """What the attention or MLP of a layer wrote to the stream, and the norms that it went through.

    output   the norm of what the block wrote alone; None without one
    after    the norm of its sum with the stream; None without one
    """

    name: str
    layer: int | None
    writes: Sequence[Write]
    output: FrozenNorm | None = None
    after: FrozenNorm | None = None

    def bias(self, place: str) -> Component:
        """The bias of one of the norms, place "output norm" or "norm"."""
        return Component(f"{self.name} {place} bias", self.layer)


#: How many blocks were written once a point of layer 0 is there, the embeddings being one. Of an
#: output it is the last of them that wrote it.
_BLOCKS = {"resid_pre": 1, "attn_out": 2, "resid_mid": 2, "mlp_out": 3, "resid_post": 3}


class Written:
    """What was written to the stream of a trace, in front of a point of it, writer by writer.

    vectors   the parts of the stream, whose sum it is
    numbers   the parts of numbers that are linear in the stream, without the vectors

    `folded=True` keeps z and W_O of the heads instead of what each adds, d_model numbers;
    `norms_only=True` leaves out what MLPs wrote, which `readers` does not need.
    """

    def __init__(
        self,
        trace: Trace,
        layer: int,
        point: str,
        *,
        heads: bool,
        embedding: Sequence[tuple[Component, Hidden]] = (),
        folded: bool = False,
        norms_only: bool = False,
    ) -> None:
        if heads and any(isinstance(one, Int8Weight) for one in held(trace.unchanged_model().body)):
            raise TraceError(
                'weights="int8" rounds what W_O reads, so what heads write does not add up to the '
                "stream. Load the model without weights=; decompose(heads=False) does add up."
            )
        start = embedding or [(Component("embed"), trace.embed)]
        writes = [Write((component,), wide(part)[None]) for component, part in start]
        self.blocks = [Block("embedding", None, writes)]
        for each in range(layer + (point != "resid_pre")):
            at = trace[each]
            self.blocks.append(_attention(at, heads=heads, folded=folded))
            if each < layer or point == "resid_post":
                self.blocks.append(_mlp(at, norms_only=norms_only))

    def put(self, point: str, layer: int, writes: Sequence[Write]) -> None:
        """Put parts of a stream, or of a block's output, in place of what was written there.

        What is written later stays away. Raises TraceError for what is not part of the stream.
        """
        if point not in _BLOCKS:
            raise TraceError(
                f"Features of {point} are not parts of the stream; there are {', '.join(_BLOCKS)}."
            )
        count = _BLOCKS[point] + 2 * layer
        if count > len(self.blocks):
            return
        if point.startswith("resid"):
            self.blocks[:count] = [Block("features", layer, writes)]
        else:
            self.blocks[count - 1] = self.blocks[count - 1]._replace(writes=writes)

    def below(self, layer: int) -> "Written":
        """What was written in front of an earlier layer."""
        found = copy(self)
        found.blocks = self.blocks[: 1 + 2 * layer]
        return found

    def vectors(self) -> list[tuple[Component, Hidden]]:
        """Each part of the stream, (batch, position, d_model)."""
        found = list[tuple[Component, Tensor]]()
        for block in self.blocks:
            output, after = block.output, block.after
            for write in block.writes:
                parts = write.vectors()
                parts = parts if output is None else output.carry(parts)
                found += zip(write.components, parts, strict=True)
            like = found[0][1]
            if output is not None and output.bias is not None:
                found.append((block.bias("output norm"), output.bias.expand_as(like)))
            if after is not None:
                found = [(component, after.carry(part)) for component, part in found]
                if after.bias is not None:
                    found.append((block.bias("norm"), after.bias.expand_as(like)))
        return found

    def gathered(self) -> "Written":
        """These writes with the vectors of all components side by side, for many readers."""
        components, vectors = zip(*self.vectors(), strict=True)
        found = copy(self)
        found.blocks = [Block("stream", None, [Write(components, torch.stack(vectors))])]
        return found

    def numbers(
        self, reader: Reader
    ) -> tuple[tuple[Component, ...], Float[Tensor, "component position read"]]:
        """What each component wrote into each number, of one sentence; the sum is the number."""
        names, found = list[Component](), list[Tensor]()
        for block, behind, own in self._back(reader):
            if block.after is not None and block.after.bias is not None:
                names.append(block.bias("norm"))
                found.append(behind.constant(block.after.bias)[None])
            if block.output is not None and block.output.bias is not None:
                within = behind if block.after is None else behind.in_front_of(block.after)
                names.append(block.bias("output norm"))
                found.append(within.constant(block.output.bias)[None])
            for write in reversed(block.writes):
                names += reversed(write.components)
                found.append(own.of(write).flip(0))
        return tuple(reversed(names)), torch.cat(found).flip(0)

    def readers(self, reader: Reader) -> dict[tuple[str, int | None], Reader]:
        """What reads the same of what each attention and each MLP wrote, by name and layer."""
        return {(block.name, block.layer): own for block, _, own in self._back(reader)}

    def _back(self, reader: Reader) -> Iterator[tuple[Block, Reader, Reader]]:
        """For each block, last to first: what reads the stream after it, and its output."""
        for block in reversed(self.blocks):
            before = reader if block.after is None else reader.in_front_of(block.after)
            own = before if block.output is None else before.in_front_of(block.output)
            yield block, reader, own
            reader = before


def embedding_of(trace: Trace) -> list[tuple[Component, Float[Tensor, "1 position d_model"]]]:
    """What enters layer 0, as the sum of its word, position and segment embeddings and biases.

    One part where it is not that sum: an edit wrote it, or positions were given.
    """
    body, inputs = trace.unchanged_model().body, trace.inputs
    parts = [(Component("word embedding"), wide(body.word(inputs.ids) * body.word_scale))]
    if body.added_positions is not None:
        rows = body.added_positions(body.positions(inputs.ids))
        parts.append((Component("position embedding"), wide(rows).expand_as(parts[0][1])))
    if body.segment is not None:
        kinds = torch.zeros_like(inputs.ids) if inputs.segments is None else inputs.segments
        parts.append((Component("segment embedding"), wide(body.segment(kinds))))
    if body.embed_norm is not None:
        norm = FrozenNorm.of(body.embed_norm, sum(part for _, part in parts))  # type: ignore[arg-type]
        parts = [(component, norm.carry(part)) for component, part in parts]
        if norm.bias is not None:
            parts.append((Component("embedding norm bias"), norm.bias.expand_as(parts[0][1])))
    if body.embed_project is not None:
        width = body.config.d_embed
        matrix, offset = matrix_of(body.embed_project, width), offset_of(body.embed_project, width)
        parts = [(component, part @ wide(matrix)) for component, part in parts]
        if offset is not None:
            bias = wide(offset).expand_as(parts[0][1])
            parts.append((Component("embedding projection bias"), bias))
    total, embed = sum(part for _, part in parts), wide(trace.embed)
    limit = sum_rounding(trace.embed.dtype) * embed.abs().max()
    if (total - embed).abs().max() > limit:
        return [(Component("embed"), embed)]
    return parts


def _attention(at: LayerTrace, *, heads: bool, folded: bool) -> Block:
    """What the attention of a layer wrote: its heads and its bias, or all as one."""
    attention, layer = layer_of(at).attention, at.layer
    if not heads:
        writes = [Write((Component("attention", layer),), wide(at.attn_out)[None])]
        return _block(at, "attention", writes, lambda: at.attn_out, lambda: at.resid_pre)
    names = tuple(Component("head", layer, head) for head in range(attention.n_heads))
    # An edit may have written what the heads add.
    if folded and (layer >= len(at.trace.records) or "head_out" not in at.trace.records[layer]):
        writes = [Write(names, wide(at.z).transpose(0, 1), wide(attention.W_O))]
    else:
        writes = [Write(names, wide(at.head_out).transpose(0, 1))]
    if attention.b_O is not None:
        bias = wide(attention.b_O).expand(*writes[0].values[:1].shape[:-1], -1)
        writes.append(Write((Component("attention bias", layer),), bias))
    return _block(at, "attention", writes, lambda: at.attn_out, lambda: at.resid_pre)


def _mlp(at: LayerTrace, *, norms_only: bool) -> Block:
    """What the MLP of a layer wrote, or its norms without that; nothing without an MLP."""
    if layer_of(at).mlp is None:
        return Block("mlp", at.layer, [], None, None)
    if norms_only:
        return _block(at, "mlp", [], lambda: at.mlp_out, lambda: at.resid_mid)
    mlp_out = at.mlp_out
    writes = [Write((Component("mlp", at.layer),), wide(mlp_out)[None])]
    return _block(at, "mlp", writes, lambda: mlp_out, lambda: at.resid_mid)


def _block(
    at: LayerTrace,
    name: str,
    writes: list[Write],
    wrote: Callable[[], Tensor],
    before: Callable[[], Tensor],
) -> Block:
    """What a block wrote, with its norms as they were; `wrote` and `before` are read for these."""
    layer, output, after = layer_of(at), None, None
    if getattr(layer, f"{name}_output_norm") is not None:
        output = FrozenNorm.of_layer(at, f"{name}_output_norm", wrote())
    if layer.after:
        after = FrozenNorm.of_layer(at, f"{name}_norm", before() + wrote())
    return Block(name, at.layer, writes, output, after)


def live_written(stack: StackTrace, layer: int, point: str, *, heads: bool) -> Written:
    """What was written to the stream of an attached model, in front of a point of it."""
    start = Write((Component("embed"),), wide(stack[0].resid_pre)[None])
    blocks = [Block("embedding", None, [start])]
    for each in range(layer + (point != "resid_pre")):
        at = stack[each]
        blocks.append(_live(at, "attn_out", heads=heads))
        if each < layer or point == "resid_post":
            blocks.append(_live(at, "mlp_out", heads=heads))
    found = Written.__new__(Written)
    found.blocks = blocks
    return found


def _live(at: AttachedLayer, name: str, *, heads: bool) -> Block:
    """What attention or the MLP of an attached model wrote."""
    kind, layer = ("attention" if name == "attn_out" else "mlp"), at.layer
    factor, output, after = at.way_of(name)
    wrote = wide(at.quantity(name))
    writes = [Write((Component(kind, layer),), wrote[None])]
    if kind == "attention" and heads:
        parts = wide(at.head_out).transpose(0, 1)
        names = tuple(Component("head", layer, head) for head in range(len(parts)))
        writes = [Write(names, parts)]
        if at.has_bias:
            rest = (wrote - parts.sum(0))[None]
            writes.append(Write((Component("attention bias", layer),), rest))
    own = None if output is None else FrozenNorm.of_live(output)
    if own is None:
        writes = [each._replace(values=factor * each.values) for each in writes]
    else:
        bias = None if own.bias is None else factor * own.bias
        own = replace(own, weight=factor * own.weight, bias=bias)
    return Block(kind, layer, writes, own, None if after is None else FrozenNorm.of_live(after))


@dataclass(frozen=True, eq=False)
class EmbeddingParts:
    """The embeddings of a batch; `embed` is the norm (and projection) of the sum of the parts.

    word      the row of the word table for each token, times the model's factor if it has one
    position  the row of the position table; None without such a table (rotary models)
    segment   the row of the segment table; None without one
    embed     what enters layer 0
    """

    word: Float[Tensor, "batch position d_embed"]
    position: Float[Tensor, "#batch position d_embed"] | None
    segment: Float[Tensor, "batch position d_embed"] | None
    embed: Hidden


def embedding_parts(
    model: Model, text: Input, *, positions: object = None, segments: object = None
) -> EmbeddingParts:
    """The embeddings of a text, with its own or with given positions and segments.

    `positions` and `segments` are whole numbers, one a token: a list for one sentence, or (batch,
    position) with padding in. Positions count from 0, also in RoBERTa. Source: Devlin et al. 2019,
    section 3, "Input/Output Representations".

    Raises TokenizationError for text that the model cannot read and for positions or segments that
    it does not have, and TraceError where the model has no such table.
    """
    check_model(model)
    body, config, inputs = model.body, model.config, model.inputs(text)
    ids = inputs.ids
    table = body.added_positions
    rows = body.positions(ids).expand(ids.shape) if table is not None else None
    if positions is not None:
        if rows is None:
            raise TraceError(
                f"positions: {model.name} has no table of positions in its embeddings (they are "
                f"{config.positions}); expected a model whose positions are learned."
            )
        chosen = _numbers("positions", positions, ids, config.n_positions, model.name)
        moved = chosen + config.position_offset
        rows = moved if inputs.mask is None else moved.where(inputs.mask, rows)
    if segments is None:
        kinds = torch.zeros_like(ids) if inputs.segments is None else inputs.segments
    elif body.segment is None:
        raise TraceError(f"segments: {model.name} does not tell two texts apart by segments.")
    else:
        kinds = _numbers("segments", segments, ids, config.n_segments, model.name)
    return EmbeddingParts(
        word=body.word(ids) * body.word_scale,
        position=None if table is None or rows is None else table(rows),
        segment=None if body.segment is None else body.segment(kinds),
        embed=body.embed(ids, kinds, rows),
    )


def _numbers(name: str, given: object, ids: TokenIds, size: int, where: str) -> TokenIds:
    """The numbers as a tensor like `ids`, all of them below `size`."""
    return in_range(beside(given, ids, name), size, name, where)
