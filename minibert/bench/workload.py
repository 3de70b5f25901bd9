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
    """The tensors of a call, and how they get new numbers.

    A seed says all numbers of query, key and value (and of the gradient of z) but some of the keys
    and values: those at `places`, of which every query sees one. They come with the call, so that
    nothing can be computed before.
    """

    problem: Problem
    places: Tensor

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

    @torch.no_grad()
    def complete(self, last: float) -> None:
        """Put the last number in its places."""
        self.problem.key.index_fill_(2, self.places, last)
        self.problem.value.index_fill_(2, self.places, last)


def inputs_of(work: Workload, device: torch.device) -> Inputs:
    """Inputs of this workload on this device; leaves of autograd where it goes backward."""
    dtype = getattr(torch, work.dtype)
    problem = drawn(work, work.real_keys(), seed=0, device=device, dtype=dtype)
    for one in (problem.query, problem.key, problem.value):
        one.requires_grad_(work.backward)
    return Inputs(problem, torch.tensor(_places(work, problem), device=device))


def _places(work: Workload, problem: Problem) -> list[int]:
    """Keys of which every query that sees any sees one: the first, and then one a window."""
    before, _ = work.window or (None, None)
    step = None if before is None else before + 1
    if work.layout == "paged":
        return list(range(0, problem.key.shape[2], step or problem.key.shape[2]))
    if work.layout == "padded":
        return list(range(0, work.tokens, step or work.tokens))
    found: list[int] = []
    first = 0
    for keys in problem.packed_keys or problem.packed or ():
        found += range(first, first + keys, step or keys)
        first += keys
    return found


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
