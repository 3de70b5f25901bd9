"""Attention calls drawn over every field."""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

SIZES = (1, 2, 5, 17, 33)


@dataclass
class Drawn:
    """query, key, value and the options of a call, as `attend` takes them."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = [tuple(one.shape) for one in (self.query, self.key, self.value)]
        told = {n: tuple(x.shape) if isinstance(x, Tensor) else x for n, x in self.options.items()}
        return f"{self.query.dtype} {shapes} {told}"


def drawn(
    random: Random,
    dtype: torch.dtype,
    *,
    sizes: tuple[int, ...] = SIZES,
    groups: tuple[int, ...] = (1, 2, 4),
    most: int = 3,
) -> Drawn:
    """A call: sizes, memory layout, which options and their numbers are all drawn.

    `sizes` are those of queries and keys, `groups` how many query heads read a key head, `most`
    is the most sentences and the most key heads.
    """
    counts = tuple(range(1, most + 1))
    heads, group = random.choice(counts), random.choice(groups)
    layout = random.choice(("padded", "padded", "padded", "packed", "paged"))
    batch = 1 if layout == "packed" else random.choice(counts)
    queries = keys = random.choice(sizes)
    if random.random() < 0.5:
        keys = random.choice(sizes)
    size, value_size = random.choice((8, 16)), random.choice((8, 16))
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    times = random.choice((1.0, 1.0, 1.0, 30.0))
    options: dict[str, Any] = {}
    if layout == "packed":
        options["packed"] = _parts(random, queries)
        if keys != queries and keys >= len(options["packed"]):
            options["packed_keys"] = _parts(random, keys, len(options["packed"]))
        else:
            keys = queries
    shapes = {"query": (batch, heads * group, queries, size), "key": (batch, heads, keys, size)}
    shapes["value"] = (batch, heads, keys, value_size)
    if layout == "paged":
        slots = random.choice((1, 4, 7))
        n = math.ceil(keys / slots)
        options["pages"] = torch.randperm(batch * n + 2, generator=generator)[: batch * n]
        options["pages"] = options["pages"].view(batch, n)
        for name in ("key", "value"):
            shapes[name] = (batch * n + 2, heads, slots, shapes[name][3])
        keys = n * slots
    vectors = {}
    for name, shape in shapes.items():
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        vectors[name] = _laid_out(random, (numbers * (times if name == "key" else 1)).to(dtype))
    _order(random, options, layout, batch, keys)
    _scores(random, options, generator, (batch, heads * group, queries, keys), layout, dtype)
    return Drawn(**vectors, options=options)


def _parts(random: Random, total: int, count: int | None = None) -> tuple[int, ...]:
    """Numbers from 1 that add up to the total."""
    count = random.randint(1, min(4, total)) if count is None else count
    cuts = sorted(random.sample(range(1, total), count - 1))
    return tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))


def _laid_out(random: Random, numbers: Tensor) -> Tensor:
    """The same numbers in another order in memory, or with gaps."""
    how = random.choice(("plain", "plain", "transposed", "apart", "reversed axes"))
    if how == "transposed":
        return numbers.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "reversed axes":
        return numbers.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    if how == "apart":
        wide = torch.full((*numbers.shape[:-1], 2 * numbers.shape[-1]), math.nan).to(numbers)
        wide[..., ::2] = numbers
        return wide[..., ::2]
    return numbers


def _order(random: Random, options: dict[str, Any], layout: str, batch: int, keys: int) -> None:
    sentences = len(options["packed"]) if layout == "packed" else batch
    if layout == "paged" or (layout == "padded" and random.random() < 0.5):
        lengths = [random.choice((0, 1, keys, random.randint(0, keys))) for _ in range(batch)]
        options["lengths"] = torch.tensor(lengths)
    if random.random() < 0.5:
        options["causal"] = True
        if random.random() < 0.3:
            numbers = [random.randint(0, keys) for _ in range(sentences)]
            options["prefix"] = torch.tensor(numbers)
    if random.random() < 0.4:
        pair = (random.choice((None, 0, 1, 6, keys)), random.choice((None, 0, 1, 6)))
        options["window"] = pair


def _scores(
    random: Random,
    options: dict[str, Any],
    generator: torch.Generator,
    shape: tuple[int, int, int, int],
    layout: str,
    dtype: torch.dtype,
) -> None:
    heads = shape[1]
    if random.random() < 0.2:
        options["scale"] = random.choice((-0.7, 0.0, 0.05, 1.0))
    if random.random() < 0.25:
        options["soft_cap"] = random.choice((1.0, 5.0, 50.0))
    if random.random() < 0.25:
        options["alibi_slopes"] = torch.rand(heads, generator=generator)
    if random.random() < 0.25:
        options["sinks"] = 3 * torch.randn(heads, generator=generator)
    if layout == "packed":
        return
    some = [random.choice((1, size)) for size in shape]
    if random.random() < 0.2:
        options["bias"] = torch.randn(some, generator=generator).to(dtype)
    if random.random() < 0.2:
        options["mask"] = torch.rand(some, generator=generator) < 0.7
