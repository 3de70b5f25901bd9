"""Layer normalisation: LayerNorm and RMSNorm."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.quantities import Float

Divisors = tuple[Tensor, Tensor]
"""What a norm is to divide by, and what it divides by on its own: (..., 1) each."""


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis.

    LayerNorm   (x − mean) / sqrt(variance + eps) · weight + bias (Ba, Kiros and Hinton 2016,
                equation 4)
    RMSNorm     x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich 2019, equation 4): it does not
                take the mean away, so `centres` is False; with `plus_one` · (1 + weight)
    """

    bias: nn.Parameter | None

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.centres = config.norm == "layer"
        self.plus_one = config.norm_plus_one and not self.centres
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        has_bias = self.centres and config.norm_bias
        values = nn.Parameter(torch.empty(width), requires_grad=False) if has_bias else None
        self.register_parameter("bias", values)
        self.eps = config.norm_eps

    @property
    def scale(self) -> Float[Tensor, " width"]:
        """What the divided x is multiplied by."""
        return 1 + self.weight if self.plus_one else self.weight

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x with a variance, or a mean square, of 1 over its last axis, then scaled and shifted."""
        if self.centres:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.rms_norm(x, self.weight.shape, self.scale, self.eps)


def centred(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    """x as the norm divides it: LayerNorm takes the mean of each row away, RMSNorm nothing."""
    return x - x.mean(-1, keepdim=True) if norm.centres else x


def deviation(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
    """What the norm divides this x by: the root of the mean square of `centred` + eps."""
    return (centred(norm, x).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def divisor(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
    """`deviation` in the dtype of x, computed in float32 or wider as the norm itself does."""
    return deviation(norm, _wide(x)).to(x.dtype)


def normed(
    norm: Norm | None, x: Float[Tensor, "*rows width"], divisors: Divisors | None = None
) -> Float[Tensor, "*rows width"]:
    """norm(x), or x without a norm; with `divisors` what it is divided by is the first of them.

    norm(x) + weight · centred(x) · (1 / first − 1 / second): where both are the same the second
    summand is 0, so the result is norm(x) to the bit.
    """
    if norm is None:
        return x
    plain = norm(x)
    if divisors is None:
        return plain
    to, own = map(_wide, divisors)
    moved = norm.scale * centred(norm, _wide(x)) * (1 / to - 1 / own)
    return (plain + moved).to(plain.dtype)


def _wide(x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    return x.float() if x.dtype.itemsize < 4 else x
