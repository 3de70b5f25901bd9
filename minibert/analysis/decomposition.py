"""The residual stream as the sum of everything that was written to it.

Pre-norm families add to the stream and nothing else happens to it. In post-norm families each
block ends in a LayerNorm; with its standard deviation frozen it is an affine map (frozen_norm.py),
so that every earlier component is carried through it, and its bias is a component of its own. Where
a block's output goes through a norm before the sum (Gemma 2, OLMo 2), what the block wrote is
carried through that one. The sum is the stream exactly in all of them, up to rounding.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", section
"High-level architecture"; for post-norm, Kobayashi et al. 2021 and Modarressi et al. 2022 carry
vectors through LayerNorm in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace
from minibert.analysis.components import Component
from minibert.analysis.frozen_norm import FrozenNorm
from minibert.analysis.positions import at_positions, chosen_positions
from minibert.analysis.precision import wide
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float, Hidden
from minibert.trace.places import check_index
from minibert.trace.read import LayerTrace, Trace

__all__ = ["Decomposition", "decompose"]

_POINTS = ("resid_pre", "resid_mid", "resid_post")
# How far a sum may be off, as a share of the largest part; in half precision far more.
# Rows of the stream that are taken apart at once: what is held beside the result.
_ROWS = 32
_ROUNDING, _HALF_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}, 0.1


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The parts of one residual stream, in the order in which they were written."""

    parts: Float[Tensor, "component batch position d_model"]
    """What each component contributes, as it stands at this point of the stream."""
    components: tuple[Component, ...]
    layer: int
    point: str
    positions: tuple[tuple[int, ...], ...]
    """The positions of each sentence; what the parts hold behind its last one is padding."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each component, as "head 9-6"."""
        return tuple(component.label for component in self.components)

    @property
    def total(self) -> Hidden:
        """The sum of the parts: the stream itself, up to rounding."""
        return self.parts.sum(0)

    @property
    def cumulative(self) -> Float[Tensor, "component batch position d_model"]:
        """The sum of each part and all before it; the last one is the stream.

        In pre-norm families the sums up to each mlp are the streams of the layers below.
        """
        return self.parts.cumsum(0)

    def __getitem__(self, label: str) -> Hidden:
        """The part of one component, by its label. Raises TraceError where there is none."""
        if label not in self.labels:
            raise TraceError(f"There is no component {label!r}; {_some(self.labels)}.")
        return self.parts[self.labels.index(label)]

    def shares(self) -> Float[Tensor, "component batch position"]:
        """The share of each part in the stream: part·stream / ‖stream‖²; they sum to 1."""
        total = self.total
        return (self.parts * total).sum(-1) / total.square().sum(-1)

    def plot(
        self,
        path: str | Path | None = None,
        *,
        position: int = -1,
        sentence: int = 0,
        count: int = 15,
    ) -> Figure:
        """The matplotlib Figure of the `count` largest shares in the stream at one position.

        `position` counts those that were computed of the sentence. Saved where `path` is given, as
        SVG, PDF or PNG by its name. Raises TraceError for a position or sentence that is not
        there, and MinibertError without matplotlib.
        """
        row = check_index("sentence", sentence, self.parts.shape[1])
        column = check_index("position", position, len(self.positions[row]))
        return plots.terms(
            self.shares()[:, row, column],
            self.labels,
            count=count,
            title=f"{self.point} {self.layer} at position {self.positions[row][column]}",
            unit="share of the stream",
            total="all of them 1",
            path=path,
        )

    def __repr__(self) -> str:
        return f"Decomposition({self.point} {self.layer}: {len(self.components)} components)"


@torch.no_grad()
def decompose(
    trace: Trace,
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
    unless `heads=False`, is no part.

    Gradients are not kept. Raises TraceError for a layer, point or position that does not exist or
    was not computed.
    """
    check_trace(trace)
    layer = trace[layer].layer
    if not isinstance(point, str) or point not in _POINTS:
        raise TraceError(f"{point!r:.80} is no residual stream; there are {', '.join(_POINTS)}.")
    chosen = chosen_positions(trace, positions)
    columns = [list(range(trace.allowed.position))] * len(chosen) if positions is None else chosen
    # Of a trace with until= the z of the last layer is computed here, once for all positions.
    whole = positions is None and trace.until is None
    cut = trace if whole else at_positions(trace, columns)
    size = max(1, _ROWS // len(chosen))
    parts = torch.empty(0)
    for first in range(0, len(columns[0]), size):
        some = slice(first, first + size)
        places = [each[some] if whole else range(len(each))[some] for each in columns]
        stream = _written(at_positions(cut, places), layer, point, heads)
        if trace.edited_from is not None:
            _check_sum(stream.parts, getattr(cut[layer], point)[:, some], f"{point} {layer}")
        if not first:
            rows = (len(chosen), len(columns[0]), trace.config.d_model)
            parts = stream.parts[0].new_empty(len(stream.parts), *rows)
        for target, part in zip(parts, stream.parts, strict=True):
            target[:, some] = part
    return Decomposition(parts, tuple(stream.components), layer, point, chosen)


def _written(trace: Trace, layer: int, point: str, heads: bool) -> "_Stream":
    """What was written up to this point of the stream."""
    stream = _Stream(trace)
    for each in range(layer + (point != "resid_pre")):
        stream.attention(trace[each], heads=heads)
        if each < layer or point == "resid_post":
            stream.mlp(trace[each])
    return stream


def _check_sum(written: Sequence[Tensor], stream: Tensor, name: str) -> None:
    """Raise TraceError where an edit wrote something that no component did."""
    parts = torch.stack(list(written))
    largest = torch.linalg.vector_norm(parts, torch.inf, dim=(0, -1))
    limit = _ROUNDING.get(stream.dtype, _HALF_ROUNDING) * largest
    if ((parts.sum(0) - wide(stream)).abs().amax(-1) > limit).any():
        raise TraceError(
            f"{name} of this trace is not the sum of what its components wrote: it was edited "
            "where none of them writes (resid_pre, resid_mid, resid_post, or attn_out, which "
            "heads=False takes as it is). Edit embed, z, head_out or mlp_out, or decompose the "
            "unedited trace."
        )


class _Stream:
    """The parts so far, each with the shape (batch, position, d_model)."""

    def __init__(self, trace: Trace) -> None:
        self.layers = trace.model.body.layers
        self.components = [Component("embed")]
        self.parts = [wide(trace.embed)]

    def attention(self, here: LayerTrace, *, heads: bool) -> None:
        """Add what a layer's attention wrote."""
        weights, layer = self.layers[here.layer], here.layer
        written: list[tuple[Component, Tensor]] = []
        if heads:
            head_out = here.head_out
            for head in range(head_out.shape[1]):
                written.append((Component("head", layer, head), head_out[:, head]))
            if weights.attention.b_O is not None:
                # The sum over no heads leaves the bias.
                bias = weights.attention.sum_of_heads(head_out[:, :0])
                written.append((Component("attention bias", layer), bias))
        else:
            written.append((Component("attention", layer), here.attn_out))
        output = FrozenNorm.of_layer(here, "attention_output_norm", here.attn_out)
        self._write("attention", layer, written, output)
        if weights.after:
            after = FrozenNorm.of_layer(here, "attention_norm", here.resid_pre + here.attn_out)
            self._carry("attention norm bias", layer, after)

    def mlp(self, here: LayerTrace) -> None:
        """Add what a layer's MLP wrote."""
        mlp_out = here.mlp_out
        output = FrozenNorm.of_layer(here, "mlp_output_norm", mlp_out)
        self._write("mlp", here.layer, [(Component("mlp", here.layer), mlp_out)], output)
        if self.layers[here.layer].after:
            after = FrozenNorm.of_layer(here, "mlp_norm", here.resid_mid + mlp_out)
            self._carry("mlp norm bias", here.layer, after)

    def _write(
        self,
        block: str,
        layer: int,
        written: Sequence[tuple[Component, Tensor]],
        frozen: FrozenNorm | None,
    ) -> None:
        """Add what a block wrote, through the norm of its output."""
        for component, part in written:
            self._add(component, part if frozen is None else frozen.carry(wide(part)))
        if frozen is not None and frozen.bias is not None:
            bias = frozen.bias.expand(self.parts[0].shape)
            self._add(Component(f"{block} output norm bias", layer), bias)

    def _carry(self, name: str, layer: int, norm: FrozenNorm | None) -> None:
        assert norm is not None, "a layer with norms behind its sums has both"
        self.parts = [norm.carry(part) for part in self.parts]
        if norm.bias is not None:
            self._add(Component(name, layer), norm.bias.expand(self.parts[0].shape))

    def _add(self, component: Component, part: Tensor) -> None:
        self.components.append(component)
        self.parts.append(wide(part))


def _some(labels: tuple[str, ...], most: int = 8) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"there are {', '.join(labels[:most])}{more}"
