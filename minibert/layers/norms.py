"""Layer normalisation: LayerNorm and RMSNorm."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.quantities import Float

Divisors = tuple[Tensor, Tensor]
"""What a norm is to divide by, and what it divides by on its own: (..., 1) each."""


class LayerNorm(nn.Module):
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last axis.

    Source: Ba, Kiros and Hinton 2016, equation 4.
    """

    bias: nn.Parameter | None

    def __init__(self, width: int, *, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        values = nn.Parameter(torch.empty(width), requires_grad=False) if bias else None
        self.register_parameter("bias", values)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x with mean 0 and variance 1 over its last axis, then scaled and shifted."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis; with `plus_one` · (1 + weight).

    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, width: int, *, eps: float, plus_one: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.eps = eps
        self.plus_one = plus_one

    @property
    def scale(self) -> Float[Tensor, " width"]:
        """What the normalised x is multiplied by."""
        return 1 + self.weight if self.plus_one else self.weight

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x with a mean square of 1 over its last axis, then scaled."""
        return F.rms_norm(x, self.weight.shape, self.scale, self.eps)


Norm = LayerNorm | RMSNorm


def norm_of(config: Config, width: int) -> Norm:
    """The norm that this config chose, its weights without values yet."""
    if config.norm == "rms":
        return RMSNorm(width, eps=config.norm_eps, plus_one=config.norm_plus_one)
    return LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)


def centred(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    """x as the norm divides it: LayerNorm takes the mean of each row away, RMSNorm nothing."""
    return x if isinstance(norm, RMSNorm) else x - x.mean(-1, keepdim=True)


def deviation(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
    """What the norm divides this x by: the root of the mean square of `centred` + eps."""
    return (centred(norm, x).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def scale_of(norm: Norm) -> Float[Tensor, " width"]:
    """What the divided x is multiplied by."""
    return norm.scale if isinstance(norm, RMSNorm) else norm.weight


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
    moved = scale_of(norm) * centred(norm, _wide(x)) * (1 / to - 1 / own)
    return (plain + moved).to(plain.dtype)


def _wide(x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    return x.float() if x.dtype.itemsize < 4 else x
