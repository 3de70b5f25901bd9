"""Queries and keys are turned by where they stand: rotary.py says how fast."""

import torch
from torch import Tensor

from minibert.layers.rotary import Frequencies, Rotary
from minibert.quantities import Float, HeadVectors, Int

Turns = tuple[
    Float[Tensor, "#batch 1 position rotated"], Float[Tensor, "#batch 1 position rotated"]
]
Positions = Int[Tensor, "#batch position"]


def turns(
    rotary: Rotary, positions: Positions, lengths: Positions | None, dtype: torch.dtype
) -> Turns:
    """Cosine and sine for tokens at these positions, for both dimensions of each pair.

    The sine has the sign that `rotate` needs: − for the first of a pair, + for the second.

    `lengths` has the tokens of the text that each token belongs to; None: the last position + 1.
    Angles are computed in float64: in float32 one at position 8,000 is off by 2e-4.
    """
    if not rotary.depends_on_length:
        frequencies = _tensor([rotary.frequencies(0)], positions)[0]
    else:
        if lengths is None:
            lengths = positions.amax(dim=-1, keepdim=True) + 1
        each, which = lengths.unique(return_inverse=True)
        frequencies = _tensor([rotary.frequencies(n) for n in each.tolist()], positions)[which]
    angles = positions[..., None] * frequencies
    cosine, sine = angles.cos() * rotary.amplitude, angles.sin() * rotary.amplitude
    return (
        torch.cat((cosine, cosine), dim=-1)[:, None].to(dtype),
        torch.cat((-sine, sine), dim=-1)[:, None].to(dtype),
    )


def _tensor(frequencies: list[Frequencies], positions: Positions) -> Float[Tensor, "text pair"]:
    return torch.tensor(frequencies, dtype=torch.float64, device=positions.device)


def rotate(vectors: HeadVectors, turned: Turns) -> HeadVectors:
    """The vectors with each pair (i, i + dims/2) of their first dims dimensions turned."""
    # Under autocast the vectors are narrower than the weights, for whose dtype `turned` was made.
    cosine, sine = (part.to(vectors.dtype) for part in turned)
    dims = cosine.shape[-1]
    first, rest = vectors[..., :dims], vectors[..., dims:]
    # The other dimension of each pair in its place, by one copy.
    first = torch.addcmul(first * cosine, first.roll(dims // 2, dims=-1), sine)
    return torch.cat((first, rest), dim=-1) if rest.shape[-1] else first
