"""VARIANTS: the forms in which the static gate compiles our Triton kernels without a GPU.

Each variant holds what a call would pass: types, constants, tile sizes; `static_gate.py` explains
its fields.
"""

from collections.abc import Mapping
from typing import Any

from minibert.kernels.fused.backward import Rows
from minibert.kernels.fused.backward_kernels import (
    FILL,
    backward_bias_kernel,
    backward_delta_kernel,
    backward_key_value_kernel,
    backward_query_kernel,
)
from minibert.kernels.fused.columns import Columns, columns_kernel
from minibert.kernels.fused.forward import forward_kernel
from minibert.kernels.fused.launch import (
    Chosen,
    Config,
    Inputs,
    RowOutputs,
    Sizes,
    Strides,
    best_of,
    block_of_features,
)
from minibert.kernels.fused.one_tile import LARGEST_TILE, Summed, fitted, one_tile_kernel
from minibert.kernels.fused.primitives import Grid
from minibert.kernels.fused.tuning import GENERATIONS, KINDS, candidates

#: By name, as the gate finds them.
KERNELS = (
    forward_kernel,
    columns_kernel,
    one_tile_kernel,
    backward_key_value_kernel,
    backward_query_kernel,
    backward_delta_kernel,
    backward_bias_kernel,
)

Variant = dict[str, Any]
Names = tuple[str, ...]

#: A part that a call does not have is a constant: None, or 1 where it is a number.
_NOTHING, _ONE = "constexpr", "constexpr 1"
_ROW, _MATRIX = ("i32",) * 3, ("i32",) * 4
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
_T1 = ("row_max", "max_prob", "entropy", "offset_mass", "key_mass")
_T2 = (*_T1, "argmax")
_NEAR, _SHAPED, _EDGES = ("window", "groups"), ("slopes", "sinks", "soft_cap"), ("mask", "bias")
_PACKED = ("groups", "starts", "key_starts")
#: The word of `launch.words` for what is given.
_WORDS = {"starts": "packed", "mask": "edges", "bias": "edges", "window": "window"}
_WORDS |= {"slopes": "shaped", "soft_cap": "shaped"}


def _filled(kind: type[Any], types: Mapping[str, Any]) -> Any:
    """The named tuple of these types, its absent parts as constants."""
    return kind(**{name: types.get(name, _NOTHING) for name in kind._fields})


def _inputs(kind: str, given: Names) -> Inputs:
    types = dict.fromkeys(("lse", "delta", "weights", "slopes", "sinks"), "*fp32")
    types |= dict.fromkeys(("lengths", "starts", "key_starts", "prefix"), "*i64")
    types |= {"mask": "*u8", "bias": f"*{kind}", "soft_cap": "fp32", "z_gradient": f"*{kind}"}
    vectors = dict.fromkeys(("query", "key", "value"), f"*{kind}")
    return _filled(Inputs, vectors | {name: types[name] for name in types if name in given})


def _strides(given: Names) -> Strides:
    types: dict[str, Any] = {"mask": _MATRIX, "bias": _MATRIX, "slopes": ("i32",) * 2}
    types |= {"z": _ROW, "z_gradient": _ROW}
    vectors = dict.fromkeys(("query", "key", "value"), _ROW)
    return _filled(Strides, vectors | {name: types[name] for name in types if name in given})


def _sizes(given: Names, *, backward: bool = False) -> Sizes:
    """Of the backward n_together is the number 1, as is the group of one query head a key head."""
    types = dict.fromkeys(("n_places", "n_heads", "n_queries", "n_keys", "n_blocks"), "i32")
    types |= {"n_together": _ONE, "n_filled": "i32"} if backward else {"n_together": "i32"}
    types["group"] = "i32" if "groups" in given else _ONE
    return _filled(Sizes, types | ({"before": "i32"} if "window" in given else {}))


def _words(given: Names) -> str:
    return " ".join(dict.fromkeys(_WORDS[name] for name in given if name in _WORDS))


def _variant(
    kernel: str,
    name: Names,
    cut: Config,
    signature: dict[str, Any],
    constants: dict[str, Any],
    arch: int = 90,
) -> Variant:
    absent: dict[Any, Any] = {
        (place, i): 1 if one == _ONE else None
        for place, types in enumerate(signature.values())
        if isinstance(types, tuple)
        for i, one in enumerate(types)
        if one in (_NOTHING, _ONE)
    }
    plain = {argument: _plain(types) for argument, types in signature.items()}
    return {
        "name": " ".join((kernel, *name, *[f"sm_{arch}"] * (arch != 90))),
        "arch": arch,
        "kernel": f"{kernel}_kernel",
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
    found: list[tuple[Any, ...]] = []
    for name, types in signature.items():
        if isinstance(types, str) and types.startswith("*"):
            found.append((name,))
        elif "strides" in name:
            rows = enumerate(types)
            found += [(name, i, j) for i, row in rows if row != _NOTHING for j in range(len(row))]
        elif isinstance(types, tuple):
            found += [(name, i) for i, one in enumerate(types) if str(one).startswith("*")]
    if signature["sizes"].n_filled != _NOTHING:
        found.append(("sizes", Sizes._fields.index("n_filled")))
    return found


def _constants(d_head: int, cut: Config, *, causal: bool, **more: Any) -> dict[str, Any]:
    constants = {"CAUSAL": causal, "PRECISION": "ieee", "D_HEAD": d_head, "D_VALUE": d_head, **more}
    constants |= dict.fromkeys(("BLOCK_D", "BLOCK_V"), block_of_features(d_head))
    return constants | {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n}


def _named(cut: Config) -> str:
    tile = f"{cut.block_m}x{cut.block_n}"
    return f"{tile} {cut.num_warps} warps {cut.num_stages} stages{' tma' * cut.tma}"


def _written(kind: str, wants: Names) -> dict[str, Any]:
    """What a kernel writes for each row, and probs of chosen cells."""
    types = dict.fromkeys(("row_max", "max_prob", "entropy"), "*fp32") | {"argmax": "*i64"}
    rows = {name: one for name, one in types.items() if name in wants}
    masses = [
        ("*fp32", "*i32", "i32") if name in wants else (_NOTHING,) * 3
        for name in ("offset_mass", "key_mass")
    ]
    outputs = _filled(RowOutputs, {"z": f"*{kind}", "lse": "*fp32"} | rows)
    return {"outputs": outputs, "chosen": Chosen(*masses[0], *masses[1])}


def _forward(
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    wants: Names = (),
    given: Names = (),
    arch: int = 90,
) -> list[Variant]:
    signature = {"inputs": _inputs(kind, given), **_written(kind, wants)}
    signature |= {"strides": _strides((*given, "z")), "sizes": _sizes(given), "scale": "fp32"}
    tier = "T2" if "argmax" in wants else "T1" if wants else "plain"
    words = _words(given)
    copied = "tma " * ("edges" not in words and arch >= 90)
    found = []
    for cut in candidates("forward", kind, d_head, f"{words} {copied}{tier} {GENERATIONS[arch]}"):
        what = (kind, f"d{d_head}", *["causal"] * causal, tier, *given, _named(cut))
        tiles = f"tensordesc<{kind}[1, 1, {cut.block_n}, {block_of_features(d_head)}]>"
        called = signature | dict.fromkeys(("key_tiles", "value_tiles"), tiles if cut.tma else None)
        constants = _constants(d_head, cut, causal=causal, BEST=best_of(_DTYPES[kind], wants))
        found.append(_variant("forward", what, cut, called, constants, arch))
    return found


def _columns(
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    cells: int = 0,
    given: Names = (),
    arch: int = 90,
) -> list[Variant]:
    number = "i32" if cells else _ONE
    written = {"lse": "*fp32", "sums": "*fp32"} | ({"map": "*fp32"} if cells else {})
    signature = {
        "inputs": _inputs(kind, given),
        "columns": _filled(Columns, written),
        "grid": Grid("i32", "i32", number, "i32", "i32", number),
        "strides": _strides(given),
        "sizes": _sizes(given),
        "scale": "fp32",
    }
    found = []
    for cut in candidates("columns", kind, d_head, f"{_words(given)} {GENERATIONS[arch]}"):
        places = {"QUERY_PLACES": cells or cut.block_m, "KEY_PLACES": cells or cut.block_n}
        constants = _constants(d_head, cut, causal=causal, REAL_QUERIES=False, **places)
        what = (kind, f"d{d_head}", *["causal"] * causal, *["map"] * bool(cells), *given)
        found.append(_variant("columns", (*what, _named(cut)), cut, signature, constants, arch))
    return found


def _one_tile(
    kind: str,
    d_head: int,
    keys: int,
    *,
    causal: bool = False,
    given: Names = (),
    arch: int = 90,
) -> list[Variant]:
    signature = {"inputs": _inputs(kind, ("lengths", *given)), **_written(kind, _T2)}
    signature |= {"summed": Summed("*fp32", "*fp32")}
    signature |= {"grid": Grid("i32", "i32", _ONE, "i32", "i32", _ONE)}
    signature |= {"strides": _strides((*given, "z")), "sizes": _sizes(given), "scale": "fp32"}
    told = {"BEST": best_of(_DTYPES[kind], _T2), "REAL_QUERIES": True}
    told |= {"QUERY_PLACES": 2, "KEY_PLACES": 2}
    words, found = _words(given), []
    crowded, wide = bool({"edges", "shaped"} & set(words.split())), kind == "fp32"
    shape = f"{'causal ' * causal}{words} {keys} keys {GENERATIONS[arch]}"
    for candidate in candidates("one tile", kind, d_head, shape):
        largest = LARGEST_TILE if d_head <= 64 else LARGEST_TILE // 2
        cut = fitted(candidate, keys, largest, edges=crowded, wide=wide)
        what = (kind, f"d{d_head}", *["causal"] * causal, "all", *given, _named(cut))
        constants = _constants(d_head, cut, causal=causal, **told)
        variant = _variant("one_tile", what, cut, signature, constants, arch)
        # The newer instructions take 64 rows; fewer are for the older one.
        found.append(variant | ({"matrix": "HMMA"} if cut.block_m < 64 and not wide else {}))
    return found


def _backward(
    kernel: str,
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    relevance: int = 0,
    given: Names = (),
    gradients: bool = True,
    arch: int = 90,
) -> Variant:
    """One variant of the kernel that owns keys ("key_value") or queries ("query")."""
    of_keys = kernel == "key_value"
    words = [*[_WORDS[name] for name in given if name in _WORDS], *["causal"] * causal]
    words += ["groups"] * ("groups" in given) + ["relevance"] * (bool(relevance) and gradients)
    owner = "keys" if of_keys else "queries"
    shape = " ".join((*words, GENERATIONS[arch]))
    cut = candidates(f"backward {owner}", kind, d_head, shape)[0]
    n_vectors = 2 if of_keys else 1
    outputs = (f"*{kind}" if gradients else _NOTHING,) * n_vectors
    signature = {
        "inputs": _inputs(kind, ("z_gradient", "lse", *["delta"] * gradients, *given)),
        "strides": _strides((*given, "z_gradient")),
        "outputs": (*outputs, "*fp32" if relevance else _NOTHING),
        "output_strides": (_ROW,) * n_vectors,
        "sizes": _sizes(given, backward=True),
        "scale": "fp32",
    }
    constants = _constants(d_head, cut, causal=causal, KIND=relevance)
    if of_keys:
        constants["GROUPED"] = "groups" in given
    what = (kind, f"d{d_head}", *["causal"] * causal, *["relevance"] * bool(relevance), *given)
    what = (*what, *["columns"] * (not gradients))
    found = _variant(f"backward_{kernel}", what, cut, signature, constants, arch)
    # wgmma takes 64 rows; fewer are for the older instruction.
    rows = cut.block_n if of_keys else cut.block_m
    return found | ({"matrix": "HMMA"} if arch == 90 and rows < 64 and kind != "fp32" else {})


def _delta(kind: str, d_head: int, given: Names = ()) -> Variant:
    rows = {"z": f"*{kind}", "lse": "*fp32"} | ({"sink_parts": "*fp32"} if "sinks" in given else {})
    signature: dict[str, Any] = {
        "inputs": _inputs(kind, ("z_gradient", "lse", "delta", *given)),
        "rows": _filled(Rows, rows),
        "strides": _strides(("z", "z_gradient")),
        "sizes": _sizes(given, backward=True),
    }
    block: int = FILL.value
    constants = {"D_VALUE": d_head, "BLOCK_V": block_of_features(d_head), "BLOCK_M": block}
    cut = Config(block, 1, 8, 3)
    found = _variant("backward_delta", (kind, f"d{d_head}", *given), cut, signature, constants)
    # Sums of products, row by row: nothing to multiply matrices for.
    return found | {"score_elements": block * block_of_features(d_head), "matrix": None}


def _bias(kind: str, d_head: int, arch: int = 90) -> Variant:
    """The gradient of a bias that all sentences share."""
    cut = candidates("backward bias", kind, d_head, f"edges {GENERATIONS[arch]}")[0]
    signature = {
        "inputs": _inputs(kind, ("z_gradient", "lse", "delta", "bias")),
        "strides": _strides(("bias", "z_gradient")),
        "output": f"*{kind}",
        "shape": _MATRIX,
        "spans": _MATRIX,
        "sizes": _sizes((), backward=True),
        "scale": "fp32",
    }
    constants = _constants(d_head, cut, causal=False)
    return _variant("backward_bias", (kind, f"d{d_head}"), cut, signature, constants, arch)


def _forwards() -> list[Variant]:
    found = []
    for d_head in (64, 128):
        for causal in (False, True):
            for wants in ((), _T1, _T2):
                found += _forward("bf16", d_head, causal=causal, wants=wants)
            found += _columns("bf16", d_head, causal=causal)
        found += _columns("bf16", d_head, causal=True, cells=8)
    found += _forward("bf16", 64, wants=_T1, given=("starts",))
    found += _forward("bf16", 64, wants=_T1, given=_EDGES)
    found += _forward("fp32", 64, wants=_T1)
    found += _forward("fp32", 128, causal=True, wants=_T2) + _forward("fp32", 128)
    found += _forward("fp32", 128, wants=_T2, given=_EDGES)
    # In 16 bits the numbers differ by a register or two: one of fp16 is enough.
    found += _forward("fp16", 64, causal=True, wants=_T2)[:1]
    found += _columns("fp16", 64, causal=True, cells=8)[:1]
    return found + _one_tiles() + _with_options() + _forwards_elsewhere()


def _one_tiles() -> list[Variant]:
    found = []
    for causal in (False, True):
        found += _one_tile("bf16", 64, 128, causal=causal)
    found += _one_tile("bf16", 128, 64, causal=True) + _one_tile("fp16", 64, 128)
    for given in ((), _EDGES):
        for kind, d_head, keys in (("bf16", 64, 256), ("fp16", 64, 256), ("bf16", 128, 128)):
            found += _one_tile(kind, d_head, keys, causal=True, given=given)
    found += _one_tile("bf16", 64, 256)
    for d_head, keys in ((64, 64), (64, 32), (128, 32)):
        for causal in (False, True):
            found += _one_tile("fp32", d_head, keys, causal=causal)
    for d_head, keys in ((64, 128), (128, 64)):
        found += _one_tile("bf16", d_head, keys, causal=True, given=_EDGES)
    return found


def _with_options() -> list[Variant]:
    """The options that change the code of a loop, and the widest vectors."""
    found = []
    for d_head in (64, 128):
        found += _forward("bf16", d_head, causal=True, wants=_T2, given=_NEAR)
        found += _forward("bf16", d_head, causal=True, wants=_T2, given=_SHAPED)[:1]
        found += _columns("bf16", d_head, causal=True, given=_NEAR)
        found += _columns("bf16", d_head, causal=True, given=_SHAPED)
    found += _forward("fp32", 64, causal=True, wants=_T2, given=(*_NEAR, *_SHAPED))
    for keys in (128, 256):
        found += _one_tile("bf16", 64, keys, causal=True, given=(*_NEAR, *_SHAPED))
    for wants in ((), _T2):
        found += _forward("bf16", 256, causal=True, wants=wants)[:1]
    found += _columns("bf16", 256, causal=True) + _columns("fp32", 256, causal=True)
    return found + _forward("fp32", 256, causal=True, wants=_T2)


def _forwards_elsewhere() -> list[Variant]:
    """What the options change, and the widest vectors, on GPUs before and after Hopper."""
    found = []
    for arch in (80, 100):
        for d_head in (64, 128):
            found += _forward("bf16", d_head, causal=True, arch=arch)
            for given in (_NEAR, _SHAPED):
                found += _forward("bf16", d_head, causal=True, wants=_T2, given=given, arch=arch)
                found += _columns("bf16", d_head, causal=True, given=given, arch=arch)
            for given in (("starts", "groups"), _EDGES):
                found += _forward("bf16", d_head, wants=_T1, given=given, arch=arch)
        for wants in ((), _T2):
            found += _forward("bf16", 256, causal=True, wants=wants, arch=arch)
        found += _columns("bf16", 256, causal=True, arch=arch)
        found += _one_tile("bf16", 64, 128, causal=True, given=(*_NEAR, *_SHAPED), arch=arch)
    return found


def _backwards() -> list[Variant]:
    found = [_bias("fp32", 64), _bias("fp32", 128), _backward("query", "fp32", 64, given=("mask",))]
    columns: dict[str, Any] = {"relevance": 2, "given": ("weights",), "gradients": False}
    for d_head in (64, 128):
        found += [_backward("key_value", "bf16", d_head, **columns)]
        found += [_delta("bf16", d_head), _bias("bf16", d_head)]
    #: Of both kernels: the dtype, the width, and what is asked.
    shapes: list[tuple[str, int, dict[str, Any]]] = [
        ("fp32", 64, {}),
        # With lengths the first takes most registers; in fp16 the numbers are those of bf16.
        ("bf16", 128, {"causal": True, "given": ("lengths",)}),
        ("fp16", 64, {"causal": True, "relevance": 3}),
        ("fp32", 64, {"causal": True, "relevance": 3}),
    ]
    for d_head in (64, 128):
        shapes += [("bf16", d_head, {"causal": causal}) for causal in (False, True)]
        shapes += [("bf16", d_head, {"causal": True, "relevance": 3})]
        shapes += [("bf16", d_head, {"given": _EDGES})]
        shapes += [("fp32", d_head, {"causal": True, "given": _EDGES})]
    for kernel in ("key_value", "query"):
        found += [_backward(kernel, kind, d_head, **asked) for kind, d_head, asked in shapes]
    return found + _beyond_one_head_a_key() + _backwards_elsewhere()


def _beyond_one_head_a_key() -> list[Variant]:
    """Grouped heads, packed sentences, windows, shaped scores, and heads of 256."""
    found, near = [_delta("bf16", 64, ("starts", "sinks"))], ("groups", "window")
    for kernel in ("key_value", "query"):
        for d_head in (64, 128):
            found.append(_backward(kernel, "bf16", d_head, causal=True, given=near))
            found.append(_backward(kernel, "bf16", d_head, given=("soft_cap", "slopes")))
        found.append(_backward(kernel, "bf16", 128, causal=True, given=_PACKED))
        found.append(_backward(kernel, "bf16", 128, causal=True, relevance=3, given=("groups",)))
        found.append(_backward(kernel, "fp32", 128, causal=True, given=near))
        found.append(_backward(kernel, "bf16", 256, causal=True, given=near))
        found.append(_backward(kernel, "bf16", 256, causal=True, relevance=3))
        found.append(_backward(kernel, "fp32", 256))
    return found


def _backwards_elsewhere() -> list[Variant]:
    """The variants that take most registers, on GPUs before and after Hopper."""
    found, near = [], ("groups", "window")
    shapes: list[Names] = [(), _EDGES, ("soft_cap", "slopes"), near]
    for d_head in (64, 128):
        for given in shapes:
            for kernel in ("key_value", "query"):
                found.append(_backward(kernel, "bf16", d_head, causal=True, given=given, arch=80))
        for given in (*shapes, _PACKED, ("groups", *_EDGES)):
            found.append(_backward("key_value", "bf16", d_head, causal=True, given=given, arch=100))
        told: dict[str, Any] = {"causal": True, "arch": 100}
        for kernel in ("key_value", "query"):
            found.append(_backward(kernel, "bf16", d_head, relevance=3, given=("groups",), **told))
        found.append(_backward("query", "bf16", d_head, given=near, **told))
        found += [_bias("bf16", d_head, arch) for arch in (80, 100)]
    for kind in (0, 3):
        told = {"causal": True, "relevance": kind, "given": _PACKED, "arch": 80}
        found.append(_backward("query", "bf16", 128, **told))
    return found


#: Each kernel as it would be compiled for calls of each kind.
VARIANTS: list[Variant] = _forwards() + _backwards()
