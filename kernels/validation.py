"""The check of what comes into `attend` and of what an implementation gives back."""

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.implementation import FLOATS
from minibert.kernels.requests import MATRICES, Want
from minibert.kernels.row_statistics import wide

__all__ = [
    "check_inputs",
    "check_options",
    "check_packed",
    "check_rows",
    "named_outputs",
    "outputs_of",
]

_VECTORS = "(batch, head, position, d_head)"


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Raises AttentionError when the tensors do not fit together; gives nothing back."""
    given = {"query": query, "key": key, "value": value}
    optional = {"lengths": lengths, "mask": mask, "bias": bias}
    given |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    for name, tensor in given.items():
        _check_tensor(name, tensor, query)
    _check_vectors(query, key, value)
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    if lengths is not None:
        _check_lengths(lengths, B, K)
    if mask is not None:
        _check_matrix("mask", mask, (B, H, Q, K))
        if mask.dtype != torch.bool:
            raise AttentionError(
                f"mask is {mask.dtype}; expected torch.bool, True where attention is allowed. "
                "An additive mask goes in as bias=, a mask of ones and zeros as mask=mask.bool()."
            )
    if bias is not None:
        _check_matrix("bias", bias, (B, H, Q, K))
        _check_bias(bias, query.dtype)


def check_options(*, causal: Any, scale: Any) -> None:
    """Raises AttentionError unless causal is a bool and scale None or a finite number."""
    if not isinstance(causal, bool):
        raise AttentionError(
            f"causal is {causal!r}; expected True or False. A mask of your own goes in as mask=."
        )
    if scale is None:
        return
    number = isinstance(scale, Real) and not isinstance(scale, bool)
    # Neither NaN nor an infinity passes, nor a whole number that no float can hold.
    if not number or not abs(scale) <= sys.float_info.max:
        raise AttentionError(
            f"scale is {scale!r}; expected one finite number, or None for 1/sqrt(d_head). "
            "A tensor of one element goes in as scale.item()."
        )


def check_packed(
    packed: Any, query: Tensor, key: Tensor, others: Mapping[str, Tensor | None]
) -> tuple[int, ...]:
    """The tokens of each packed sentence.

    Raises AttentionError unless they are whole numbers that add up to the tokens of a batch of one.
    """
    numbers = tuple(packed) if isinstance(packed, Sequence) and not isinstance(packed, str) else ()
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        raise AttentionError(
            f"packed is {packed!r:.80}; expected the number of tokens of each sentence, whole "
            "numbers from 1, for instance packed=(5, 7, 3)."
        )
    if given := [name for name, tensor in others.items() if tensor is not None]:
        raise AttentionError(
            f"packed comes with {' and '.join(given)}; expected it alone or with causal. Each "
            "sentence sees itself alone; pad them into a batch for more than that."
        )
    B, _, Q, _ = query.shape
    if B != 1 or not Q == key.shape[2] == sum(numbers):
        raise AttentionError(
            f"packed={numbers!s:.80} holds {sum(numbers)} tokens, beside query {_shape(query)} "
            f"and key {_shape(key)}; expected a batch of one with as many queries and keys."
        )
    return numbers


def check_rows(
    name: str, tensor: Any, query: Tensor, shapes: Sequence[tuple[int, ...]], meaning: str
) -> None:
    """Raises AttentionError unless it is a floating tensor of one of the shapes beside query."""
    _check_tensor(name, tensor, query)
    expected = f"{' or '.join(map(str, shapes))}, {meaning}"
    if not tensor.is_floating_point():
        raise AttentionError(
            f"{name} is {tensor.dtype}; expected a floating dtype in the shape {expected}. "
            f"Convert it: {name}.to(query.dtype)."
        )
    if _shape(tensor) not in shapes:
        advice = (
            f" The same for every head: {name}[:, None]."
            if (tensor.ndim, shapes[-1][1:2]) == (2, (1,))
            else ""
        )
        raise AttentionError(f"{name} has shape {_shape(tensor)}; expected {expected}.{advice}")


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
    result: Any, name: str, query: Tensor, key: Tensor, want: Want, *, exact: bool = True
) -> dict[str, Tensor]:
    """What an implementation gave, by name.

    Raises AttentionError when an output has not the shape and the dtype that `api.Attended` and
    `api.Statistics` promise, and as `named_outputs` does. Not `exact`, float64 is allowed for any
    floating output, which is what the reference gives.
    """
    found = named_outputs(result, name)
    for output, shape in _promised_shapes(query, key, want).items():
        if output in found:
            dtype = _dtype(output, query)
            wider = () if exact or not dtype.is_floating_point else (torch.float64,)
            _check_output(f'impl="{name}" gave {output}', found[output], shape, (dtype, *wider))
    return found


def _promised_shapes(query: Tensor, key: Tensor, want: Want) -> dict[str, tuple[int, ...]]:
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    rows = dict.fromkeys(("lse", "row_max", "max_prob", "entropy", "argmax"), (B, H, Q))
    shapes = {"z": _shape(query), **rows, **dict.fromkeys(MATRICES, (B, H, Q, K))}
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
    if _shape(found) != shape:
        raise AttentionError(f"{gave} of shape {_shape(found)}; expected {shape}. {blame}")
    if found.dtype not in dtypes:
        raise AttentionError(f"{gave} in {found.dtype}; expected {dtypes[0]}. {blame}")


def _check_tensor(name: str, tensor: Any, query: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise AttentionError(
            f"{name} is a {type(tensor).__name__}; expected a torch tensor. "
            f"Wrap it: torch.as_tensor({name})."
        )
    if tensor.is_nested:
        raise AttentionError(
            f"{name} is a nested tensor; expected a dense one. Pad it, "
            f"torch.nested.to_padded_tensor({name}, 0.0), and give the lengths as lengths=."
        )
    if tensor.layout != torch.strided:
        raise AttentionError(
            f"{name} is sparse ({tensor.layout}); expected a dense tensor. "
            f"Convert it: {name}.to_dense()."
        )
    if tensor.device != query.device:
        raise AttentionError(
            f"{name} is on {tensor.device} and query on {query.device}; expected one device. "
            f"Move it: {name}.to(query.device)."
        )


def _check_vectors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, vectors in (("query", query), ("key", key), ("value", value)):
        if vectors.ndim != 4 or 0 in vectors.shape:
            raise AttentionError(
                f"{name} has shape {_shape(vectors)}; expected four axes {_VECTORS}, "
                "none of them empty. A single head goes in as x[None, None]."
            )
        if vectors.dtype not in FLOATS:
            raise AttentionError(
                f"{name} is {vectors.dtype}; expected a floating dtype: float16, bfloat16, float32 "
                f"or float64. Convert it: {_converted(name, vectors.dtype)}."
            )
        if vectors.dtype != query.dtype:
            raise AttentionError(
                f"{name} is {vectors.dtype}; expected query's dtype, {query.dtype}. "
                f"Convert it: {name}.to(query.dtype)."
            )
    B, H, _, D = query.shape
    K = key.shape[2]
    if key.shape != (B, H, K, D):
        raise AttentionError(
            f"key has shape {_shape(key)} beside query {_shape(query)}; expected "
            f"({B}, {H}, keys, {D}): the same batch, heads and d_head. Fewer key heads than query "
            "heads are repeated by the caller: key.repeat_interleave(groups, dim=1)."
        )
    if value.shape != key.shape:
        raise AttentionError(
            f"value has shape {_shape(value)}; expected key's shape {_shape(key)}: "
            "one value for each key."
        )


def _converted(name: str, dtype: torch.dtype) -> str:
    """How to make a floating tensor of it."""
    if dtype.is_complex:
        return f"{name}.real, or {name}.abs()"
    if dtype.is_floating_point and dtype.itemsize == 1:
        return f"{name}.to(torch.bfloat16), times its scale if it has one"
    return f"{name}.to(torch.float32)"


def _check_lengths(lengths: Tensor, n_sentences: int, n_keys: int) -> None:
    if lengths.dtype not in (torch.int32, torch.int64):
        raise AttentionError(
            f"lengths is {lengths.dtype}; expected torch.int64, the number of real keys of each "
            "sentence. From a padding mask: token_mask.sum(dim=-1)."
        )
    if lengths.shape != (n_sentences,):
        raise AttentionError(
            f"lengths has shape {_shape(lengths)}; expected ({n_sentences},): one for each "
            "sentence of the batch."
        )
    outside = (lengths < 0) | (lengths > n_keys)
    if bool(outside.any()):
        raise AttentionError(
            f"lengths holds {lengths[outside].tolist()} for sentences "
            f"{outside.nonzero().flatten().tolist()}; expected 0 to {n_keys}, the number of keys."
        )


def _check_matrix(name: str, matrix: Tensor, full: tuple[int, int, int, int]) -> None:
    fits = matrix.ndim == 4 and all(
        size in (1, wanted) for size, wanted in zip(matrix.shape, full, strict=True)
    )
    if not fits:
        raise AttentionError(
            f"{name} has shape {_shape(matrix)}; expected (batch, head, query, key) = {full}, "
            f"where an axis may be 1. Add the missing ones: token_mask[:, None, None, :]."
        )


def _check_bias(bias: Tensor, dtype: torch.dtype) -> None:
    if bias.dtype != dtype:
        raise AttentionError(
            f"bias is {bias.dtype}; expected query's dtype, {dtype}. "
            "Convert it: bias.to(query.dtype)."
        )
    if not bool(bias.isfinite().all()):
        raise AttentionError(
            "bias holds NaN or an infinity; expected finite numbers. Keys that must not be seen "
            "go in as mask=, for instance mask=bias.isfinite() beside bias.nan_to_num(0, 0, 0)."
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
