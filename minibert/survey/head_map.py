"""What the distances between heads look like: points in a plane, clusters, and nearness in layers.

Source: Clark et al. 2019, section 6, who draw the heads by metric multidimensional scaling of
their Jensen-Shannon divergences and find that heads of one layer are often close to each other.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minibert.analysis.arguments import whole_number
from minibert.errors import AttentionError
from minibert.survey.distances import HeadDistances

Matrix = NDArray[np.float64]

# A step that lessens the stress by less than this share of it is the last one.
_LEAST_GAIN = 1e-9
# Points closer than this share of the mean distance have no direction from each other.
_TOUCHING = 1e-12


@dataclass(frozen=True, eq=False)
class Scaling:
    """Points whose distances are as near to the given ones as was found.

    points   (entry, dimension), their mean at the origin
    stress   Kruskal's stress-1: √(Σ(d - δ)² / Σ d²) over pairs, of distances d between the points
             and the given δ; 0 is exact
    steps    how often the points were moved
    """

    points: Matrix
    stress: float
    steps: int


def metric_scaling(distances: Matrix, *, dimensions: int = 2, most_steps: int = 1000) -> Scaling:
    """Metric multidimensional scaling: the points that SMACOF finds from classical scaling.

    Each step replaces the points X by B(X)·X/n, with B(X)[i, j] = -δ[i, j]/d[i, j] and rows of B
    that sum to 0; no step makes the stress larger. The start is the same for the same distances,
    so the result is, too. Raises AttentionError for what is no matrix of distances.

    Source: de Leeuw 1977; Borg and Groenen 2005, "Modern Multidimensional Scaling", chapter 8.
    """
    given = _checked(distances)
    most_steps = whole_number("most_steps", most_steps, AttentionError, least=0)
    points = classical_scaling(given, dimensions=dimensions)
    n, steps, raw = len(given), 0, np.inf
    tiny = _TOUCHING * (given.mean() or 1.0)
    for steps in range(most_steps + 1):
        apart = _between(points)
        before, raw = raw, float(((apart - given) ** 2).sum())
        if steps == most_steps or before - raw <= _LEAST_GAIN * before < np.inf or raw == 0:
            break
        ratio = np.divide(given, apart, out=np.zeros_like(given), where=apart > tiny)
        points = (ratio.sum(1)[:, None] * points - ratio @ points) / n
    size = float((apart**2).sum())
    return Scaling(points, float(np.sqrt(raw / size)) if size else float(raw > 0), steps)


def classical_scaling(distances: Matrix, *, dimensions: int = 2) -> Matrix:
    """The points of the largest eigenvalues of the doubly centred -δ²/2: (entry, dimension).

    Exact where the distances are those of points with so many dimensions. Each axis has the sign
    that makes its largest entry positive. Raises AttentionError for what is no matrix of distances.

    Source: Torgerson 1952; Borg and Groenen 2005, chapter 12.
    """
    given = _checked(distances)
    dimensions = whole_number(
        "dimensions", dimensions, AttentionError, least=1, most=max(1, len(given))
    )
    squares = given**2
    centred = -0.5 * (squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean())
    values, vectors = np.linalg.eigh(centred)
    values, vectors = values[::-1][:dimensions], vectors[:, ::-1][:, :dimensions]
    signs = np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0))
    return vectors * signs * np.sqrt(np.maximum(values, 0.0))


class LayerCloseness(NamedTuple):
    """Whether heads of one layer are closer to each other than to heads of other layers.

    within       the mean distance of two heads of one layer, in nats
    between      the same of two heads of different layers
    nearest      the share of heads whose nearest head is in their own layer
    chance       what that share would be if the nearest were any other head alike
    """

    within: float
    between: float
    nearest: float
    chance: float


def layer_closeness(distances: HeadDistances) -> LayerCloseness:
    """Clark's finding as numbers; nan where a model has one layer, or one head a layer."""
    layers, heads = distances.shape
    layer = np.repeat(np.arange(layers), heads)
    same = layer[:, None] == layer
    other = ~np.eye(layers * heads, dtype=bool)
    mean = distances.mean
    nearest, chance = np.nan, np.nan
    if layers * heads > 1:
        nearest = float((layer[np.where(other, mean, np.inf).argmin(1)] == layer).mean())
        chance = (heads - 1) / (layers * heads - 1)
    return LayerCloseness(_mean(mean[same & other]), _mean(mean[~same]), nearest, chance)


def _mean(values: Matrix) -> float:
    return float(values.mean()) if values.size else float("nan")


def _between(points: Matrix) -> Matrix:
    return np.linalg.norm(points[:, None] - points, axis=-1)


def _checked(distances: Matrix) -> Matrix:
    """The distances in float64; AttentionError unless they are distances between entries."""
    given = np.asarray(distances, dtype=np.float64)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise AttentionError(
            f"distances have shape {given.shape}; expected one row and one column for each entry."
        )
    if not np.isfinite(given).all() or given.min() < 0:
        raise AttentionError("distances must be finite and 0 or more; these are not.")
    if not np.allclose(given, given.T, atol=1e-12) or np.diagonal(given).any():
        raise AttentionError(
            "distances must be the same in both directions, and 0 from an entry to itself; these "
            "are not."
        )
    return given
