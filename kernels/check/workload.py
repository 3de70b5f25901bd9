"""Declarations of what is checked and timed: the fields of a call, and what follows from them.

Inputs, truth, tolerances and likely causes follow from the declaration, and the work that a
roofline needs: operations, exponentials and bytes, counted exactly. For checking, a workload is
drawn at several small sizes (`Case`); for timing, once at its full size (`inputs_of`), with
new numbers before each call.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from minibert.errors import AttentionError, did_you_mean
from minibert.kernels.call import RANKED, Want
from minibert.kernels.check.problem import Problem, Window

#: Keys of a page, as in vLLM (Kwon et al. 2023).
PAGE = 16


@dataclass(frozen=True)
class Workload:
    """One attention call: a batch of sentences of the same kind.

    tokens     keys of the longest sentence
    lengths    "full", or "varied": from all tokens down to a quarter of them
    queries    None: as many as keys; else the last ones
    key_heads  heads of key and value; None: as many as of query
    d_value    size of a value; None: d_head
    layout     "padded", "packed" (one after the other, batch 1) or "paged" (pages of 16 keys)
    window     keys before and after its own position that a query sees
    prefix     keys that all queries see despite causal
    backward   the gradients of query, key and value for a given gradient of z as well
    scale      None: 1/sqrt(d_head)
    strided    memory is (batch, position, head, d_head), as a model hands over its views
    dead_rows  some queries may see no key, where what is asked says so
    """

    batch: int
    heads: int
    tokens: int
    d_head: int
    dtype: str
    causal: bool
    lengths: str = "full"
    queries: int | None = None
    key_heads: int | None = None
    d_value: int | None = None
    layout: str = "padded"
    window: Window | None = None
    prefix: int = 0
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    mask: bool = False
    bias: bool = False
    strided: bool = False
    scale: float | None = None
    backward: bool = False
    dead_rows: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        # From JSON a pair comes as a list, which has no hash.
        if self.window is not None:
            before, after = self.window
            object.__setattr__(self, "window", (before, after))

    def fields(self) -> dict[str, object]:
        """The fields of a row."""
        return asdict(self)

    @property
    def n_queries(self) -> int:
        """Queries of the longest sentence."""
        return self.tokens if self.queries is None else self.queries

    @property
    def n_key_heads(self) -> int:
        """Heads of key and value."""
        return self.key_heads or self.heads

    @property
    def value_size(self) -> int:
        """The size of a value."""
        return self.d_value or self.d_head

    @property
    def factor(self) -> float:
        """The scale of the scores."""
        return 1 / math.sqrt(self.d_head) if self.scale is None else self.scale

    def asks(self) -> frozenset[str]:
        """The options and shapes of `Implementation` that a function must take for it."""
        packed, paged = self.layout == "packed", self.layout == "paged"
        said = {
            "lengths": paged or (self.lengths != "full" and not packed),
            "packed": packed,
            "packed_keys": packed and self.queries is not None,
            "pages": paged,
            "causal": self.causal,
            "window": self.window is not None,
            "prefix": self.prefix > 0,
            "soft_cap": self.soft_cap is not None,
            "alibi_slopes": self.alibi,
            "sinks": self.sinks,
            "mask": self.mask,
            "bias": self.bias,
            "scale": self.scale is not None,
            "groups": self.n_key_heads != self.heads,
            "value_size": self.value_size != self.d_head,
        }
        return frozenset(name for name, true in said.items() if true)

    def real_keys(self) -> list[int]:
        """The length of each sentence."""
        if self.lengths == "full":
            return [self.tokens] * self.batch
        steps = max(1, self.batch - 1)
        return [max(1, round(self.tokens * (1 - 0.75 * i / steps))) for i in range(self.batch)]

    def _seen(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """For each sentence its queries, its keys, and the first and the last key of each query.

        The last is smaller than the first where a query sees none. A padded sentence has the
        queries of the longest.
        """
        before, after = self.window or (None, None)
        for keys in self.real_keys():
            queries, end = self.n_queries, keys if self.layout == "paged" else self.tokens
            if self.layout == "packed":
                queries, end = math.ceil(keys * self.n_queries / self.tokens), keys
            position = torch.arange(end - queries, end)
            low, high = torch.zeros_like(position), torch.full_like(position, keys - 1)
            if self.causal:
                # The keys of a prefix are seen in spite of the order.
                high = torch.minimum(high, position.clamp_min(self.prefix - 1))
            if before is not None:
                low = (position - before).clamp_min(0)
            if after is not None and (not self.causal or self.prefix):
                high = torch.minimum(high, position + after)
            yield queries, keys, low, high

    @property
    def pairs(self) -> int:
        """The (query, key) pairs that are allowed, in all heads: padded queries count.

        Causal order, window, prefix and lengths are counted to the key.
        """
        seen = (int((high - low + 1).clamp_min(0).sum()) for _, _, low, high in self._seen())
        return self.heads * sum(seen)

    @property
    def flop(self) -> int:
        """Multiplications and additions, as `flop_formula` says."""
        forward = 2 * (self.d_head + self.value_size)
        backward = 6 * self.d_head + 4 * self.value_size if self.backward else 0
        return (forward + backward) * self.pairs

    @property
    def flop_formula(self) -> str:
        """What `flop` counts: two products forward, five backward (Dao 2023, section 3.1)."""
        formula = "2 * (d_head + d_value)"
        if self.backward:
            formula = f"({formula} + 6 * d_head + 4 * d_value)"
        return f"{formula} * allowed (query, key) pairs"

    @property
    def bytes(self) -> int:
        """query read once and z written once, and once the keys and values that a query sees.

        Backward: the same inputs once more, z and its gradient read, three gradients written.
        """
        rows = keys = 0
        for queries, n_keys, low, high in self._seen():
            alive = high >= low
            steps, ones = torch.zeros(n_keys + 1, dtype=torch.int64), torch.ones_like(low[alive])
            steps.index_add_(0, low[alive], ones).index_add_(0, high[alive] + 1, -ones)
            rows += queries * self.heads
            keys += int((steps.cumsum(0) > 0).sum()) * self.n_key_heads
        vectors = rows * self.d_head + keys * (self.d_head + self.value_size)
        z = rows * self.value_size
        numbers = 3 * vectors + 3 * z if self.backward else vectors + z
        itemsize: int = getattr(torch, self.dtype).itemsize
        return numbers * itemsize

    def cut(self, tokens: int, *, batch: int | None = None, heads: int | None = None) -> "Workload":
        """The workload at another size: window and prefix shrink with the tokens, groups stay.

        The groups are at most as many queries a key head as there are heads.
        """
        heads = min(heads or self.heads, self.heads)
        groups = min(self.heads // self.n_key_heads, heads)

        def less(size: int | None) -> int | None:
            return None if size is None else math.ceil(size * tokens / self.tokens)

        return replace(
            self,
            tokens=tokens,
            batch=min(batch or self.batch, self.batch),
            heads=heads // groups * groups,
            key_heads=heads // groups,
            queries=less(self.queries),
            window=None if self.window is None else (less(self.window[0]), less(self.window[1])),
            prefix=less(self.prefix) or 0,
        )

    def about(self) -> str:
        """What batch, heads, tokens, d_head, dtype, causal and lengths do not say; may be ""."""
        before, after = self.window or (None, None)
        sides = [f"{n} {side}" for n, side in ((before, "before"), (after, "after")) if n]
        said = {
            "1 query" if self.queries == 1 else f"{self.queries} queries": self.queries is not None,
            f"{self.n_key_heads} key heads": self.n_key_heads != self.heads,
            f"d_value {self.value_size}": self.value_size != self.d_head,
            self.layout: self.layout != "padded",
            f"window {' and '.join(sides) or '0'}": self.window is not None,
            f"prefix {self.prefix}": self.prefix > 0,
            f"soft cap {self.soft_cap or 0:g}": self.soft_cap is not None,
            "ALiBi": self.alibi,
            "sinks": self.sinks,
            "forward and backward": self.backward,
        }
        return ", ".join(text for text, true in said.items() if true)


def _named(
    name: str, sizes: tuple[int, int, int, int], *, causal: bool = True, **fields: Any
) -> Workload:
    return Workload(*sizes, "bfloat16", causal, name=name, **fields)


#: The attention of models that people run, from the config files of their publishers. Grouped
#: heads: Llama 3 (Grattafiori et al. 2024), Mistral 7B v0.1, whose window of 4096 counts the query
#: itself (Jiang et al. 2023), Gemma 2 9B (Gemma Team 2024); 192 numbers a key and 128 a value:
#: DeepSeek-V3 (2024).
WORKLOADS = {
    one.name: one
    for one in (
        _named("bert-base-512", (32, 12, 512, 64), causal=False, lengths="varied"),
        _named("gpt2-1024", (16, 12, 1024, 64)),
        _named("llama3-8b-prefill", (2, 32, 8192, 128), key_heads=8),
        _named(
            "llama3-8b-decode",
            (32, 32, 8192, 128),
            key_heads=8,
            queries=1,
            layout="paged",
            lengths="varied",
        ),
        _named("mistral-window", (1, 32, 16384, 128), key_heads=8, window=(4095, None)),
        _named("gemma2-soft-cap", (2, 16, 8192, 256), key_heads=8, soft_cap=50.0),
        _named("deepseek-mla", (4, 128, 4096, 192), d_value=128),
        _named("vit", (64, 12, 197, 64), causal=False),
    )
}


Told = TypeVar("Told")


def named(what: str, name: str, known: Mapping[str, Told]) -> Told:
    """The workload or kind of this name. Raises AttentionError when there is none."""
    if name not in known:
        raise AttentionError(
            f"no {what} {name}{did_you_mean(name, known)}; known are {', '.join(known)}."
        )
    return known[name]


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

    options, (B, Q), memory = _layout(work, lengths, generator)
    H, D, size = work.heads, work.d_head, work.value_size
    key_shape = (memory[0], work.n_key_heads, memory[1])
    pages = options.get("pages")
    K = work.tokens if work.layout == "padded" else memory[1]
    K = K if pages is None else pages.shape[1] * PAGE
    if work.mask:
        options["mask"] = mask = torch.rand(B, H, Q, K, generator=generator) < 0.7
        if work.dead_rows:
            mask[B // 2, :, 0] = False
        else:
            mask[..., 0] = True
    if work.bias:
        options["bias"] = normal(1, H, Q, K)
    if work.prefix:
        # Another length each; the first is that of the workload.
        options["prefix"] = torch.tensor([work.prefix * (B - one) // B for one in range(B)])
    if work.alibi:
        options["alibi_slopes"] = 0.05 + 0.45 * torch.rand(H, generator=generator)
    if work.sinks:
        options["sinks"] = normal(1, 1, 1, H).flatten()
    if work.backward:
        options["z_gradient"] = normal(B, H, Q, size)
    for name, one in options.items():
        options[name] = one.to(device) if isinstance(one, Tensor) else one
    return Problem(
        query=normal(B, H, Q, D) * input_scale,
        key=normal(*key_shape, D) * input_scale,
        value=normal(*key_shape, size),
        scale=work.factor,
        causal=work.causal,
        window=work.window,
        soft_cap=work.soft_cap,
        want=_wanted(wants, (B, H, Q, K), max(lengths), normal, generator),
        **options,
    )


def _wanted(
    wants: Iterable[str],
    sizes: tuple[int, int, int, int],
    longest: int,
    normal: Callable[..., Tensor],
    generator: torch.Generator,
) -> Want:
    """The parameters of each statistic."""
    B, H, Q, K = sizes
    known = {"key_mass": (0, longest - 1), "offset_mass": (-1, 0, 1), "map": (8,)}
    known |= dict.fromkeys(RANKED, (3,))
    want: Want = {name: known.get(name, ()) for name in sorted(wants)}
    if "key_sums" in want:
        want["key_sums"] = normal(B, H, K, 3)
    if "pair_mass" in want:
        pairs = [torch.randint(most, (B, 2 * K, 1), generator=generator) for most in (Q, K)]
        want["pair_mass"] = torch.cat(pairs, dim=-1).to(normal(1).device)
        want["pair_mass"][B // 2, 0] = -1
    return want


def _layout(
    work: Workload, lengths: Sequence[int], generator: torch.Generator
) -> tuple[dict[str, Any], tuple[int, int], tuple[int, int]]:
    """Options that say where sentences lie; batch and queries; batch (pages) and keys in memory."""
    if work.layout == "packed":
        shares = [-(-one * work.n_queries // work.tokens) for one in lengths]
        options: dict[str, object] = {"packed": tuple(shares)}
        if work.queries is not None:
            options["packed_keys"] = tuple(lengths)
        return options, (1, sum(shares)), (1, sum(lengths))
    B, real = len(lengths), torch.tensor(list(lengths))
    if work.layout == "padded":
        options = {} if work.lengths == "full" else {"lengths": real}
        return options, (B, work.n_queries), (B, work.tokens)
    each = -(-work.tokens // PAGE)
    pages = torch.randperm(B * each, generator=generator).reshape(B, each)
    # Of pages that no sentence has there is one, so that it shows when it is read by mistake.
    pages = torch.where(torch.arange(each) * PAGE < real[:, None], pages, B * each)
    return {"lengths": real, "pages": pages}, (B, work.n_queries), (B * each + 1, PAGE)


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
    # What is given up where another way computes causal order.
    "causal scale": replace(_CAUSAL, scale=0.37),
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
    "causal soft cap": replace(_CAUSAL, soft_cap=1.5),
    "soft cap lengths": replace(_PLAIN, soft_cap=1.5, lengths="varied"),
    "alibi": replace(_PLAIN, alibi=True),
    "causal alibi cache": replace(_CAUSAL, alibi=True, queries=6),
    "sinks": replace(_PLAIN, sinks=True),
    "causal sinks": replace(_CAUSAL, sinks=True),
    "sinks lengths": replace(_PLAIN, sinks=True, lengths="varied"),
    "packed": _PACKED,
    "causal packed": replace(_PACKED, causal=True),
    "causal packed cache": replace(_PACKED, causal=True, queries=6),
    "paged": replace(_PLAIN, layout="paged", lengths="varied", queries=1),
    "causal paged": replace(_CAUSAL, layout="paged", lengths="varied", queries=6),
}

ALL_KINDS = KINDS | FIELD_KINDS


@dataclass(frozen=True)
class Case:
    """One kind of input at one size."""

    kind: str
    work: Workload
    input_scale: float = 1.0

    @classmethod
    def of(cls, kind: str, work: Workload, n_keys: int, input_scale: float = 1.0) -> "Case":
        """The workload with so many keys; of a cache with several queries, a third as many."""
        queries = work.queries
        if queries is not None and queries > 1:
            queries = 1 + n_keys // 3 if n_keys > 1 else 1
        return cls(kind, replace(work.cut(n_keys), queries=queries), input_scale)

    def __str__(self) -> str:
        size = f"{self.work.n_queries} x {self.work.tokens}"
        return f"{self.kind}, {size}, inputs x {self.input_scale:g}"

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
    """The kinds checked for a workload: few sentences and heads, strided, and all heads.

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
    sizes: Iterable[int], input_scales: Iterable[float], kinds: Mapping[str, Workload]
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
            yield Case.of(kind, work, fewest_keys(sizes), first)
            continue
        for size in ordered:
            yield Case.of(kind, work, size, first)
        for input_scale in larger:
            yield Case.of(kind, work, middle, input_scale)


def fewest_keys(sizes: Iterable[int]) -> int:
    """The size at which a kind of many heads is drawn: the smallest above one key."""
    return min(sizes, key=lambda size: (size == 1, size))


_CUDA_TOKENS = [512, 1024, 2048, 4096, 8192, 16384]


def projected(z: Tensor, seed: int) -> Tensor:
    """The sum of all numbers of z, each with a weight that the seed says, in float64."""
    generator = torch.Generator(z.device).manual_seed(seed)
    weights = torch.randn(z.shape, generator=generator, device=z.device)
    return (z.double() * weights).sum()


def inputs_of(work: Workload, device: torch.device) -> Problem:
    """Inputs of this workload on this device; leaves of autograd where it goes backward."""
    dtype = getattr(torch, work.dtype)
    problem = drawn(work, work.real_keys(), seed=0, device=device, dtype=dtype)
    for one in (problem.query, problem.key, problem.value):
        one.requires_grad_(work.backward)
    return problem


@dataclass(frozen=True)
class Size:
    """The sizes of a workload that a user gives; None: the usual one for the device."""

    tokens: list[int] | None = None
    heads: int | None = None
    batch: int | None = None
    quick: bool = False

    def usual(self, device: torch.device, work: Workload) -> list[Workload]:
        """The workload of one head size, dtype, order and direction in all sizes."""
        tokens, total, heads = [512, 1024], 1, 4
        if device.type == "cuda":
            tokens, total, heads = _CUDA_TOKENS, 16384, max(1, 2048 // work.d_head)
        if self.quick:
            tokens = [1024, 4096] if device.type == "cuda" else [256]
        return [
            replace(
                work, tokens=n, batch=self.batch or max(1, total // n), heads=self.heads or heads
            )
            for n in self.tokens or tokens
        ]

    def cut(self, device: torch.device, work: Workload) -> list[Workload]:
        """The workload at a size that this device times in one sitting, unless sizes are given.

        On a GPU it is whole; on a CPU one sentence of at most 1024 tokens and 8 heads.
        """
        most, heads, batch = 1024 if self.quick else work.tokens, self.heads, self.batch
        if device.type != "cuda":
            most, heads, batch = 256 if self.quick else 1024, heads or 8, batch or 1
        sizes = self.tokens or [min(work.tokens, most)]
        return [work.cut(size, batch=batch, heads=heads) for size in sizes]
