"""The checks of a call that comes into `attend`, and of the result of a user's implementation.

Each field is checked once, where it enters. A message says what is wrong, what was expected and
what to do.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import Window
from minibert.kernels.call import MATRICES, RANKED, TENSORS, Call, Outputs, Want, wide
from minibert.kernels.registry import FLOATS

_VECTORS = "(batch, head, position, d_head)"


def check_call(
    query: Tensor, key: Tensor, value: Tensor, *, dropout: float = 0.0, **options: Any
) -> dict[str, Any]:
    """The options of a call, in the form that `Call.of` takes.

    On a CPU the numbers in lengths, bias and the like are checked. On another device that would
    stall it; there a length beyond the keys counts as all of them.
    Raises AttentionError when tensors do not fit together, or an option is not what it should be.
    """
    given = {name: one for name, one in options.items() if one is not None}
    vectors = {"query": query, "key": key, "value": value}
    tensors = ("lengths", "mask", "bias", "pages", "alibi_slopes", "sinks")
    for name, tensor in (vectors | {one: given[one] for one in tensors if one in given}).items():
        check_tensor(name, tensor, query)
    pages, lengths = given.get("pages"), given.get("lengths")
    _check_vectors(query, key, value, paged=pages is not None)
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    if pages is not None:
        K = _check_pages(pages, lengths, key, B)
    if lengths is not None:
        _check_lengths(lengths, B, K)
        given["lengths"] = lengths.long()
    for name in ("mask", "bias"):
        if name in given:
            _check_matrix(name, given[name], (B, H, Q, K), query.dtype)
    _check_numbers(given, dropout)
    for name, shapes in (("alibi_slopes", ((H,), (1, H), (B, H))), ("sinks", ((H,),))):
        if name in given:
            _check_of_heads(name, given[name], shapes)
    if "window" in given:
        given["window"] = _checked_window(given["window"])
    if "packed" in given:
        given |= _checked_packed(given, query, key)
    elif "packed_keys" in given:
        raise AttentionError("packed_keys come without packed; expected both.")
    if "prefix" in given:
        sentences = len(given["packed"]) if "packed" in given else B
        _check_prefix(given["prefix"], query, causal=given["causal"], sentences=sentences)
    return given


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


def may_look(tensor: Tensor) -> bool:
    """True where the numbers of a tensor are checked: not on a GPU or while torch compiles."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


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


def _converted(name: str, dtype: torch.dtype) -> str:
    """Advice for making it a floating tensor."""
    if dtype.is_complex:
        return f"{name}.real, or {name}.abs()"
    if dtype.is_floating_point and dtype.itemsize == 1:
        return f"{name}.to(torch.bfloat16), times its scale if it has one"
    return f"{name}.to(torch.float32)"


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


def _check_matrix(
    name: str, matrix: Tensor, full: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    fits = matrix.ndim == 4 and all(
        size in (1, wanted) for size, wanted in zip(matrix.shape, full, strict=True)
    )
    if not fits:
        raise AttentionError(
            f"{name} has shape {_shape(matrix)}; expected (batch, head, query, key) = {full}, "
            f"where an axis may be 1. Add the missing ones: token_mask[:, None, None, :]."
        )
    if name == "mask" and matrix.dtype != torch.bool:
        raise AttentionError(
            f"mask is {matrix.dtype}; expected torch.bool, True where attention is allowed. "
            "An additive mask goes in as bias=, a mask of ones and zeros as mask=mask.bool()."
        )
    if name == "bias":
        _check_bias(matrix, dtype)


def _check_bias(bias: Tensor, dtype: torch.dtype) -> None:
    if bias.dtype != dtype:
        raise AttentionError(f"bias is {bias.dtype}; give bias.to({dtype}), query's dtype.")
    if may_look(bias) and not bool(bias.isfinite().all()):
        raise AttentionError(
            "bias holds NaN or an infinity; expected finite numbers. Keys that must not be seen "
            "go in as mask=, for instance mask=bias.isfinite() beside bias.nan_to_num(0, 0, 0)."
        )


def _check_numbers(given: dict[str, Any], dropout: float) -> None:
    """Checks dropout, causal, scale and soft_cap, and makes the last two floats."""
    if dropout != 0:
        raise AttentionError(
            f"dropout is {dropout!r:.80}; expected 0: attention here gives the same numbers each "
            "time. For training apply torch.nn.functional.dropout to z, or to probs."
        )
    causal, scale, soft_cap = given.get("causal"), given.get("scale"), given.get("soft_cap")
    if not isinstance(causal, bool):
        raise AttentionError(
            f"causal is {causal!r}; expected True or False. A mask goes in as mask=."
        )
    if scale is not None:
        if not _is_finite(scale):
            raise AttentionError(
                f"scale is {scale!r}; expected one finite number, or None for 1/sqrt(d_head). "
                "A tensor of one element goes in as scale.item()."
            )
        given["scale"] = float(scale)
    if soft_cap is not None:
        if not _is_finite(soft_cap) or not soft_cap > 0:
            raise AttentionError(
                f"soft_cap is {soft_cap!r:.80}; expected a finite number above 0, or None."
            )
        given["soft_cap"] = float(soft_cap)


def _is_finite(number: Any) -> bool:
    """True for one finite number that a float can hold."""
    real = isinstance(number, Real) and not isinstance(number, bool)
    return real and bool(abs(number) <= sys.float_info.max)


def _check_of_heads(name: str, given: Tensor, shapes: tuple[tuple[int, ...], ...]) -> None:
    if not given.is_floating_point() or tuple(given.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise AttentionError(
            f"{name} is {given.dtype} of shape {tuple(given.shape)}; expected floating numbers "
            f"of shape {expected}, one for each query head."
        )
    if may_look(given) and not bool(given.isfinite().all()):
        raise AttentionError(f"{name} holds NaN or an infinity; expected finite numbers.")


def _checked_window(window: object) -> Window | None:
    """The keys before and after that a query may see; None where that is all."""
    pair = tuple(window) if isinstance(window, tuple | list) else ()
    if len(pair) != 2 or not all(one is None or _is_count(one) for one in pair):
        raise AttentionError(
            f"window is {window!r:.80}; expected (before, after): how many keys before and after "
            "its own position a query may see, each a whole number from 0, or None for all. "
            "Mistral's sliding_window=4096 is window=(4095, 0)."
        )
    return None if pair == (None, None) else pair


def _check_prefix(prefix: Any, query: Tensor, *, causal: bool, sentences: int) -> None:
    if isinstance(prefix, int):
        raise AttentionError(
            f"prefix is {prefix}; expected a tensor with a number for each sentence. For the same "
            f"in all: torch.full(({sentences},), {prefix})."
        )
    check_tensor("prefix", prefix, query)
    if prefix.dtype not in (torch.int32, torch.int64) or tuple(prefix.shape) != (sentences,):
        raise AttentionError(
            f"prefix is {prefix.dtype} of shape {tuple(prefix.shape)}; expected torch.int64, "
            f"({sentences},): the number of keys of each sentence that all its queries see."
        )
    if not causal:
        raise AttentionError(
            "prefix comes without causal=True; expected both: without causal order every query "
            "sees all keys as it is."
        )
    if may_look(prefix) and bool((prefix < 0).any()):
        raise AttentionError(f"prefix is {prefix.tolist()!s:.80}; expected numbers from 0.")


def _checked_packed(given: dict[str, object], query: Tensor, key: Tensor) -> dict[str, object]:
    """The queries of each packed sentence, and its keys where they are not as many."""
    numbers = _packed_numbers("packed", given["packed"])
    if others := [name for name in ("lengths", "mask", "bias", "pages") if name in given]:
        raise AttentionError(
            f"packed comes with {' and '.join(others)}; expected it without. Each sentence sees "
            "itself alone; pad them into a batch for more than that."
        )
    packed_keys = given.get("packed_keys")
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
    return {"packed": numbers, "packed_keys": None if keys == numbers else keys}


def _packed_numbers(name: str, given: object) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        raise AttentionError(
            f"{name} is {given!r:.80}; expected the number of tokens of each sentence, whole "
            f"numbers from 1, for instance {name}=(5, 7, 3)."
        )
    return numbers


def check_wanted_tensors(call: Call, want: Want) -> None:
    """Raises AttentionError where a wanted tensor does not fit a call."""
    batch, heads, queries, _ = call.query.shape
    keys = call.allowed.position
    for name in TENSORS.keys() & want.keys():
        tensor = want[name]
        shape = tuple(tensor.shape)
        sizes = (batch, heads, keys) if name == "key_sums" else (batch,)
        fits = all(
            size == wanted or (size == 1 and axis < 2)
            for axis, (size, wanted) in enumerate(zip(shape, sizes, strict=False))
        )
        if not fits or (name == "pair_mass" and shape[-1] != 2):
            raise AttentionError(
                f"({name!r}, tensor of shape {shape}): expected {TENSORS[name]}; here batch is "
                f"{batch}, head {heads} and key {keys}."
            )
    if "pair_mass" in want:
        _check_pairs(call, want["pair_mass"], queries, keys)


def _check_pairs(call: Call, pairs: Tensor, queries: int, keys: int) -> None:
    query, key = pairs.unbind(-1)
    inside = (query >= 0) & (query < queries) & (key >= 0) & (key < keys)
    wrong = ~(inside | ((query == -1) & (key == -1)))
    if call.packed is not None:
        counts = (call.packed, call.packed_keys or call.packed)
        of_query, of_key = (_sentences(one, pairs.device) for one in counts)
        wrong |= inside & (of_query[query.clamp(0, queries - 1)] != of_key[key.clamp(0, keys - 1)])
    if bool(wrong.any()):
        _, number = wrong.nonzero()[0].tolist()
        raise AttentionError(
            f'("pair_mass", pairs): pair {number} is {pairs[:, number].tolist()[0]}; expected a '
            f"query from 0 to {queries - 1} and a key from 0 to {keys - 1}, of the same sentence "
            "where they are packed, or −1 and −1 for no pair."
        )


def _sentences(lengths: Iterable[int], device: torch.device) -> Tensor:
    """Which sentence each token is of."""
    numbers = torch.tensor(tuple(lengths), device=device)
    return torch.arange(len(numbers), device=device).repeat_interleave(numbers)


def check_outputs(
    found: Outputs,
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    want: Want,
    *,
    exact: bool = True,
) -> None:
    """Checks what an implementation of this name gave.

    Raises AttentionError when an output has not the shape and the dtype that `api.Attended` and
    `api.Statistics` promise. Not `exact`, float64 is allowed for any floating output, which is what
    the reference gives.
    """
    for output, shape in _promised_shapes(query, key, value, want).items():
        if output in found:
            dtype = _dtype(output, query)
            wider = () if exact or not dtype.is_floating_point else (torch.float64,)
            _check_output(f'impl="{name}" gave {output}', found[output], shape, (dtype, *wider))


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
    shapes |= {name: (B, H, Q, *want[name]) for name in RANKED if name in want}
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
    if output in ("argmax", "top_keys"):
        return torch.int64
    return query.dtype if output in ("z", *MATRICES) else wide(query.dtype)


def _check_output(
    gave: str, found: object, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    blame = "The kernel is wrong; minibert.kernels.check.parity.check tells more."
    if not isinstance(found, Tensor):
        raise AttentionError(f"{gave} as a {type(found).__name__}; expected a tensor. {blame}")
    if tuple(found.shape) != shape:
        raise AttentionError(f"{gave} of shape {tuple(found.shape)}; expected {shape}. {blame}")
    if found.dtype not in dtypes:
        raise AttentionError(f"{gave} in {found.dtype}; expected {dtypes[0]}. {blame}")


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
