"""Who computes attention, and the statistics that are wanted of it.

A contender is built for the inputs of a shape and gives a `Built`: `run` is all the clock sees.
Ours are called as `attend` calls them, behind its checks. torch's back ends are forced by name:
the one that is named runs, or its row says why not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.plan import Shape
from minibert.kernels.call import Want, parse_want
from minibert.kernels.check.problem import Problem
from minibert.kernels.registry import implementations

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Built:
    """`run` gives outputs by name; `want` says which statistics are among them."""

    run: Callable[[], dict[str, Tensor]]
    want: Want
    # False for a backward by autograd, which runs on the stream of its forward, where a CUDA graph
    # cannot record it, and for what holds N x N, of which a graph would keep a copy.
    recordable: bool = True


def inputs(shape: Shape, device: torch.device, *, seed: int = 0) -> Problem:
    """Random numbers, of which those of a query and a key are normal: scores of size 1."""
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.heads, shape.positions, shape.d_head)
    dtype = getattr(torch, shape.dtype)
    *vectors, z_gradient = (
        torch.randn(size, generator=generator, device=device).to(dtype) for _ in range(4)
    )
    scale = 1 / math.sqrt(shape.d_head)
    return Problem(*vectors, scale, causal=shape.causal, z_gradient=z_gradient)


def wanted(tier: str, n_keys: int) -> Want:
    """The statistics of a tier: T1 in the pass itself, T2 argmax, T3 what sums over queries."""
    first = ("row_max", "max_prob", "entropy", "offset_mass", ("key_mass", (0, n_keys - 1)))
    blocks = ("map", min(64, n_keys))
    names: tuple[Any, ...] = {
        "plain": (),
        "T1": first,
        "T2": (*first, "argmax"),
        "T3": (*first, "received", blocks),
        "all": (*first, "argmax", "received", blocks),
    }[tier]
    return parse_want(names, n_keys=n_keys)


def build(name: str, given: Problem) -> Built:
    """The contender of that name on these inputs. Raises when it cannot run here."""
    if name in ("plain", "T1", "T2", "T3", "all"):
        return registered("triton", given, wanted(name, given.n_keys))
    if name == "eager":
        return registered("eager", given, wanted("T1", given.n_keys))
    if name in BACKENDS:
        return Built(lambda: {"z": by_torch(name, given)}, {})
    if name == "flex":
        return flex(given)
    if name == "backward":
        return our_backward(given)
    if name.removesuffix(" backward") in BACKENDS:
        return torch_backward(name.removesuffix(" backward"), given)
    raise ValueError(f"no contender is called {name!r}")


def registered(name: str, given: Problem, want: Want) -> Built:
    """An implementation of `minibert.kernels`, without the checks of `attend`."""
    record = implementations().get(name)
    if record is None or record.unavailable:
        reason = record.unavailable if record else f"no implementation is called {name!r}"
        raise RuntimeError(reason)
    call = replace(given, want=want).call()
    return Built(lambda: dict(record.fn(call)), want, name != "eager")


def by_torch(name: str, given: Problem, vectors: tuple[Tensor, ...] | None = None) -> Tensor:
    """z by one of torch's back ends and by no other."""
    query, key, value = vectors or (given.query, given.key, given.value)
    with sdpa_kernel([BACKENDS[name]]):
        return scaled_dot_product_attention(
            query, key, value, is_causal=given.causal, scale=given.scale
        )


def flex(given: Problem) -> Built:
    """FlexAttention, compiled for this shape on CUDA, its block mask made before the clock."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    N, device = given.n_keys, given.query.device
    called: Callable[..., Any] = flex_attention
    if device.type == "cuda":
        # Past some shapes of one function dynamo gives up, and would run it uncompiled.
        torch._dynamo.reset()
        called = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    options: dict[str, Any] = {"scale": given.scale}
    if given.causal:
        options["block_mask"] = create_block_mask(
            lambda b, h, q, k: k <= q, None, None, N, N, device=str(device)
        )
    return Built(lambda: {"z": called(given.query, given.key, given.value, **options)}, {})


def our_backward(given: Problem) -> Built:
    """Our gradients from what our forward left."""
    from minibert.kernels.fused.backward import backward

    call = given.call()
    forward = registered("triton", given, {}).run()

    def run() -> dict[str, Tensor]:
        left = (given.z_gradient, forward["z"], forward["lse"])
        return backward(call, *left)

    return Built(run, {})


def torch_backward(name: str, given: Problem) -> Built:
    """Gradients by one of torch's back ends, from its own forward."""
    vectors = tuple(one.clone().requires_grad_() for one in (given.query, given.key, given.value))
    z = by_torch(name, given, vectors)

    def run() -> dict[str, Tensor]:
        found = torch.autograd.grad(z, vectors, given.z_gradient, retain_graph=True)
        return dict(zip(("query", "key", "value"), found, strict=True))

    return Built(run, {}, recordable=False)
