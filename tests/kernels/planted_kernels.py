# ruff: noqa: N803 - the capitals are sizes the compiler knows, as in the kernels.
"""Kernels with planted faults, for the static gate: one is as it should be, two are not."""

import triton
import triton.language as tl


@triton.jit
def products(left, right, out, n_blocks, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """The sum over blocks of left · rightᵀ."""
    rows, columns, features = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    kept = tl.load(left + rows[:, None] * D + features[None, :])
    total = tl.zeros((M, N), tl.float32)
    for block in range(n_blocks):
        place = (block * N + columns)[None, :] * D + features[:, None]
        total = tl.dot(kept, tl.load(right + place), total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


def variant(name, rows, columns, warps, kind="bf16"):
    return {
        "name": name,
        "kernel": "products",
        "signature": {
            "left": f"*{kind}",
            "right": f"*{kind}",
            "out": "*fp32",
            "n_blocks": "i32",
            "M": "constexpr",
            "N": "constexpr",
            "D": "constexpr",
        },
        "constexprs": {"M": rows, "N": columns, "D": 64},
        "num_warps": warps,
        "num_stages": 2,
        "score_elements": rows * columns,
    }


VARIANTS = [
    variant("good", 64, 64, 4),
    variant("float32", 32, 32, 4, "fp32"),
    # 512 float32 numbers a thread, where there are 255 registers.
    variant("spilling", 256, 256, 4),
    # wgmma takes 64 rows at least.
    variant("without wgmma", 16, 32, 4),
]
