"""Rotary positions in NumPy, written from the papers: how each pair of a query or key is turned.

RoFormer (Su et al. 2021, equation 34), position interpolation (Chen et al. 2023, section 2.3),
dynamic NTK and YaRN (Peng et al. 2023, sections 3.1 to 3.4), LongRoPE (Ding et al. 2024),
Llama 3.1 (Grattafiori et al. 2024 and the code Meta published with it).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def turned(vectors: Array, rope: dict[str, Any], *, dims: int, longest: int) -> Array:
    """Vectors (..., position, d_head) of positions 0, 1, …: pairs (i, i + dims/2) turned.

    `longest` is max_position_embeddings, the length at which dynamic scaling begins.
    """
    n_tokens = vectors.shape[-2]
    frequencies, amplitude = _frequencies(rope, dims, longest, n_tokens)
    half, out = dims // 2, vectors.copy()
    for position in range(n_tokens):
        for pair, frequency in enumerate(frequencies):
            cosine, sine = math.cos(position * frequency), math.sin(position * frequency)
            x, y = vectors[..., position, pair], vectors[..., position, pair + half]
            out[..., position, pair] = amplitude * (x * cosine - y * sine)
            out[..., position, pair + half] = amplitude * (y * cosine + x * sine)
    return out


def _frequencies(
    rope: dict[str, Any], dims: int, longest: int, n_tokens: int
) -> tuple[list[float], float]:
    kind, base, factor = rope["rope_type"], rope["rope_theta"], rope.get("factor", 1.0)
    original = rope.get("original_max_position_embeddings", 0)
    if kind == "dynamic" and n_tokens > longest:
        base *= (factor * n_tokens / longest - factor + 1) ** (dims / (dims - 2))
    plain = [base ** (-2 * pair / dims) for pair in range(dims // 2)]
    if kind == "linear":
        return [each / factor for each in plain], 1.0
    if kind == "llama3":
        return [_llama3(each, rope) for each in plain], 1.0
    if kind == "longrope":
        by = rope["long_factor" if n_tokens > original else "short_factor"]
        stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        amplitude = rope.get("attention_factor", stretched)
        return [each / one for each, one in zip(plain, by, strict=True)], amplitude
    if kind == "yarn":
        return _yarn(plain, rope, dims)
    return plain, 1.0


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    wavelength = 2 * math.pi / frequency
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _yarn(plain: list[float], rope: dict[str, Any], dims: int) -> tuple[list[float], float]:
    original, factor, base = (
        rope[name] for name in ("original_max_position_embeddings", "factor", "rope_theta")
    )

    def pair(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(rope.get("beta_fast", 32.0)), pair(rope.get("beta_slow", 1.0))
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    last += 0.001 if first == last else 0
    frequencies = []
    for number, each in enumerate(plain):
        ramp = min(max((number - first) / (last - first), 0.0), 1.0)
        frequencies.append(ramp * each / factor + (1 - ramp) * each)
    return frequencies, rope.get("attention_factor") or _amplitude(rope, factor)


def _amplitude(rope: dict[str, Any], factor: float) -> float:
    def part(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    by, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    return part(by) / part(all_dims) if by and all_dims else part(1.0)
