"""Whether the queries of a head use the same few dimensions: Vig's neurons as a number.

A score is a sum over d_head products query·key. Vig saw that a head which looks at delimiters has
the same few large products for every query, and that a head which looks at the next word has not:

    shared = mean over pairs of queries of |largest(i) ∩ largest(j)| / top

where largest(i) are the `top` dimensions of query i with the largest product with the key that it
attends to most. Two queries that choose at random share top / d_head.

Source: Vig 2019, "Deconstructing BERT, part 2", who shows it in pictures. How many dimensions
carry a head is in survey/query_key_dimensions.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace, whole_number
from minibert.analysis.precision import wide
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.read import Trace

__all__ = ["SharedDimensions", "shared_dimensions"]


@dataclass(frozen=True, eq=False)
class SharedDimensions:
    """How much of their largest products the queries of each head share, from 0 to 1.

    shared  the mean over pairs of queries of a sentence, and over sentences
    chance  what queries would share that choose `top` dimensions at random
    """

    shared: Float[Tensor, "layer head"]
    chance: float
    top: int

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure: a layer x head map of `shared`.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises MinibertError without
        matplotlib.
        """
        title = f"the {self.top} largest products, {self.chance:.2f} by chance"
        unit = "share in common"
        return plots.heat_maps(
            [plots.by_head(self.shared, title=title, unit=unit, limits=(0.0, 1.0))], path
        )


def shared_dimensions(trace: Any, *, top: int = 4) -> SharedDimensions:
    """The share of their `top` largest query·key products that two queries have in common.

    Sentences of one token have no pair and do not count. Raises TraceError for what is no trace,
    for a `top` that is none of 1 to d_head, and where no sentence has two tokens.
    """
    check_trace(trace)
    config = trace.config
    top = whole_number("top", top, TraceError, least=1, most=config.d_head)
    texts = [trace.text(row) for row in range(trace.allowed.batch)]
    several = [text for text in texts if text.allowed.position > 1]
    if not several:
        raise TraceError("No sentence has two tokens, so no two queries can be compared.")
    with torch.no_grad():
        shared = torch.stack([_of_sentence(text, top) for text in several]).mean(0)
    return SharedDimensions(shared, top / config.d_head, top)


def _of_sentence(trace: Trace, top: int) -> Float[Tensor, "layer head"]:
    heads = range(trace.config.n_heads)
    return torch.stack(
        [
            torch.stack([_of_head(trace, layer, head, top) for head in heads])
            for layer in range(len(trace))
        ]
    )


def _of_head(trace: Trace, layer: int, head: int, top: int) -> Tensor:
    at = trace[layer, head]
    query, key = wide(at.query)[0], wide(at.key)[0]
    product = query * key[at.probs[0].argmax(-1)]
    # 1 where a dimension is among a query's largest.
    large = torch.zeros_like(product).scatter(1, product.topk(top).indices, 1.0)
    common = large @ large.T / top
    N = len(common)
    return (common.sum() - N) / (N * (N - 1))
