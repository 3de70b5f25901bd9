"""The check of what an implementation gives back."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.call import Call
from minibert.kernels.masks import wide
from minibert.kernels.requests import MATRICES, Want

__all__ = ["empty_outputs", "named_outputs", "outputs_of"]


def named_outputs(result: Any, name: str) -> dict[str, Tensor]:
    """What an implementation gave, by name: a mapping, or (z, lse), or z alone.

    Raises AttentionError when it is none of these.
    """
    if isinstance(result, Tensor):
        return {"z": result}
    if isinstance(result, tuple) and len(result) == 2:
        return {"z": result[0], "lse": result[1]}
    if isinstance(result, Mapping):
        return dict(result)
    raise AttentionError(
        f'impl="{name}" gave a {type(result).__name__}; '
        'expected z, (z, lse) or a mapping with at least "z" and "lse".'
    )


def outputs_of(
    result: Any,
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    want: Want,
    *,
    exact: bool = True,
) -> dict[str, Tensor]:
    """What an implementation gave, by name.

    Raises AttentionError when an output has not the shape and the dtype that `api.Attended` and
    `api.Statistics` promise, and as `named_outputs` does. Not `exact`, float64 is allowed for any
    floating output, which is what the reference gives.
    """
    found = named_outputs(result, name)
    for output, shape in _promised_shapes(query, key, value, want).items():
        if output in found:
            dtype = _dtype(output, query)
            wider = () if exact or not dtype.is_floating_point else (torch.float64,)
            _check_output(f'impl="{name}" gave {output}', found[output], shape, (dtype, *wider))
    return found


def empty_outputs(call: Call) -> list[Tensor]:
    """Tensors in the shapes and dtypes of z and of what the call wants, not filled."""
    shapes = _promised_shapes(call.query, call.key, call.value, call.want)
    if call.allowed.packed is not None:
        keys = call.allowed.packed_keys or call.allowed.packed
        both = zip(call.allowed.packed, keys, strict=True)
        shapes["profile"] = (*shapes["z"][:2], sum(q + k - 1 for q, k in both))
    query = call.query
    return [query.new_empty(shapes[n], dtype=_dtype(n, query)) for n in ("z", *call.want)]


def _promised_shapes(
    query: Tensor, key: Tensor, value: Tensor, want: Want
) -> dict[str, tuple[int, ...]]:
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    rows = dict.fromkeys(("lse", "row_max", "max_prob", "entropy", "argmax"), (B, H, Q))
    shapes = {
        "z": (*query.shape[:3], value.shape[3]),
        **rows,
        **dict.fromkeys(MATRICES, (B, H, Q, K)),
    }
    shapes["received"] = (B, H, K)
    for name in ("key_mass", "offset_mass"):
        shapes[name] = (B, H, Q, len(want.get(name, ())))
    if "map" in want:
        (blocks,) = want["map"]
        shapes["map"] = (B, H, *(math.ceil(n / math.ceil(n / blocks)) for n in (Q, K)))
    if "key_sums" in want:
        shapes["key_sums"] = (B, H, Q, want["key_sums"].shape[-1])
    if "pair_mass" in want:
        shapes["pair_mass"] = (B, H, want["pair_mass"].shape[1])
    shapes["profile"] = (B, H, Q + K - 1)
    return {name: shape for name, shape in shapes.items() if name in {"z", "lse", *want}}


def _dtype(output: str, query: Tensor) -> torch.dtype:
    if output == "argmax":
        return torch.int64
    return query.dtype if output in ("z", *MATRICES) else wide(query.dtype)


def _check_output(
    gave: str, found: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    blame = "The kernel is wrong; minibert.kernels.check.parity.check tells more."
    if not isinstance(found, Tensor):
        raise AttentionError(
            f"{gave} as a {type(found).__name__}; expected a torch tensor. {blame}"
        )
    if tuple(found.shape) != shape:
        raise AttentionError(f"{gave} of shape {tuple(found.shape)}; expected {shape}. {blame}")
    if found.dtype not in dtypes:
        raise AttentionError(f"{gave} in {found.dtype}; expected {dtypes[0]}. {blame}")
