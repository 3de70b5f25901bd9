"""Attention flow: how much can flow from one output position down to each input position.

The layers are a graph: position i above a layer is joined to position j below it by an edge
of capacity A[i, j], A as in rollout.py. The flow of a pair of positions is the largest that the
edges between them can carry.

Source: Abnar and Zuidema 2020, section 3; the maximum flow after Dinic 1970.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.positions import one_position_each, real_tokens
from minibert.analysis.rollout import check_choices, mixing, result_dtype
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.places import check_index
from minibert.trace.read import Trace

__all__ = ["LARGEST", "Flow", "attention_flow", "maximum_flow"]

# Seconds a position in 12 layers; the work grows with the cube of the tokens at least.
LARGEST = 64

Matrices = Sequence[np.ndarray[tuple[int, int], np.dtype[np.float64]]]


@dataclass(frozen=True, eq=False)
class Flow:
    """The maximum flow from one output position to each input position, 0 to 1."""

    positions: tuple[int, ...]
    """The output position of each sentence."""
    values: Float[Tensor, "batch key"]
    labels: tuple[tuple[str, ...], ...]

    @property
    def shares(self) -> Float[Tensor, "batch key"]:
        """The values of each sentence divided by their sum, as in the authors' code."""
        return self.values / self.values.sum(-1, keepdim=True)

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of the flow to each token, as bars.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        index = check_index("sentence", sentence, len(self.labels))
        return plots.token_bars(
            self.values,
            self.labels,
            sentence=sentence,
            title=f"Attention flow from position {self.positions[index]}",
            unit="maximum flow",
            position=self.positions[index],
            path=path,
        )


def attention_flow(
    trace: Trace,
    position: int | Sequence[int],
    *,
    layer: int | None = None,
    reduce: str = "mean",
    residual: float | int = 0.5,
) -> Flow:
    """The flow from one position of what leaves a layer (the last one) to each embedding.

    `position` and the options are those of `rollout_of`; padding gets 0. Computed on the CPU, one
    maximum flow for each input position. The result is float64 for a trace in float64, otherwise
    float32.
    Raises TraceError as `rollout_of`, and for more than 64 tokens: take `rollout_of` for those.
    """
    last = check_choices(trace, layer, reduce, residual)
    positions, lengths = one_position_each(trace, position), real_tokens(trace)
    N = trace.allowed.position
    if N > LARGEST:
        raise TraceError(
            f"Attention flow of {N} tokens is {N} maximum flows over {N} x {N} edges a layer; "
            f"expected at most {LARGEST} tokens. rollout_of answers for longer texts."
        )
    with torch.no_grad():
        layers = [_matrix(trace, index, reduce, residual) for index in range(last, -1, -1)]
    values = torch.zeros(len(lengths), N, dtype=torch.float64)
    for sentence, length in enumerate(lengths):
        matrices = [matrix[sentence, :length, :length] for matrix in layers]
        for key in range(length):
            values[sentence, key] = maximum_flow(matrices, positions[sentence], key)
    return Flow(positions, values.to(result_dtype(trace)), trace.tokens.strings)


def _matrix(
    trace: Trace, layer: int, reduce: str, residual: float | int
) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    rows = mixing(trace, layer, reduce=reduce, residual=residual)
    return torch.cat([part for _, part in rows], dim=1).double().cpu().numpy()


def maximum_flow(matrices: Matrices, source: int, sink: int) -> float:
    """The largest flow from a position above the first matrix to one below the last.

    matrices[l][i, j] is the capacity from position i above layer l to position j below it.
    """
    if len(matrices) == 1:
        return float(matrices[0][source, sink])
    network = _Network(matrices, source, sink)
    total = 0.0
    while network.measure_distances():
        while pushed := network.push():
            total += pushed
    return total


class _Network:
    """What each edge can still carry, in both directions. A node is (matrices above it, position).

    left[node] maps each neighbour to what can still go there.
    """

    def __init__(self, matrices: Matrices, source: int, sink: int) -> None:
        size, depth = len(matrices[0]), len(matrices)
        self.source, self.sink = source, depth * size + sink
        self.left: list[dict[int, float]] = [{} for _ in range((depth + 1) * size)]
        for level, matrix in enumerate(matrices):
            for above, row in enumerate(matrix.tolist()):
                # Nothing else is above the first matrix or below the last: dead ends.
                if level == 0 and above != source:
                    continue
                for below, capacity in enumerate(row):
                    if capacity > 0 and (level < depth - 1 or below == sink):
                        upper, lower = level * size + above, (level + 1) * size + below
                        self.left[upper][lower] = capacity
                        self.left[lower][upper] = 0.0
        self.neighbours = [list(edges) for edges in self.left]

    def measure_distances(self) -> bool:
        """Count the steps to the sink from every node; False where the source cannot reach it."""
        # From the sink up, against the edges: neighbours are mutual.
        self.distance = [-1] * len(self.left)
        self.distance[self.sink] = 0
        reached = [self.sink]
        for node in reached:
            for neighbour in self.left[node]:
                if self.distance[neighbour] < 0 and self.left[neighbour][node] > 0:
                    self.distance[neighbour] = self.distance[node] + 1
                    reached.append(neighbour)
        # Edges that were tried in vain are not tried again until the distances change.
        self.tried = [0] * len(self.left)
        return self.distance[self.source] >= 0

    def push(self) -> float:
        """Send what fits along one shortest path; 0 when no such path is left."""
        path = self._shortest_path()
        if not path:
            return 0.0
        steps = list(pairwise(path))
        amount = min(self.left[a][b] for a, b in steps)
        for a, b in steps:
            self.left[a][b] -= amount
            self.left[b][a] += amount
        return amount

    def _shortest_path(self) -> list[int]:
        path = [self.source]
        while path and path[-1] != self.sink:
            step = self._step_from(path[-1])
            if step is not None:
                path.append(step)
                continue
            path.pop()
            if path:
                self.tried[path[-1]] += 1
        return path

    def _step_from(self, node: int) -> int | None:
        """The next neighbour that is one step nearer to the sink and can be reached."""
        neighbours, left = self.neighbours[node], self.left[node]
        for number in range(self.tried[node], len(neighbours)):
            neighbour = neighbours[number]
            if self.distance[neighbour] == self.distance[node] - 1 and left[neighbour] > 0:
                self.tried[node] = number
                return neighbour
        return None
