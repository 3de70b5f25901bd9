"""What is timed: the inputs of a workload at its full size, which get new numbers before each call.

The workloads themselves are declared in `kernels/check/workload.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.kernels.check.cases import drawn
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload

_CUDA_TOKENS = [512, 1024, 2048, 4096, 8192, 16384]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of a call; query, key, value and the gradient of z get new numbers for each."""

    problem: Problem

    @property
    def vectors(self) -> dict[str, Tensor]:
        """query, key and value, and z_gradient where there is one."""
        given = self.problem.tensors()
        names = ("query", "key", "value", "z_gradient")
        return {name: given[name] for name in names if name in given}

    @torch.no_grad()
    def refresh(self, seed: int) -> None:
        """The numbers of this seed, in the same memory."""
        generator = torch.Generator(self.problem.query.device).manual_seed(seed)
        for one in self.vectors.values():
            one.normal_(generator=generator)


def projected(z: Tensor, seed: int) -> Tensor:
    """The sum of all numbers of z, each with a weight that the seed says, in float64."""
    generator = torch.Generator(z.device).manual_seed(seed)
    weights = torch.randn(z.shape, generator=generator, device=z.device)
    return (z.double() * weights).sum()


def inputs_of(work: Workload, device: torch.device) -> Inputs:
    """Inputs of this workload on this device; leaves of autograd where it goes backward."""
    dtype = getattr(torch, work.dtype)
    problem = drawn(work, work.real_keys(), seed=0, device=device, dtype=dtype)
    for one in (problem.query, problem.key, problem.value):
        one.requires_grad_(work.backward)
    return Inputs(problem)


def workloads(
    device: torch.device,
    *,
    tokens: list[int] | None,
    heads: int | None,
    batch: int | None,
    quick: bool,
    dtypes: list[str],
    orders: list[bool],
    d_head: int,
    lengths: str,
    backward: bool,
) -> list[Workload]:
    """Every combination; where a size is not given, the usual one for the device."""
    if device.type == "cuda":
        usual, total, usual_heads = [1024, 4096] if quick else _CUDA_TOKENS, 16384, 2048 // d_head
    else:
        usual, total, usual_heads = [256] if quick else [512, 1024], 1, 4
    return [
        Workload(
            batch or max(1, total // n),
            heads or max(1, usual_heads),
            n,
            d_head,
            dtype,
            causal,
            lengths,
            backward=backward,
        )
        for dtype in dtypes
        for causal in orders
        for n in tokens or usual
    ]


def cut_for(
    work: Workload,
    device: torch.device,
    *,
    tokens: list[int] | None,
    heads: int | None,
    batch: int | None,
    quick: bool,
) -> list[Workload]:
    """The workload as large as this device times it in a sitting, unless sizes are given.

    On a GPU it is whole; on a CPU one sentence of at most 1024 tokens and 8 heads.
    """
    if device.type == "cuda":
        most = 1024 if quick else work.tokens
    else:
        most, heads, batch = 256 if quick else 1024, heads or 8, batch or 1
    sizes = tokens or [min(work.tokens, most)]
    return [work.cut(size, batch=batch, heads=heads) for size in sizes]
