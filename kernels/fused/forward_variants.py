"""VARIANTS: the forms in which the static gate compiles the kernels of the forward without a GPU.

Each variant holds what a call would pass: types, constants, tile sizes. The gate is
benchmarks/static_gate.py.
"""

from typing import Any

import torch

from minibert.kernels.fused.cells import Grid
from minibert.kernels.fused.columns import Columns, columns_kernel
from minibert.kernels.fused.forward import forward_kernel
from minibert.kernels.fused.launch import Config, Inputs, Sizes, Strides, block_of_features
from minibert.kernels.fused.one_tile import LARGEST_TILE, Summed, fitted, one_tile_kernel
from minibert.kernels.fused.outputs import Chosen, RowOutputs, best_of
from minibert.kernels.fused.tuning import GENERATIONS, candidates

__all__ = ["VARIANTS", "columns_kernel", "forward_kernel", "one_tile_kernel"]

#: A part that a call does not have is a constant: None, or 1 where it is a number.
_NOTHING, _ONE = "constexpr", "constexpr 1"
_ROW, _MATRIX = ("i32",) * 3, ("i32",) * 4
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_T1 = ("row_max", "max_prob", "entropy", "offset_mass", "key_mass")
_T2 = (*_T1, "argmax")


def _inputs(kind: str, given: tuple[str, ...]) -> Inputs:
    types = {"lengths": "*i64", "starts": "*i64", "mask": "*u8", "bias": f"*{kind}"}
    types |= {"slopes": "*fp32", "sinks": "*fp32", "soft_cap": "fp32"}
    vectors = dict.fromkeys(("query", "key", "value"), f"*{kind}")
    return _told(Inputs(**vectors, **{name: types[name] for name in types if name in given}))


def _sizes(given: tuple[str, ...]) -> Sizes:
    group = "i32" if "groups" in given else _ONE
    return _told(Sizes(*("i32",) * 6, group, before="i32" if "window" in given else None))


def _told(types: Any) -> Any:
    """The same tuple, its absent parts as constants."""
    return types._replace(
        **{name: _NOTHING for name, one in types._asdict().items() if one is None}
    )


def _outputs(kind: str, wants: tuple[str, ...]) -> RowOutputs:
    types = {"row_max": "*fp32", "max_prob": "*fp32", "entropy": "*fp32", "argmax": "*i64"}
    rows = (types[name] if name in wants else _NOTHING for name in types)
    return RowOutputs(f"*{kind}", "*fp32", *rows)


def _best(kind: str, wants: tuple[str, ...]) -> str | None:
    return best_of(_DTYPES[kind], wants)


def _chosen(wants: tuple[str, ...]) -> Chosen:
    parts = [
        ("*fp32", "*i32", "i32") if name in wants else (_NOTHING,) * 3
        for name in ("offset_mass", "key_mass")
    ]
    return Chosen(*parts[0], *parts[1])


def _strides(given: tuple[str, ...]) -> Strides:
    matrices = {name: _MATRIX for name in ("mask", "bias") if name in given}
    slopes = ("i32",) * 2 if "slopes" in given else None
    return _told(Strides(_ROW, _ROW, _ROW, _ROW, **matrices, slopes=slopes))


def _variant(
    kernel: str,
    what: tuple[str, ...],
    cut: Config,
    signature: dict[str, Any],
    constants: dict[str, Any],
    d_head: int,
    arch: int,
) -> dict[str, Any]:
    constants = {"PRECISION": "ieee", "D_HEAD": d_head, **constants}
    constants |= {"BLOCK_D": block_of_features(d_head), "D_VALUE": d_head}
    constants |= {"BLOCK_V": block_of_features(d_head)}
    constants |= {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n}
    absent: dict[Any, Any] = {}
    for place, types in enumerate(signature.values()):
        if isinstance(types, tuple):
            absent |= {
                (place, i): 1 if one == _ONE else None
                for i, one in enumerate(types)
                if one in (_NOTHING, _ONE)
            }
    return {
        "name": " ".join((kernel, *what, *[f"sm_{arch}"] * (arch != 90))),
        "arch": arch,
        "kernel": f"{kernel}_kernel",
        "signature": {name: _plain(types) for name, types in signature.items()},
        "constexprs": absent | constants,
        "num_warps": cut.num_warps,
        "num_stages": cut.num_stages,
        "score_elements": cut.block_m * cut.block_n,
        "divisible": [
            (name, i, j)
            for name in ("strides",)
            for i, row in enumerate(signature[name])
            if row != _NOTHING
            for j in range(len(row))
        ]
        + [
            (name, i)
            for name, types in signature.items()
            if name != "strides" and isinstance(types, tuple)
            for i, one in enumerate(types)
            if str(one).startswith("*")
        ],
    }


def _plain(types: Any) -> Any:
    if not isinstance(types, tuple):
        return types
    plain = [_NOTHING if one == _ONE else one for one in types]
    return type(types)(*plain) if hasattr(types, "_fields") else tuple(plain)


def _forward(
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    wants: tuple[str, ...] = (),
    given: tuple[str, ...] = (),
    arch: int = 90,
) -> list[dict[str, Any]]:
    signature: dict[str, Any] = {
        "inputs": _inputs(kind, given),
        "outputs": _outputs(kind, wants),
        "chosen": _chosen(wants),
        "strides": _strides(given),
        "sizes": _sizes(given),
        "scale": "fp32",
    }
    constants = {"CAUSAL": causal, "BEST": _best(kind, wants)}
    tier = "T2" if "argmax" in wants else "T1" if wants else "plain"
    words = _words(given)
    copied = "tma " * ("edges" not in words and arch >= 90)
    shape = f"{words} {copied}{tier} {GENERATIONS[arch]}"
    found = []
    for cut in candidates("forward", kind, d_head, shape):
        what = (kind, f"d{d_head}", *["causal"] * causal, tier, *given, _named(cut))
        tiles = f"tensordesc<{kind}[1, 1, {cut.block_n}, {block_of_features(d_head)}]>"
        called = signature | dict.fromkeys(("key_tiles", "value_tiles"), tiles if cut.tma else None)
        found.append(_variant("forward", what, cut, called, constants, d_head, arch))
    return found


def _words(given: tuple[str, ...]) -> str:
    """What `Options.words` says of such a call."""
    holds = {
        "packed": {"starts"},
        "edges": {"mask", "bias"},
        "window": {"window"},
        "shaped": {"slopes", "soft_cap"},
    }
    return " ".join(word for word, names in holds.items() if names & set(given))


def _columns(
    kind: str,
    d_head: int,
    *,
    causal: bool = False,
    cells: int = 0,
    given: tuple[str, ...] = (),
    arch: int = 90,
) -> Any:
    found = []
    for cut in candidates("columns", kind, d_head, f"{_words(given)} {GENERATIONS[arch]}"):
        number = "i32" if cells else _ONE
        signature = {
            "inputs": _inputs(kind, given),
            "columns": Columns(
                "*fp32", _NOTHING, _NOTHING, "*fp32", "*fp32" if cells else _NOTHING
            ),
            "grid": Grid("i32", "i32", number, "i32", "i32", number),
            "strides": _told(_strides(given)._replace(z=None)),
            "sizes": _sizes(given),
            "scale": "fp32",
        }
        constants: dict[str, int] = {"CAUSAL": causal, "REAL_QUERIES": False}
        constants |= {"QUERY_PLACES": cells or cut.block_m, "KEY_PLACES": cells or cut.block_n}
        what = (
            kind,
            f"d{d_head}",
            *["causal"] * causal,
            *["map"] * bool(cells),
            *given,
            _named(cut),
        )
        found.append(_variant("columns", what, cut, signature, constants, d_head, arch))
    return found


def _one_tile(
    kind: str,
    d_head: int,
    keys: int,
    *,
    causal: bool = False,
    given: tuple[str, ...] = (),
    arch: int = 90,
) -> list[dict[str, Any]]:
    signature = {
        "inputs": _inputs(kind, ("lengths", *given)),
        "outputs": _outputs(kind, _T2),
        "chosen": _chosen(_T2),
        "summed": Summed("*fp32", "*fp32"),
        "grid": Grid("i32", "i32", _ONE, "i32", "i32", _ONE),
        "strides": _strides(given),
        "sizes": _sizes(given),
        "scale": "fp32",
    }
    constants: dict[str, Any] = {"CAUSAL": causal, "BEST": _best(kind, _T2), "REAL_QUERIES": True}
    constants |= {"QUERY_PLACES": 2, "KEY_PLACES": 2}
    found = []
    words = _words(given)
    shape = f"{'causal ' * causal}{words} {keys} keys {GENERATIONS[arch]}"
    for cut in candidates("one tile", kind, d_head, shape):
        largest = LARGEST_TILE if d_head <= 64 else LARGEST_TILE // 2
        cut = fitted(
            cut,
            keys,
            largest,
            edges=bool({"edges", "shaped"} & set(words.split())),
            wide=kind == "fp32",
        )
        what = (kind, f"d{d_head}", *["causal"] * causal, "all", *given, _named(cut))
        variant = _variant("one_tile", what, cut, signature, constants, d_head, arch)
        # The newer instructions take 64 rows; fewer are for the older one.
        older = {"matrix": "HMMA"} if cut.block_m < 64 and kind != "fp32" else {}
        found.append(variant | older)
    return found


def _named(cut: Config) -> str:
    tile = f"{cut.block_m}x{cut.block_n}"
    return f"{tile} {cut.num_warps} warps {cut.num_stages} stages{' tma' * cut.tma}"


def _all() -> list[dict[str, Any]]:
    found = []
    for d_head in (64, 128):
        for causal in (False, True):
            for wants in ((), _T1, _T2):
                found += _forward("bf16", d_head, causal=causal, wants=wants)
            found += _columns("bf16", d_head, causal=causal)
        found += _columns("bf16", d_head, causal=True, cells=8)
    found += _forward("bf16", 64, wants=_T1, given=("starts",))
    found += _forward("bf16", 64, wants=_T1, given=("mask", "bias"))
    found += _forward("fp32", 64, wants=_T1)
    found += _forward("fp32", 128, causal=True, wants=_T2) + _forward("fp32", 128)
    found += _forward("fp32", 128, wants=_T2, given=("mask", "bias"))
    # In 16 bits the numbers differ by a register or two: one of fp16 is enough.
    found += _forward("fp16", 64, causal=True, wants=_T2)[:1]
    found += _columns("fp16", 64, causal=True, cells=8)[:1]
    for causal in (False, True):
        found += _one_tile("bf16", 64, 128, causal=causal)
    found += _one_tile("bf16", 128, 64, causal=True)
    found += _one_tile("fp16", 64, 128)
    for given in ((), ("mask", "bias")):
        for kind, d_head, keys in (("bf16", 64, 256), ("fp16", 64, 256), ("bf16", 128, 128)):
            found += _one_tile(kind, d_head, keys, causal=True, given=given)
    found += _one_tile("bf16", 64, 256)
    for d_head, keys in ((64, 64), (64, 32), (128, 32)):
        for causal in (False, True):
            found += _one_tile("fp32", d_head, keys, causal=causal)
    found += _one_tile("bf16", 64, 128, causal=True, given=("mask", "bias"))
    found += _one_tile("bf16", 128, 64, causal=True, given=("mask", "bias"))
    return found + _with_options()


def _with_options() -> list[dict[str, Any]]:
    """The options that change the code of a loop, and the widest vectors."""
    shaped, near = ("slopes", "sinks", "soft_cap"), ("window", "groups")
    found = []
    for d_head in (64, 128):
        found += _forward("bf16", d_head, causal=True, wants=_T2, given=near)
        found += _forward("bf16", d_head, causal=True, wants=_T2, given=shaped)[:1]
        found += _columns("bf16", d_head, causal=True, given=near)
        found += _columns("bf16", d_head, causal=True, given=shaped)
    found += _forward("fp32", 64, causal=True, wants=_T2, given=(*near, *shaped))
    found += _one_tile("bf16", 64, 128, causal=True, given=(*near, *shaped))
    found += _one_tile("bf16", 64, 256, causal=True, given=(*near, *shaped))
    for wants in ((), _T2):
        found += _forward("bf16", 256, causal=True, wants=wants)[:1]
    found += _columns("bf16", 256, causal=True) + _columns("fp32", 256, causal=True)
    return found + _forward("fp32", 256, causal=True, wants=_T2) + _other_gpus()


def _other_gpus() -> list[dict[str, Any]]:
    """What the options change, and the widest vectors, on GPUs before and after Hopper."""
    shaped, near = ("slopes", "sinks", "soft_cap"), ("window", "groups")
    found = []
    for arch in (80, 100):
        for d_head in (64, 128):
            found += _forward("bf16", d_head, causal=True, arch=arch)
            for given in (near, shaped):
                found += _forward("bf16", d_head, causal=True, wants=_T2, given=given, arch=arch)
                found += _columns("bf16", d_head, causal=True, given=given, arch=arch)
            for given in (("starts", "groups"), ("mask", "bias")):
                found += _forward("bf16", d_head, wants=_T1, given=given, arch=arch)
        for wants in ((), _T2):
            found += _forward("bf16", 256, causal=True, wants=wants, arch=arch)
        found += _columns("bf16", 256, causal=True, arch=arch)
        found += _one_tile("bf16", 64, 128, causal=True, given=(*near, *shaped), arch=arch)
    return found


#: Each kernel of the forward as it would be compiled for calls of each kind.
VARIANTS: list[dict[str, Any]] = _all()
