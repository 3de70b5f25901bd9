"""The backward of attention by Triton, without an N x N tensor.

It starts the kernels of `backward_kernels.py`: their arguments, block sizes and memory for the
outputs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from minibert.errors import AttentionError
from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.backward_kernels import (
    FILL,
    backward_delta_kernel,
    backward_key_value_kernel,
    backward_query_kernel,
)
from minibert.kernels.fused.launch import (
    Config,
    Inputs,
    Sizes,
    Strides,
    block_of_features,
    constants_of,
    inputs_of,
    longest,
    on_device,
    row_contiguous,
    sizes_of,
    strides_of,
    words,
)
from minibert.kernels.fused.tuning import configs_of
from minibert.quantities import Float

_VECTORS = ("query", "key", "value")


def backward(
    call: Call,
    z_gradient: Float[Tensor, "batch head query d_value"],
    z: Float[Tensor, "batch head query d_value"],
    lse: Float[Tensor, "batch head query"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    wanted: Iterable[str] = _VECTORS,
) -> Outputs:
    """The gradients of what is `wanted`: "query", "key", "value", "sinks".

    They have the inputs' dtypes. z and lse are what the forward gave for the same call;
    dead rows (lse −inf) take no part. Memory beside the results: 8 bytes a query and head.
    The same call gives the same bits.
    Raises AttentionError for an unknown name, for "sinks" without any, for heads too wide for this
    GPU.
    Source: Dao 2023, "FlashAttention-2", algorithm 2.
    """
    chosen = _chosen(wanted, call)
    problem, of_sinks = fill(
        problem_of(call, z_gradient), lse, z=z, lse_gradient=lse_gradient, sinks="sinks" in chosen
    )
    found: Outputs = {}
    if chosen & {"key", "value"}:
        found |= by_keys(problem)
    if "query" in chosen:
        found["query"] = by_queries(problem)
    if call.sinks is not None and of_sinks is not None:
        found["sinks"] = of_sinks.to(call.sinks.dtype)
    return {name: one for name, one in found.items() if name in chosen}


def _chosen(wanted: Iterable[str], call: Call) -> set[str]:
    chosen, known = set(wanted), (*_VECTORS, *(["sinks"] if call.sinks is not None else []))
    if unknown := chosen - set(known):
        raise AttentionError(
            f"wanted asks for the gradient of {', '.join(sorted(unknown))}; there are "
            f"{', '.join(known)}."
        )
    return chosen


#: Of queries that are written together.
_BLOCK: int = FILL.value


class Rows(NamedTuple):
    """What the forward gave for each row, as its kernels wrote it, and sums to be written.

    None for what is not given. sink_parts is (batch · head, block of queries).
    """

    z: Tensor
    lse: Tensor
    lse_gradient: Tensor | None
    sink_parts: Tensor | None


@dataclass(frozen=True, eq=False)
class Problem:
    """What all the kernels of one backward read, and how they are compiled."""

    inputs: Inputs
    call: Call
    strides: Strides
    sizes: Sizes

    @property
    def sentences(self) -> int:
        """How many there are."""
        return int(self.sizes.n_places // self.sizes.n_heads)

    def strides_of(self, vectors: Tensor) -> tuple[int, ...]:
        """The strides of vectors that lie as the inputs do."""
        batch, head, row, _ = vectors.stride()
        return (batch if self.inputs.starts is None else 0, head, row)

    def arguments(self, cut: Config, *, owns_keys: bool = False) -> tuple[dict[str, object], int]:
        """Sizes and constants of a kernel whose programs own keys or queries; the programs."""
        most, block = longest(self.call)[owns_keys], cut.block_n if owns_keys else cut.block_m
        blocks = -(-most // block)
        heads = self.inputs.key.shape[1] if owns_keys else self.sizes.n_heads
        constants = constants_of(self.call) | cut.constants()
        constants |= {"sizes": self.sizes._replace(n_blocks=blocks), "scale": self.call.scale}
        return constants, self.sentences * heads * blocks

    def tuned(self, kernel: str, launch: Callable[[Config], None]) -> None:
        """Runs `launch` with the first config that this GPU has room for.

        Raises AttentionError when it has room for none.
        """
        query, wide = self.inputs.query, self._widest
        shape = f"{words(self.call)} {'groups' * (self.sizes.group > 1)}"
        said: OutOfResources | None = None
        with on_device(query):
            for one in configs_of(kernel, shape, wide):
                try:
                    return launch(one)
                except OutOfResources as error:
                    said = error
        raise AttentionError(
            f"The gradients of attention with d_head {wide.shape[-1]} in {query.dtype} need more "
            f'memory than a program has on this GPU ({said}); impl="eager" has gradients too.'
        )

    @property
    def _widest(self) -> Tensor:
        # The tile sizes follow the wider ones of both kinds of vectors.
        return max(self.inputs.query, self.inputs.value, key=lambda one: one.shape[-1])


def problem_of(call: Call, z_gradient: Tensor) -> Problem:
    """The tensors as the kernels take them, without their gradients."""
    vectors = {n: getattr(call, n).detach() for n in ("query", "key", "value")}
    inputs = inputs_of(replace(call, **vectors))
    inputs = inputs._replace(z_gradient=row_contiguous(z_gradient.detach()))
    if inputs.bias is not None:
        inputs = inputs._replace(bias=inputs.bias.detach())
    sizes, _ = sizes_of(inputs, call, _BLOCK)
    filled = -(-sizes.n_queries // _BLOCK)
    if inputs.starts is not None:
        # See `backward_kernels.filled_start`.
        filled = sizes.n_queries // _BLOCK + len(inputs.starts) - 1
    return Problem(
        inputs, call, strides_of(inputs), sizes._replace(n_filled=filled * _BLOCK, n_together=1)
    )


def fill(
    problem: Problem, lse: Tensor, *, z: Tensor, lse_gradient: Tensor | None, sinks: bool
) -> tuple[Problem, Tensor | None]:
    """The problem with lse and δ; with `sinks` their gradient, float32."""
    inputs, sizes = problem.inputs, problem.sizes
    heads = sizes.n_heads if inputs.starts is not None else sizes.n_places
    filled_lse, delta = lse.new_empty(2, heads, sizes.n_filled, dtype=torch.float32)
    inputs = inputs._replace(lse=filled_lse, delta=delta)
    blocks = -(-longest(problem.call)[0] // _BLOCK)
    parts = lse.new_empty(sizes.n_places, blocks, dtype=torch.float32) if sinks else None
    z = row_contiguous(z.detach())
    given = Rows(
        z,
        lse.detach().float().contiguous(),
        None if lse_gradient is None else lse_gradient.float().contiguous(),
        parts,
    )
    D = inputs.value.shape[-1]
    with on_device(lse):
        backward_delta_kernel[(sizes.n_places * blocks,)](
            inputs,
            given,
            problem.strides._replace(z=problem.strides_of(z)),
            sizes._replace(n_blocks=blocks),
            D_VALUE=D,
            BLOCK_V=block_of_features(D),
            BLOCK_M=_BLOCK,
            num_warps=8,
            enable_fp_fusion=True,
        )
    shape = (problem.sentences, sizes.n_heads, blocks)
    of_sinks = None if parts is None else parts.view(shape).sum((0, 2))
    return Problem(inputs, problem.call, problem.strides, sizes), of_sinks


def by_keys(problem: Problem) -> dict[str, Tensor]:
    """The gradients "key" and "value"."""
    inputs = problem.inputs
    outputs = (torch.empty_like(inputs.key), torch.empty_like(inputs.value))
    strides = tuple(problem.strides_of(one) for one in outputs)

    def launch(cut: Config) -> None:
        arguments, programs = problem.arguments(cut, owns_keys=True)
        backward_key_value_kernel[(programs,)](
            inputs, problem.strides, outputs, strides, GROUPED=problem.sizes.group > 1, **arguments
        )

    problem.tuned("backward keys", launch)
    return dict(zip(("key", "value"), outputs, strict=True))


def by_queries(problem: Problem) -> Tensor:
    """The gradient of the query."""
    found = torch.empty_like(problem.inputs.query)
    strides = problem.strides_of(found)

    def launch(cut: Config) -> None:
        arguments, programs = problem.arguments(cut)
        backward_query_kernel[(programs,)](
            problem.inputs, problem.strides, found, strides, **arguments
        )

    problem.tuned("backward queries", launch)
    return found
