"""Was it computed in a narrower type? The suspects tf32, bfloat16 and float32, tried in turn.

It is asked when nothing structural explains a wrong output. tl.dot and CUDA's matmul can round
float32 to tf32 (10 bits of mantissa in place of 23) without being asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem, truth

#: The types are a factor of 8 and more apart in precision; a good guess lies well inside.
_FACTOR = 8**0.5
_TF32 = "tf32 (10 bits of mantissa; float16 has as many)"
_IEEE = (
    'In Triton: tl.dot(..., input_precision="ieee"); in torch: '
    "torch.backends.cuda.matmul.allow_tf32 = False"
)
#: Which of the errors in order of size have to be alike, beside the largest.
_SHARES = (0.3, 0.5, 0.8)


def as_tf32(numbers: Tensor) -> Tensor:
    """The float32 numbers rounded to the 10 bits of mantissa that tf32 keeps, half away from 0."""
    bits = numbers.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(numbers.dtype)


def _cut_to_tf32(numbers: Tensor) -> Tensor:
    """The same bits, the others cut off, as some tensor cores do with float32."""
    bits = numbers.float().contiguous().view(torch.int32)
    return (bits & ~0x1FFF).view(torch.float32).to(numbers.dtype)


def rounding_cause(output: str, problem: Problem, found: Tensor, expected: Tensor) -> str | None:
    """A sentence that names the narrower type whose rounding the errors look like; None for none.

    Either the reference on inputs rounded to that type gives most of the error, or the error is as
    large as what that rounding gives: on average, at worst, and throughout. Probs and scores are
    rounded as well, to multiples that depend on the tiles of the kernel and cannot be known here.
    An error in some rows alone is no rounding.
    """
    if not expected.is_floating_point():
        return None
    finite = expected.isfinite() & found.isfinite()
    error = (found.to(expected.dtype) - expected)[finite]
    if not len(error) or not bool(error.any()):
        return None
    for narrow, advice, rounded in _types(problem.query.dtype):
        # All that is multiplied, or the scores alone.
        for names in (("query", "key", "value"), ("query", "key")):
            vectors: dict[str, Any] = {one: rounded(getattr(problem, one)) for one in names}
            effect = (truth(replace(problem, **vectors))[output] - expected)[finite]
            explained = _size(error - effect) < 0.5 * _size(error)
            # Numbers cut off are off by up to as much as those of a type with one bit less.
            if explained or (rounded is not _cut_to_tf32 and _alike(error, effect)):
                return f"rounded to {narrow}: the error is what that type gives. {advice}"
    return None


def _types(dtype: torch.dtype) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]:
    if dtype == torch.float64:
        yield "float32", "Accumulate in float64", lambda x: x.float().double()
    if dtype in (torch.float32, torch.float64):
        yield _TF32, _IEEE, as_tf32
        yield f"{_TF32}, bits cut off", _IEEE, _cut_to_tf32
        yield (
            "bfloat16 (7 bits of mantissa)",
            "Keep float32 inputs in float32 until the end",
            lambda x: x.bfloat16().to(x.dtype),
        )


def _size(error: Tensor) -> float:
    return float(error.square().mean().sqrt())


def _alike(error: Tensor, effect: Tensor) -> bool:
    """Of the same size on average, at worst, and in those that are neither large nor small."""
    pairs = [(_size(error), _size(effect)), (float(error.abs().max()), float(effect.abs().max()))]
    moved = (error != 0) | (effect != 0)
    for share in _SHARES:
        pairs.append(tuple(float(one[moved].abs().quantile(share)) for one in (error, effect)))  # type: ignore[arg-type]
    return all(small > 0 and 1 / _FACTOR < large / small < _FACTOR for large, small in pairs)
