"""VARIANTS: the forms in which the static gate compiles the kernels of the backward without a GPU.

Each variant holds what a call would pass: types, constants, tile sizes. The gate is
benchmarks/static_gate.py.
"""

from typing import Any

import torch

from minibert.kernels.fused.backward_bias import backward_bias_kernel
from minibert.kernels.fused.backward_keys import backward_key_value_kernel
from minibert.kernels.fused.backward_launch import FILL, d_block, tile_of
from minibert.kernels.fused.backward_queries import backward_delta_kernel, backward_query_kernel
from minibert.kernels.fused.backward_tiles import Inputs, Sizes, Strides

__all__ = [
    "VARIANTS",
    "backward_bias_kernel",
    "backward_delta_kernel",
    "backward_key_value_kernel",
    "backward_query_kernel",
]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_ROW, _MATRIX = ("i32", "i32", "i32"), ("i32", "i32", "i32", "i32")
_SIZES = Sizes("i32", "i32", "i32", "i32")
#: None in a tuple is a constant, known by its place.
_NOTHING = "constexpr"


def _inputs(kind: str, given: tuple[str, ...]) -> Inputs:
    numbers = {"lse": "*fp32", "delta": "*fp32", "weights": "*fp32", "lengths": "*i64"}
    types = numbers | {"mask": "*u8", "bias": f"*{kind}"}
    vectors = [f"*{kind}"] * 4
    return Inputs(*vectors, *(types[name] if name in given else _NOTHING for name in types))


def _variant(
    kernel: str,
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    relevance: int = 0,
    given: tuple[str, ...] = (),
    gradients: bool = True,
) -> dict[str, Any]:
    """One variant of the kernel that owns keys or queries."""
    cells = "mask" in given or "bias" in given
    tile = tile_of(
        kernel, _TYPES[kind], d_head, cells=cells, relevance=bool(relevance) and gradients
    )
    inputs = _inputs(kind, ("lse", "delta", *given) if gradients else ("lse", *given))
    n_vectors = 2 if kernel == "key_value" else 1
    outputs = (f"*{kind}" if gradients else _NOTHING,) * n_vectors
    outputs += ("*fp32" if relevance else _NOTHING,)
    signature = {
        "inputs": inputs,
        "strides": Strides(*(_ROW,) * 4, _MATRIX, _MATRIX),
        "outputs": outputs,
        "output_strides": (_ROW,) * n_vectors,
        "sizes": _SIZES,
        "scale": "fp32",
    }
    constants: dict[Any, Any] = {
        (place, i): None
        for place, types in ((0, inputs), (2, outputs))
        for i, one in enumerate(types)
        if one == _NOTHING
    }
    constants |= {"D_HEAD": d_head, "D_BLOCK": d_block(d_head), "CAUSAL": causal}
    constants |= {"KIND": relevance, "QUERIES": tile.queries, "KEYS": tile.keys}
    what = ["causal"] * causal + ["relevance"] * bool(relevance) + list(given)
    what += [] if gradients else ["columns"]
    return {
        "name": " ".join([f"backward_{kernel} {kind} d{d_head}", *what]),
        "kernel": f"backward_{kernel}_kernel",
        "signature": signature,
        "constexprs": constants | {"PRECISION": "ieee"},
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "score_elements": tile.queries * tile.keys,
        "divisible": _divisible(signature),
    }


def _divisible(signature: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Pointers, strides and filled sizes: multiples of 16 in every call with d_head 64 or 128."""
    found: list[tuple[Any, ...]] = [("sizes", 2)]
    for name in ("inputs", "outputs"):
        found += [(name, i) for i, one in enumerate(signature[name]) if one != _NOTHING]
    for name in ("strides", "output_strides"):
        found += [(name, i, j) for i, row in enumerate(signature[name]) for j in range(len(row))]
    return found


def _delta(kind: str, d_head: int) -> dict[str, Any]:
    signature: dict[str, Any] = {"z": f"*{kind}", "z_gradient": f"*{kind}"}
    signature |= {"lse": "*fp32", "delta": "*fp32", "lse_in_base_2": "*fp32"}
    signature |= {"z_strides": _ROW, "z_gradient_strides": _ROW, "sizes": _SIZES}
    strides = [(name, i) for name in ("z_strides", "z_gradient_strides") for i in range(3)]
    return {
        "name": f"backward_delta {kind} d{d_head}",
        "kernel": "backward_delta_kernel",
        "signature": signature,
        "constexprs": {"D_HEAD": d_head, "D_BLOCK": d_block(d_head), "QUERIES": FILL},
        "num_warps": 8,
        "num_stages": 3,
        "score_elements": FILL * d_block(d_head),
        "divisible": [*signature.keys() - {"sizes", "z_strides", "z_gradient_strides"}, *strides],
        # Sums of products, row by row: nothing to multiply matrices for.
        "matrix": None,
    }


def _bias(kind: str, d_head: int) -> dict[str, Any]:
    """The gradient of a bias that all sentences share."""
    tile = tile_of("query", _TYPES[kind], d_head, cells=True)
    inputs = _inputs(kind, ("lse", "delta", "bias"))
    signature = {
        "inputs": inputs,
        "strides": Strides(*(_ROW,) * 4, _MATRIX, _MATRIX),
        "output": f"*{kind}",
        "shape": _MATRIX,
        "spans": _MATRIX,
        "sizes": _SIZES,
        "scale": "fp32",
    }
    constants: dict[Any, Any] = {(0, i): None for i, one in enumerate(inputs) if one == _NOTHING}
    constants |= {"D_HEAD": d_head, "D_BLOCK": d_block(d_head), "CAUSAL": False}
    constants |= {"QUERIES": tile.queries, "KEYS": tile.keys, "PRECISION": "ieee"}
    pointers = [("inputs", i) for i, one in enumerate(inputs) if one != _NOTHING]
    strides = [("strides", i, j) for i in range(6) for j in range(3 if i < 4 else 4)]
    return {
        "name": f"backward_bias {kind} d{d_head}",
        "kernel": "backward_bias_kernel",
        "signature": signature,
        "constexprs": constants,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "score_elements": tile.queries * tile.keys,
        "divisible": [("sizes", 2), ("output",), *pointers, *strides],
    }


def _all() -> list[dict[str, Any]]:
    found = []
    for d_head in (64, 128):
        for kernel in ("key_value", "query"):
            for causal in (False, True):
                found.append(_variant(kernel, "bf16", d_head, causal=causal))
            found.append(_variant(kernel, "bf16", d_head, causal=True, relevance=3))
    for d_head in (64, 128):
        for kernel in ("key_value", "query"):
            found.append(_variant(kernel, "bf16", d_head, given=("mask", "bias")))
        found.append(
            _variant("key_value", "bf16", d_head, relevance=2, given=("weights",), gradients=False)
        )
        found.append(_delta("bf16", d_head))
        found.append(_bias("bf16", d_head))
    for kernel in ("key_value", "query"):
        found.append(_variant(kernel, "fp32", 64))
        # With lengths the first takes most registers; in fp16 the numbers are those of bf16.
        found.append(_variant(kernel, "bf16", 128, causal=True, given=("lengths",)))
        found.append(_variant(kernel, "fp16", 64, causal=True, relevance=3))
        found.append(_variant(kernel, "fp32", 64, causal=True, relevance=3))
        for d_head in (64, 128):
            found.append(_variant(kernel, "fp32", d_head, causal=True, given=("mask", "bias")))
    found += [_bias("fp32", 64), _bias("fp32", 128), _variant("query", "fp32", 64, given=("mask",))]
    return found


#: What the static gate compiles; see benchmarks/static_gate.py for the fields.
VARIANTS = _all()
