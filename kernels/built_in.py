"""The implementations that come with the package, from which `registry.choose` picks."""

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from minibert.errors import how_to_install
from minibert.kernels import chunked, eager, flex, reference, sdpa, torch_backends
from minibert.kernels.implementation import FLOATS, OPTIONS, SHAPES, Implementation
from minibert.kernels.requests import MATRICES, WANTS

__all__ = ["BUILT_IN"]


def _triton(*tensors: Any, **options: Any) -> Any:
    # Triton is an extra, and importing it takes as long as torch: only a call needs it.
    from minibert.kernels.fused import attention

    return attention.attend(*tensors, **options)


def _triton_backward(*tensors: Any, **options: Any) -> Any:
    from minibert.kernels.fused import attention

    return attention.gradients(*tensors, **options)


def _without_triton() -> str | None:
    if find_spec("triton") is None:
        return f"Triton is not installed ({how_to_install('triton')})"
    return None


#: Triton's interpreter runs kernels on a CPU, slowly: to see that they are right.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_STATISTICS = frozenset(WANTS) - frozenset(MATRICES)
_IN_TRITON = _STATISTICS - {"key_sums", "pair_mass", "profile"}
_PADDED = frozenset({"lengths", "mask", "causal", "scale", "bias", "want"})
_NO_STATISTICS = _PADDED - {"want"}
_EVERYTHING = frozenset((*OPTIONS, *SHAPES)) - {"pages"}
_SQUARE = frozenset({"causal", "scale"})
#: They are right by the tests, so that a call does not look at what they give.
BUILT_IN = tuple(
    replace(one, checked=False)
    for one in (
        Implementation("reference", reference.attend, wants=frozenset(WANTS), options=_EVERYTHING),
        Implementation(
            "eager",
            eager.attend,
            wants=frozenset(WANTS),
            options=_EVERYTHING - {"groups"},
            differentiable=frozenset({"z", "lse", *WANTS} - {"argmax"}),
            rank=20,
            of_call=eager.of_call,
        ),
        Implementation(
            "sdpa",
            sdpa.attend,
            wants=_STATISTICS,
            options=sdpa.SDPA_OPTIONS,
            # On a CPU torch takes a short series for the exponential function of half types.
            lse_error=2e-4,
            opaque=True,
            differentiable=frozenset({"z"}),
            rank=10,
            second_pass=True,
            of_call=sdpa.of_call,
        ),
        Implementation(
            "chunked",
            chunked.attend,
            wants=_STATISTICS,
            options=_EVERYTHING,
            devices=("cpu",),
            rank=15,
            opaque=True,
        ),
        Implementation(
            "flash",
            torch_backends.flash,
            devices=("cpu", "cuda"),
            options=_SQUARE,
        ),
        Implementation(
            "cudnn",
            torch_backends.cudnn,
            devices=("cuda",),
            dtypes=(torch.float16, torch.bfloat16),
            options=_SQUARE,
        ),
        Implementation(
            "efficient",
            torch_backends.efficient,
            devices=("cuda",),
            dtypes=FLOATS[:3],
            options=_NO_STATISTICS,
        ),
        Implementation(
            "triton",
            _triton,
            wants=_IN_TRITON,
            options=_EVERYTHING,
            devices=("cuda", "cpu") if _INTERPRETED else ("cuda",),
            # The interpreter multiplies bfloat16 wrongly, and says nothing.
            dtypes=(torch.float16, torch.float32) if _INTERPRETED else FLOATS[:3],
            differentiable=frozenset({"z", "lse"}),
            rank=None if _INTERPRETED else 5,
            unavailable=_without_triton(),
            largest_head=256,
            opaque=True,
            backward=_triton_backward,
        ),
        Implementation("math", torch_backends.math_backend, options=_NO_STATISTICS),
        Implementation(
            "flex",
            flex.attend,
            dtypes=FLOATS[:3],
            options=_EVERYTHING - {"packed", "packed_keys", "want"},
        ),
    )
)
