"""What stands between a part of the stream and a logit, frozen at what it was: linear maps.

A norm divides by the size of its input and an activation lets a share of its input through.
Both depend on the whole stream. With them kept as they were for the real input, each is a linear
map, and what goes through it goes part by part.

carry   takes a part of the input to its part of the output
pull    takes a direction that reads the output to the direction that reads the same of the input
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minibert.analysis.precision import wide
from minibert.layers.linear import Linear
from minibert.layers.linear_backends import activate
from minibert.layers.norms import Divisors, Norm, RMSNorm, deviation, scale_of
from minibert.quantities import Float, Int
from minibert.trace.layer_view import divisors_of_final, divisors_of_layer
from minibert.trace.read import LayerTrace, Trace

__all__ = ["FrozenNorm", "bias_of", "gate", "weight_of"]


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm with what it divided by: weight · (x − mean) / deviation + bias.

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
        bias = None if isinstance(norm, RMSNorm) or norm.bias is None else wide(norm.bias)
        centres = not isinstance(norm, RMSNorm)
        divided_by = deviation(norm, wide(x))
        if divisors is not None:
            to, own = map(wide, divisors)
            # As in `normed`, so that a rounded scale that nobody changed changes nothing.
            divided_by = 1 / (1 / divided_by + 1 / to - 1 / own)
        return cls(wide(scale_of(norm)), bias, divided_by, centres)

    @classmethod
    def of_layer(
        cls, at: LayerTrace, name: str, x: Float[Tensor, "batch position width"]
    ) -> "FrozenNorm | None":
        """The map that a norm of this layer was, "mlp_norm" for example; None without such a norm.

        x is what the norm reads.
        """
        norm = getattr(at.trace.model.body.layers[at.layer], name)
        return None if norm is None else cls.of(norm, x, divisors_of_layer(at, name, x))

    @classmethod
    def of_final(cls, trace: Trace) -> "FrozenNorm | None":
        """The map that the norm behind the layers was; None without one."""
        norm, last = trace.model.body.final_norm, trace[-1].resid_post
        return None if norm is None else cls.of(norm, last, divisors_of_final(trace, last))

    def at(self, position: int) -> "FrozenNorm":
        """The same map at one position of each sentence."""
        return replace(self, deviation=self.deviation[:, position])

    def carry(self, part: Float[Tensor, "*parts width"]) -> Float[Tensor, "*parts width"]:
        """weight · (part − mean) / deviation; the bias belongs to no part."""
        return self.scaled(part) / self.deviation

    def scaled(self, part: Float[Tensor, "*parts width"]) -> Float[Tensor, "*parts width"]:
        """weight · (part − mean): what the norm does to every row alike."""
        return self.weight * self._centred(part)

    def pull(self, direction: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The transpose of `carry`: pull(direction)·part = direction·carry(part)."""
        return self._centred(self.weight * direction) / self.deviation

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centres else x


def gate(pre: Float[Tensor, "*rows width"], activation: str) -> Float[Tensor, "*rows width"]:
    """The share of its input that an activation let through: activation(pre) / pre.

    For gelu it is Φ(pre), for relu 1 or 0. Every activation here is 0 at 0, so that the gate
    times pre is the activation exactly.
    """
    post = activate(pre, activation)
    return torch.where(pre == 0, 0, wide(post) / torch.where(pre == 0, 1, wide(pre)))


def weight_of(
    linear: Linear, outputs: Int[Tensor, " d_out"] | None = None
) -> Float[Tensor, "d_out d_in"]:
    """A linear layer's weight as it is now, or its rows for some outputs; see `Linear.matrix`."""
    weight = linear.matrix.mT
    return wide(weight if outputs is None else weight[outputs])


def bias_of(linear: Linear) -> Float[Tensor, " d_out"] | None:
    """A linear layer's bias as it is now; None where it has none."""
    bias = linear.offset
    return None if bias is None else wide(bias)
