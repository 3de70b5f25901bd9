"""The inputs of a workload, drawn: small ones to check, those of full size to time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import PAGE, Workload

#: A page that no sentence has, so that one that is read by mistake shows.
_SPARE_PAGES = 1


def lengths_for_checking(work: Workload, turn: int) -> list[int]:
    """All keys, some, and one or none; another turn gives them to other sentences."""
    K = work.tokens
    if not {"lengths", "packed", "pages"} & work.asks():
        return [K] * work.batch
    # A query of a cache stands at the end of its sentence, which has to have as many keys.
    fewest = work.n_queries if work.queries is not None and work.layout == "paged" else 0
    least = 1 if work.layout == "packed" else 0
    lengths = [K, max(1, fewest, 2 * K // 3), max(least, fewest)][: work.batch]
    turn %= len(lengths)
    return lengths[-turn:] + lengths[:-turn]


def drawn(
    work: Workload,
    lengths: Sequence[int],
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    input_scale: float = 1.0,
    wants: Iterable[str] = (),
) -> Problem:
    """Inputs of these lengths, the numbers of this seed.

    query and key are normal with standard deviation `input_scale`, value with 1.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = torch.float64 if max(lengths) * work.batch < 10**5 else torch.float32

    def normal(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator, dtype=kind)
        if work.strided:
            numbers = numbers.transpose(1, 2).contiguous().transpose(1, 2)
        return numbers.to(device, dtype)

    options, queries, memory = _layout(work, lengths, generator, device)
    H, D = work.heads, work.d_head
    B, Q = queries
    key_shape = (memory[0], work.n_key_heads, memory[1])
    n_keys = work.tokens if work.layout == "padded" else memory[1]
    options |= _options(work, (B, Q, n_keys), normal, generator, device)
    z_gradient = normal(B, H, Q, work.value_size) if work.backward else None
    n_keys = n_keys if work.layout != "paged" else options["pages"].shape[1] * PAGE
    return Problem(
        query=normal(B, H, Q, D) * input_scale,
        key=normal(*key_shape, D) * input_scale,
        value=normal(*key_shape, work.value_size),
        scale=work.factor,
        causal=work.causal,
        window=work.window,
        soft_cap=work.soft_cap,
        want={
            name: _parameters(name, (B, H, Q, n_keys), max(lengths), normal, generator, device)
            for name in sorted(wants)
        },
        z_gradient=z_gradient,
        **options,
    )


def _layout(
    work: Workload, lengths: Sequence[int], generator: torch.Generator, device: torch.device
) -> tuple[dict[str, Any], tuple[int, int], tuple[int, int]]:
    """Options that say where sentences lie; batch and queries; batch (pages) and keys in memory."""
    if work.layout == "packed":
        shares = [-(-one * work.n_queries // work.tokens) for one in lengths]
        options: dict[str, Any] = {"packed": tuple(shares)}
        if work.queries is not None:
            options["packed_keys"] = tuple(lengths)
        return options, (1, sum(shares)), (1, sum(lengths))
    B = len(lengths)
    real = torch.tensor(list(lengths), device=device)
    if work.layout == "paged":
        each = -(-work.tokens // PAGE)
        pages = torch.randperm(B * each, generator=generator).reshape(B, each)
        used = torch.arange(each) * PAGE < torch.tensor(list(lengths))[:, None]
        pages = torch.where(used, pages, B * each).to(device)
        return (
            {"lengths": real, "pages": pages},
            (B, work.n_queries),
            (B * each + _SPARE_PAGES, PAGE),
        )
    options = {} if work.lengths == "full" else {"lengths": real}
    return options, (B, work.n_queries), (B, work.tokens)


def _options(
    work: Workload,
    sizes: tuple[int, int, int],
    normal: Callable[..., Tensor],
    generator: torch.Generator,
    device: torch.device,
) -> dict[str, Any]:
    (B, Q, K), H = sizes, work.heads
    options: dict[str, Any] = {}
    if work.mask:
        mask = torch.rand(B, H, Q, K, generator=generator) < 0.7
        mask[B // 2, :, 0] = False
        options["mask"] = mask.to(device)
    if work.bias:
        options["bias"] = normal(1, H, Q, K)
    if work.prefix:
        # Another length each; the first is that of the workload.
        prefix = [work.prefix * (B - one) // B for one in range(B)]
        options["prefix"] = torch.tensor(prefix, device=device)
    if work.alibi:
        slopes = 0.05 + 0.45 * torch.rand(H, generator=generator)
        options["alibi_slopes"] = slopes.float().to(device)
    if work.sinks:
        options["sinks"] = normal(1, 1, 1, H).flatten()
    return options


def _parameters(
    name: str,
    sizes: tuple[int, int, int, int],
    longest: int,
    normal: Callable[..., Tensor],
    generator: torch.Generator,
    device: torch.device,
) -> Any:
    B, H, Q, K = sizes
    if name == "key_sums":
        return normal(B, H, K, 3)
    if name == "pair_mass":
        size = (B, 2 * K, 1)
        query = torch.randint(Q, size, generator=generator)
        pairs = torch.cat([query, torch.randint(K, size, generator=generator)], dim=-1)
        pairs[B // 2, 0] = -1
        return pairs.to(device)
    return {"key_mass": (0, longest - 1), "offset_mass": (-1, 0, 1), "map": (8,)}.get(name, ())
