"""VARIANTS: the forms in which the static gate compiles the kernels of the backward without a GPU.

Each variant holds what a call would pass: types, constants, tile sizes. The gate is
benchmarks/static_gate.py.
"""

from typing import Any

from minibert.kernels.fused.backward_bias import backward_bias_kernel
from minibert.kernels.fused.backward_keys import backward_key_value_kernel
from minibert.kernels.fused.backward_launch import Rows
from minibert.kernels.fused.backward_queries import backward_delta_kernel, backward_query_kernel
from minibert.kernels.fused.backward_tiles import FILL
from minibert.kernels.fused.launch import Config, Inputs, Sizes, Strides, block_of_features
from minibert.kernels.fused.tuning import GENERATIONS, candidates

__all__ = [
    "VARIANTS",
    "backward_bias_kernel",
    "backward_delta_kernel",
    "backward_key_value_kernel",
    "backward_query_kernel",
]

_ROW, _MATRIX = ("i32",) * 3, ("i32",) * 4
#: A part that a call does not have is a constant: None, or 1 where it is a number.
_NOTHING, _ONE = "constexpr", "constexpr 1"
#: Of `Options.words`, those that follow from what is given.
_WORDS = {"mask": "edges", "bias": "edges", "soft_cap": "shaped", "slopes": "shaped"}
_WORDS |= {"window": "window", "starts": "packed", "groups": "groups"}


def _inputs(kind: str, given: tuple[str, ...]) -> Inputs:
    rows = dict.fromkeys(("lse", "delta", "weights", "slopes", "sinks"), "*fp32")
    places = dict.fromkeys(("lengths", "starts", "key_starts", "prefix"), "*i64")
    types = rows | places | {"mask": "*u8", "bias": f"*{kind}", "soft_cap": "fp32"}
    vectors = dict.fromkeys(("query", "key", "value", "z_gradient"), f"*{kind}")
    chosen = {name: types[name] if name in given else _NOTHING for name in types}
    return Inputs(**vectors, **chosen)


def _strides(given: tuple[str, ...], *, z: bool = False) -> Strides:
    types: dict[str, Any] = {"mask": _MATRIX, "bias": _MATRIX, "slopes": ("i32",) * 2}
    chosen = {name: types[name] if name in given else _NOTHING for name in types}
    vectors = dict.fromkeys(("query", "key", "value", "z_gradient"), _ROW)
    return Strides(**vectors, **chosen, z=_ROW if z else _NOTHING)


def _sizes(given: tuple[str, ...]) -> Sizes:
    """For n_together and a group of one head the kernels are compiled with the number 1."""
    before = "i32" if "window" in given else _NOTHING
    group = "i32" if "groups" in given else _ONE
    return Sizes(*("i32",) * 5, _ONE, group, before, _NOTHING, n_filled="i32")


def _cut(kernel: str, kind: str, d_head: int, words: tuple[str, ...]) -> Config:
    return candidates(f"backward {kernel}", kind, d_head, " ".join(words))[0]


def _compiled(
    name: str,
    kernel: str,
    signature: dict[str, Any],
    constants: dict[str, Any],
    cut: Config,
) -> dict[str, Any]:
    absent: dict[Any, Any] = {
        (place, i): 1 if one == _ONE else None
        for place, types in enumerate(signature.values())
        if isinstance(types, tuple)
        for i, one in enumerate(types)
        if one in (_NOTHING, _ONE)
    }
    plain = {argument: _plain(types) for argument, types in signature.items()}
    return {
        "name": name,
        "kernel": f"backward_{kernel}_kernel",
        "signature": plain,
        "constexprs": absent | constants,
        "num_warps": cut.num_warps,
        "num_stages": cut.num_stages,
        "score_elements": cut.block_m * cut.block_n,
        "divisible": _divisible(plain),
    }


def _plain(types: Any) -> Any:
    if not isinstance(types, tuple):
        return types
    plain = [_NOTHING if one == _ONE else one for one in types]
    return type(types)(*plain) if hasattr(types, "_fields") else tuple(plain)


def _divisible(signature: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Pointers, strides and filled sizes: multiples of 16 in every call with d_head 64 or 128."""
    found: list[tuple[Any, ...]] = [("sizes", Sizes._fields.index("n_filled"))]
    for name, types in signature.items():
        if isinstance(types, str) and types.startswith("*"):
            found.append((name,))
        elif "strides" in name:
            rows = enumerate(types)
            found += [(name, i, j) for i, row in rows if row != _NOTHING for j in range(len(row))]
        elif isinstance(types, tuple):
            found += [(name, i) for i, one in enumerate(types) if str(one).startswith("*")]
    return found


def _constants(d_head: int, cut: Config, *, causal: bool) -> dict[str, Any]:
    constants = {"CAUSAL": causal, "PRECISION": "ieee", "D_HEAD": d_head, "D_VALUE": d_head}
    constants |= dict.fromkeys(("BLOCK_D", "BLOCK_V"), block_of_features(d_head))
    return constants | {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n}


def _variant(
    kernel: str,
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    relevance: int = 0,
    given: tuple[str, ...] = (),
    gradients: bool = True,
    arch: int = 90,
) -> dict[str, Any]:
    """One variant of the kernel that owns keys ("key_value") or queries ("query")."""
    words = [_WORDS[name] for name in given if name in _WORDS]
    words += ["causal"] * causal + ["relevance"] * (bool(relevance) and gradients)
    words.append(GENERATIONS[arch])
    cut = _cut("keys" if kernel == "key_value" else "queries", kind, d_head, tuple(words))
    n_vectors = 2 if kernel == "key_value" else 1
    outputs = (f"*{kind}" if gradients else _NOTHING,) * n_vectors
    outputs += ("*fp32" if relevance else _NOTHING,)
    signature = {
        "inputs": _inputs(kind, ("lse", *["delta"] * gradients, *given)),
        "strides": _strides(given),
        "outputs": outputs,
        "output_strides": (_ROW,) * n_vectors,
        "sizes": _sizes(given),
        "scale": "fp32",
    }
    constants = _constants(d_head, cut, causal=causal) | {"KIND": relevance}
    if kernel == "key_value":
        constants["GROUPED"] = "groups" in given
    what = ["causal"] * causal + ["relevance"] * bool(relevance) + list(given)
    what += [] if gradients else ["columns"]
    what += [f"sm_{arch}"] * (arch != 90)
    name = " ".join([f"backward_{kernel} {kind} d{d_head}", *what])
    found = _compiled(name, kernel, signature, constants, cut)
    if arch != 90:
        return found | {"arch": arch}
    # wgmma takes 64 rows; fewer are for the older instruction.
    rows = cut.block_n if kernel == "key_value" else cut.block_m
    return found | ({"matrix": "HMMA"} if rows < 64 and kind != "fp32" else {})


def _delta(kind: str, d_head: int, given: tuple[str, ...] = ()) -> dict[str, Any]:
    sinks = "*fp32" if "sinks" in given else _NOTHING
    signature: dict[str, Any] = {
        "inputs": _inputs(kind, ("lse", "delta", *given)),
        "rows": Rows(f"*{kind}", "*fp32", _NOTHING, _NOTHING, _NOTHING, sinks),
        "strides": _strides((), z=True),
        "sizes": _sizes(given),
    }
    block: int = FILL.value
    constants = {"D_VALUE": d_head, "BLOCK_V": block_of_features(d_head), "BLOCK_M": block}
    name = " ".join([f"backward_delta {kind} d{d_head}", *given])
    found = _compiled(name, "delta", signature, constants, Config(block, 1, 8, 3))
    # Sums of products, row by row: nothing to multiply matrices for.
    return found | {"score_elements": block * block_of_features(d_head), "matrix": None}


def _bias(kind: str, d_head: int, arch: int = 90) -> dict[str, Any]:
    """The gradient of a bias that all sentences share."""
    cut = _cut("bias", kind, d_head, ("edges", GENERATIONS[arch]))
    signature = {
        "inputs": _inputs(kind, ("lse", "delta", "bias")),
        "strides": _strides(("bias",)),
        "output": f"*{kind}",
        "shape": _MATRIX,
        "spans": _MATRIX,
        "sizes": _sizes(()),
        "scale": "fp32",
    }
    constants = _constants(d_head, cut, causal=False)
    name = f"backward_bias {kind} d{d_head}" + f" sm_{arch}" * (arch != 90)
    return _compiled(name, "bias", signature, constants, cut) | {"arch": arch}


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
    return found + _beyond_one_head_a_key() + _other_gpus()


def _beyond_one_head_a_key() -> list[dict[str, Any]]:
    """Grouped heads, packed sentences, windows, shaped scores, and heads of 256."""
    found = [_delta("bf16", 64, ("starts", "sinks"))]
    for kernel in ("key_value", "query"):
        for d_head in (64, 128):
            given = ("groups", "window")
            found.append(_variant(kernel, "bf16", d_head, causal=True, given=given))
            found.append(_variant(kernel, "bf16", d_head, given=("soft_cap", "slopes")))
        packed = ("groups", "starts", "key_starts")
        found.append(_variant(kernel, "bf16", 128, causal=True, given=packed))
        found.append(_variant(kernel, "bf16", 128, causal=True, relevance=3, given=("groups",)))
        found.append(_variant(kernel, "fp32", 128, causal=True, given=("groups", "window")))
        found.append(_variant(kernel, "bf16", 256, causal=True, given=("groups", "window")))
        found.append(_variant(kernel, "bf16", 256, causal=True, relevance=3))
        found.append(_variant(kernel, "fp32", 256))
    return found


def _other_gpus() -> list[dict[str, Any]]:
    """The variants that take most registers, on GPUs before and after Hopper."""
    found, near = [], ("groups", "window")
    packed = ("groups", "starts", "key_starts")
    shapes: list[tuple[str, ...]] = [(), ("mask", "bias"), ("soft_cap", "slopes")]
    for d_head in (64, 128):
        for kernel in ("key_value", "query"):
            for given in (*shapes, near):
                one = _variant(kernel, "bf16", d_head, causal=True, given=given, arch=80)
                found.append(one)
        for given in (*shapes, near, packed, ("groups", "mask", "bias")):
            one = _variant("key_value", "bf16", d_head, causal=True, given=given, arch=100)
            found.append(one)
        for kernel, given in (("key_value", ("groups",)), ("query", ("groups",))):
            found.append(
                _variant(kernel, "bf16", d_head, causal=True, relevance=3, given=given, arch=100)
            )
        found.append(_variant("query", "bf16", d_head, causal=True, given=near, arch=100))
        found += [_bias("bf16", d_head, arch) for arch in (80, 100)]
    for kind in (0, 3):
        one = _variant("query", "bf16", 128, causal=True, relevance=kind, given=packed, arch=80)
        found.append(one)
    return found


#: What the static gate compiles; see benchmarks/static_gate.py for the fields.
VARIANTS = _all()
