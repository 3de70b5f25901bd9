"""The inputs on which `parity.check` compares an implementation with the reference."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels import reference
from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["INPUT_SCALES", "KINDS", "SIZES", "Case", "Problem", "cases", "truth"]

#: One key; less than a tile; one more than a tile of 64; two tiles of 64 and two keys.
SIZES = (1, 17, 65, 130)
#: At 10 the softmax is nearly certain, at 30 wholly: overflow and lost digits show there.
INPUT_SCALES = (1.0, 10.0, 30.0)
BATCH, HEADS = 3, 2

#: What varies, and the options an implementation must take for it.
KINDS: dict[str, frozenset[str]] = {
    "plain": frozenset(),
    # A model hands over views: (batch, position, head, d_head) in memory.
    "strided": frozenset(),
    "scale": frozenset({"scale"}),
    "lengths": frozenset({"lengths"}),
    "mask": frozenset({"mask"}),
    "causal": frozenset({"causal"}),
    "causal cache": frozenset({"causal"}),
    "causal lengths": frozenset({"causal", "lengths"}),
    "bias": frozenset({"bias"}),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """The inputs of one call, already rounded to the dtype that is checked."""

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch head key d_head"]
    value: Float[Tensor, "batch head key d_head"]
    scale: float
    lengths: Int[Tensor, " batch"] | None = None
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None
    causal: bool = False
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    want: Want = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The keywords of the call, all of them."""
        names = ("lengths", "mask", "causal", "scale", "bias", "want")
        return {name: getattr(self, name) for name in names}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the call by name, those that are wanted of included."""
        given = {one.name: getattr(self, one.name) for one in fields(self)} | self.want
        return {name: one for name, one in given.items() if isinstance(one, Tensor)}

    def copy(self) -> "Problem":
        """The same numbers in other memory."""
        copies: dict[str, Any] = {name: one.clone() for name, one in self.tensors().items()}
        want = {name: copies.pop(name, one) for name, one in self.want.items()}
        return replace(self, want=want, **copies)

    def take(self, other: "Problem") -> "Problem":
        """Itself, its tensors filled in place with the numbers of `other`."""
        theirs = other.tensors()
        for name, mine in self.tensors().items():
            mine.copy_(theirs[name])
        return self

    def differing(self, others: Mapping[str, Tensor]) -> list[str]:
        """The names of the tensors that do not hold the same numbers in `others`."""
        return [name for name, one in self.tensors().items() if not torch.equal(one, others[name])]


@dataclass(frozen=True)
class Case:
    """One kind of input at one size."""

    kind: str
    n_queries: int
    n_keys: int
    input_scale: float

    def __str__(self) -> str:
        return f"{self.kind}, {self.n_queries} x {self.n_keys}, inputs x {self.input_scale:g}"

    def draw(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        d_head: int,
        wants: Iterable[str],
        seed: int,
    ) -> Problem:
        """Fresh inputs; another seed gives others, and another sentence of `lengths` is empty."""
        B, H, Q, K, D = BATCH, HEADS, self.n_queries, self.n_keys, d_head
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
            if self.kind == "strided":
                numbers = numbers.transpose(1, 2).contiguous().transpose(1, 2)
            return numbers.to(device, dtype)

        options: dict[str, Any] = {}
        if "lengths" in self.kind:
            lengths = torch.tensor([K, max(1, 2 * K // 3), 0], device=device)
            options["lengths"] = lengths.roll(seed)
        if self.kind == "mask":
            mask = torch.rand(B, H, Q, K, generator=generator) < 0.7
            mask[1, :, 0] = False
            options["mask"] = mask.to(device)
        if self.kind == "bias":
            options["bias"] = normal(1, H, Q, K)
        return Problem(
            query=normal(B, H, Q, D) * self.input_scale,
            key=normal(B, H, K, D) * self.input_scale,
            value=normal(B, H, K, D),
            scale=0.37 if self.kind == "scale" else 1 / math.sqrt(D),
            causal="causal" in self.kind,
            want={name: _parameters(name, Q, K, normal, generator, device) for name in wants},
            **options,
        )


def cases(
    sizes: Iterable[int], input_scales: Iterable[float], kinds: Iterable[str] = tuple(KINDS)
) -> Iterator[Case]:
    """Every kind at every size with inputs x 1; one size, past a tile, with larger inputs.

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
    for kind in kinds:
        for size in ordered:
            yield Case(kind, _n_queries(kind, size), size, first)
        for input_scale in larger:
            yield Case(kind, _n_queries(kind, middle), middle, input_scale)


def truth(problem: Problem) -> dict[str, Tensor]:
    """What the float64 reference gives for the same, already rounded, inputs."""
    return reference.attend(problem.query, problem.key, problem.value, **problem.options())


def _n_queries(kind: str, n_keys: int) -> int:
    return 1 + n_keys // 3 if kind == "causal cache" and n_keys > 1 else n_keys


def _parameters(
    name: str,
    n_queries: int,
    n_keys: int,
    normal: Callable[..., Tensor],
    generator: torch.Generator,
    device: torch.device,
) -> Any:
    if name == "key_sums":
        return normal(BATCH, HEADS, n_keys, 3)
    if name == "pair_mass":
        size = (BATCH, 2 * n_keys, 1)
        query = torch.randint(n_queries, size, generator=generator)
        pairs = torch.cat([query, torch.randint(n_keys, size, generator=generator)], dim=-1)
        pairs[1, 0] = -1
        return pairs.to(device)
    return {"key_mass": (0, n_keys - 1), "offset_mass": (-1, 0, 1), "map": (8,)}.get(name, ())
