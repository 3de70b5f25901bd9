"""The check of the tensors that come into `attend`."""

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.implementation import FLOATS

__all__ = [
    "check_inputs",
    "check_options",
    "check_packed",
    "check_rows",
    "check_tensor",
    "may_look",
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
    pages: Tensor | None = None,
) -> None:
    """Raises AttentionError when the tensors do not fit together; gives nothing back.

    On a CPU the numbers in lengths, bias and pages are looked at; on another device that would
    stall it, and a length beyond the keys counts as all of them.
    """
    given = {"query": query, "key": key, "value": value}
    optional = {"lengths": lengths, "mask": mask, "bias": bias, "pages": pages}
    given |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    for name, tensor in given.items():
        check_tensor(name, tensor, query)
    _check_vectors(query, key, value, paged=pages is not None)
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    if pages is not None:
        K = _check_pages(pages, lengths, key, B)
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


def check_options(*, causal: Any, scale: Any, dropout: Any = 0.0) -> None:
    """Raises AttentionError unless causal is a bool, scale None or finite, and dropout 0."""
    if dropout != 0:
        raise AttentionError(
            f"dropout is {dropout!r:.80}; expected 0: attention here gives the same numbers each "
            "time. For training apply torch.nn.functional.dropout to z, or to probs."
        )
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
    packed: Any,
    packed_keys: Any,
    query: Tensor,
    key: Tensor,
    others: Mapping[str, Tensor | None],
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The queries of each packed sentence, and its keys where they are not as many.

    Raises AttentionError unless they are whole numbers that add up to the tokens of a batch of one.
    """
    numbers = _packed_numbers("packed", packed)
    if given := [name for name, tensor in others.items() if tensor is not None]:
        raise AttentionError(
            f"packed comes with {' and '.join(given)}; expected it without. Each sentence sees "
            "itself alone; pad them into a batch for more than that."
        )
    keys = numbers if packed_keys is None else _packed_numbers("packed_keys", packed_keys)
    if len(keys) != len(numbers):
        raise AttentionError(
            f"packed_keys is of {len(keys)} sentences and packed of {len(numbers)}; expected one "
            "number of keys for each sentence."
        )
    for name, given_numbers, vectors in (("packed", numbers, query), ("packed_keys", keys, key)):
        if vectors.shape[0] != 1 or vectors.shape[2] != sum(given_numbers):
            which = "query" if vectors is query else "key"
            raise AttentionError(
                f"{name}={given_numbers!s:.80} holds {sum(given_numbers)} tokens, beside {which} "
                f"{_shape(vectors)}; expected a batch of one with as many."
            )
    return numbers, None if keys == numbers else keys


def _packed_numbers(name: str, given: Any) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        raise AttentionError(
            f"{name} is {given!r:.80}; expected the number of tokens of each sentence, whole "
            f"numbers from 1, for instance {name}=(5, 7, 3)."
        )
    return numbers


def check_rows(
    name: str, tensor: Any, query: Tensor, shapes: Sequence[tuple[int, ...]], meaning: str
) -> None:
    """Raises AttentionError unless it is a floating tensor of one of the shapes beside query."""
    check_tensor(name, tensor, query)
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


def may_look(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are looked at: not on a GPU, nor while torch compiles."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def check_tensor(name: str, tensor: Any, query: Any) -> None:
    """Raises AttentionError unless it is a dense tensor on the device of query."""
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


def _check_vectors(query: Tensor, key: Tensor, value: Tensor, *, paged: bool) -> None:
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
    batch, kv_heads, K, _ = key.shape
    if (batch != B and not paged) or H % kv_heads or key.shape[3] != D:
        first = "pages" if paged else B
        raise AttentionError(
            f"key has shape {_shape(key)} beside query {_shape(query)}; expected "
            f"({first}, kv_heads, keys, {D}): the same batch and d_head, and kv_heads by which the "
            f"{H} query heads can be divided."
        )
    if value.shape[:3] != key.shape[:3]:
        raise AttentionError(
            f"value has shape {_shape(value)}; expected ({batch}, {kv_heads}, {K}, d_value) beside "
            f"key {_shape(key)}: one value for each key."
        )


def _check_pages(pages: Tensor, lengths: Tensor | None, key: Tensor, n_sentences: int) -> int:
    """How many keys the pages of a sentence have room for."""
    if pages.dtype not in (torch.int32, torch.int64) or pages.ndim != 2:
        raise AttentionError(
            f"pages is {pages.dtype} of shape {_shape(pages)}; expected whole numbers (batch, "
            "page): which of key's pages each sentence has, in order."
        )
    if len(pages) != n_sentences:
        raise AttentionError(
            f"pages has {len(pages)} rows beside a query of {n_sentences} sentences; expected one "
            "for each."
        )
    if lengths is None:
        raise AttentionError(
            "pages come without lengths; expected lengths=, the number of keys that each sentence "
            "has in its pages."
        )
    slots = key.shape[2]
    if may_look(pages) and lengths.shape == (n_sentences,):
        used = torch.arange(pages.shape[1]) * slots < lengths[:, None]
        outside = used & ((pages < 0) | (pages >= len(key)))
        if bool(outside.any()):
            sentence, page = outside.nonzero()[0].tolist()
            raise AttentionError(
                f"pages[{sentence}, {page}] is {int(pages[sentence, page])}; expected 0 to "
                f"{len(key) - 1}, one of key's pages."
            )
    return pages.shape[1] * slots


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
    if not may_look(lengths):
        return
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
    if may_look(bias) and not bool(bias.isfinite().all()):
        raise AttentionError(
            "bias holds NaN or an infinity; expected finite numbers. Keys that must not be seen "
            "go in as mask=, for instance mask=bias.isfinite() beside bias.nan_to_num(0, 0, 0)."
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
