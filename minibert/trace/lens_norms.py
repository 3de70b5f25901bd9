"""What TransformerLens' names stand for inside norms; lens_points.py has those of all else."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from minibert.layers.norms import Norm, centred, deviation
from minibert.layers.parts import Layer
from minibert.quantities import Float
from minibert.trace.layer_view import LayerTrace, kept_scale

__all__ = ["in_layer", "norm_points", "there", "weights_of"]

Stream = Float[Tensor, "batch position width"]
# A trace, or one layer of it.
At = TypeVar("At")


def _wide(x: Stream) -> Stream:
    """In float32 or wider, as in TransformerLens."""
    return x.float() if x.dtype.itemsize < 4 else x


def norm_points(
    name: str,
    find: Callable[[At], Norm | None],
    x: Callable[[At], Stream],
    edited: Callable[[At], Tensor | None] = lambda at: None,
) -> dict[str, Callable[[At], Tensor]]:
    """The two hooks of a norm, given how to find it, its input, and what an edit has it divide by.

    They are what it divides by, and what is divided before weight and bias.
    """

    def scale(at: At) -> Tensor:
        other = edited(at)
        return deviation(there(find(at)), _wide(x(at))) if other is None else _wide(other)

    def normalized(at: At) -> Tensor:
        return centred(there(find(at)), _wide(x(at))) / scale(at)

    return {f"{name}.hook_scale": scale, f"{name}.hook_normalized": normalized}


def there(norm: Norm | None) -> Norm:
    """The norm of a place that has one."""
    assert norm is not None, "a name is in the cache only where the config has such a norm"
    return norm


def weights_of(at: LayerTrace) -> Layer:
    """The parts of a layer."""
    return at.trace.model.body.layers[at.layer]


def in_layer(
    name: str, norm: str, x: Callable[[LayerTrace], Tensor]
) -> dict[str, Callable[[LayerTrace], Tensor]]:
    """The two hooks of a norm of a layer, given its input."""

    return norm_points(
        name, lambda at: getattr(weights_of(at), norm), x, lambda at: kept_scale(at, norm)
    )
