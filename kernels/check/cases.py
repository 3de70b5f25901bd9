"""The inputs on which an implementation is compared with the reference, and their numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
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
    least = 1 if work.layout == "packed" or not work.dead_rows else 0
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
        if work.dead_rows:
            mask[B // 2, :, 0] = False
        else:
            mask[..., 0] = True
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


#: One key; less than a tile; one more than a tile of 64; two tiles of 64 and two keys.
SIZES = (1, 17, 65, 130)
#: At 10 the softmax is nearly certain, at 30 wholly: overflow and lost digits show there.
INPUT_SCALES = (1.0, 10.0, 30.0)
BATCH, HEADS = 3, 2
#: Up to as many are drawn at every size.
_FEW_HEADS = 6
#: At how many keys the workloads below are written down.
_TOKENS = 16

#: Numbers that a layout has none of, or that each sentence has its own of.
LEFT_OUT = {
    "padded": frozenset[str](),
    "packed": frozenset({"scores", "probs", "map", "pair_mass", "profile"}),
    "paged": frozenset({"offset_mass", "profile", "map"}),
}

_PLAIN = Workload(BATCH, HEADS, _TOKENS, 64, "float32", causal=False)
_CAUSAL = replace(_PLAIN, causal=True)
_PACKED = replace(_PLAIN, layout="packed", lengths="varied")
#: What varies, as workloads at 16 keys.
KINDS: dict[str, Workload] = {
    "plain": _PLAIN,
    # A model hands over views: (batch, position, head, d_head) in memory.
    "strided": replace(_PLAIN, strided=True),
    "scale": replace(_PLAIN, scale=0.37),
    "lengths": replace(_PLAIN, lengths="varied"),
    "mask": replace(_PLAIN, mask=True),
    "causal": _CAUSAL,
    "causal cache": replace(_CAUSAL, queries=6),
    "causal lengths": replace(_CAUSAL, lengths="varied"),
    "bias": replace(_PLAIN, bias=True),
}
#: The fields that not every function takes.
FIELD_KINDS: dict[str, Workload] = {
    # Four groups of two would look alike where there are as many groups as queries a group.
    "groups": replace(_PLAIN, heads=6, key_heads=2),
    "value size": replace(_PLAIN, d_value=24),
    "window": replace(_PLAIN, window=(5, 2)),
    "causal window": replace(_CAUSAL, window=(4, None)),
    "causal window cache": replace(_CAUSAL, window=(4, None), queries=6),
    "window lengths": replace(_PLAIN, window=(5, 2), lengths="varied"),
    "prefix": replace(_CAUSAL, prefix=6),
    "soft cap": replace(_PLAIN, soft_cap=1.5),
    "alibi": replace(_PLAIN, alibi=True),
    "causal alibi cache": replace(_CAUSAL, alibi=True, queries=6),
    "sinks": replace(_PLAIN, sinks=True),
    "sinks lengths": replace(_PLAIN, sinks=True, lengths="varied"),
    "packed": _PACKED,
    "causal packed": replace(_PACKED, causal=True),
    "causal packed cache": replace(_PACKED, causal=True, queries=6),
    "paged": replace(_PLAIN, layout="paged", lengths="varied", queries=1),
    "causal paged": replace(_CAUSAL, layout="paged", lengths="varied", queries=6),
}


@dataclass(frozen=True)
class Case:
    """One kind of input at one size."""

    kind: str
    n_queries: int
    n_keys: int
    input_scale: float
    # None: that of KINDS or FIELD_KINDS.
    workload: Workload | None = None

    def __str__(self) -> str:
        return f"{self.kind}, {self.n_queries} x {self.n_keys}, inputs x {self.input_scale:g}"

    @property
    def work(self) -> Workload:
        """What is drawn, of its size."""
        known = self.workload or known_kind(self.kind)
        work = known.cut(self.n_keys)
        if known.queries is None and self.n_queries == self.n_keys:
            return work
        return replace(work, queries=self.n_queries)

    def draw(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        wants: Iterable[str],
        seed: int,
        d_head: int | None = None,
    ) -> Problem:
        """Fresh inputs; another seed gives others, and another sentence of `lengths` is empty.

        What is wanted is left out where the layout has no such numbers. Without `d_head` it is
        that of the workload.
        """
        work = self.work if d_head is None else replace(self.work, d_head=d_head)
        return drawn(
            work,
            lengths_for_checking(work, seed),
            seed=seed,
            device=device,
            dtype=dtype,
            input_scale=self.input_scale,
            wants=set(wants) - LEFT_OUT[work.layout],
        )


def kinds_of(work: Workload) -> dict[str, Workload]:
    """What is checked of a workload: with few sentences and heads, strided, and with all heads.

    With few heads the groups stay, up to 3 query heads a key head. All heads come with 2 sentences.
    """
    groups = min(3, work.heads // work.n_key_heads)
    few = replace(work, batch=BATCH, heads=2 * groups, key_heads=2)
    name = work.name or "workload"
    found = {name: few, f"{name} strided": replace(few, strided=True)}
    if work.heads > few.heads:
        found[f"{name} with all {work.heads} heads"] = replace(work, batch=2)
    return found


def cases(
    sizes: Iterable[int],
    input_scales: Iterable[float],
    kinds: Mapping[str, Workload],
) -> Iterator[Case]:
    """Every kind at every size with inputs x 1; one size, past a tile, with larger inputs.

    A kind of more than 6 heads is drawn once alone, at the smallest size above one key.
    Raises AttentionError when there is no size or no input scale, or a size is not a whole
    number of at least 1.
    """
    sizes, input_scales = tuple(sizes), tuple(input_scales)
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise AttentionError(
            f"check(sizes={sizes}): expected numbers of keys, one or more of them and each at "
            f"least 1, for instance sizes={SIZES}."
        )
    if not input_scales:
        raise AttentionError(
            "check(input_scales=()): expected at least one factor for query and key, "
            f"for instance input_scales={INPUT_SCALES}."
        )
    first, *larger = input_scales
    middle = sorted(sizes)[len(sizes) // 2]
    # With one key different slips look alike: it comes last, so that others name the cause.
    ordered = sorted(sizes, key=lambda size: size == 1)
    for kind, work in kinds.items():
        if work.heads > _FEW_HEADS:
            size = fewest_keys(sizes)
            yield Case(kind, _n_queries(work, size), size, first, work)
            continue
        for size in ordered:
            yield Case(kind, _n_queries(work, size), size, first, work)
        for input_scale in larger:
            yield Case(kind, _n_queries(work, middle), middle, input_scale, work)


def fewest_keys(sizes: Iterable[int]) -> int:
    """The size at which a kind of many heads is drawn: the smallest above one key."""
    return min(sizes, key=lambda size: (size == 1, size))


def known_kind(kind: str) -> Workload:
    """The kind of this name. Raises AttentionError when there is none."""
    known = KINDS | FIELD_KINDS
    if kind not in known:
        raise AttentionError(f"no kind {kind}; known are {', '.join(known)}.")
    return known[kind]


def _n_queries(work: Workload, n_keys: int) -> int:
    if work.queries is None or work.queries == 1:
        return work.queries or n_keys
    return 1 + n_keys // 3 if n_keys > 1 else n_keys
