"""The inputs on which `parity.check` compares an implementation with the reference."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from minibert.errors import AttentionError
from minibert.kernels.check.drawing import drawn, lengths_for_checking
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload

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
