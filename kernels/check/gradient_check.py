"""Compares gradients of attention with autograd through the eager formula in float64.

`fused/gradients.py` calls it in its double-check mode; a user can call it for a backward of their
own. It holds whole N x N matrices, so it is too expensive to leave on while training.
"""

import math
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels import eager
from minibert.kernels.check.causes import distance
from minibert.kernels.folding import repeated
from minibert.quantities import Float

__all__ = ["check_gradients", "eager_gradients", "gradient_tolerances"]

#: What may be trained beside query, key and value.
_TRAINED = ("bias", "sinks")
#: What eager asks for even where there is none.
_DEFAULTS: dict[str, Any] = {
    "lengths": None,
    "mask": None,
    "causal": False,
    "bias": None,
    "want": {},
}
#: How much worse than torch eager's own gradients others may be.
TIMES_EAGER = 2.0


def check_gradients(
    found: dict[str, Tensor],
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    **options: Any,
) -> None:
    """Raises AttentionError where a gradient in `found` is further off than rounding explains.

    `found` holds gradients by the names of `eager_gradients`; `options` are those of
    `eager.attend`. The tolerance is that of `gradient_tolerances`.
    """
    tensors = (z_gradient, query, key, value)
    expected = eager_gradients(*tensors, torch.float64, lse_gradient=lse_gradient, **options)
    allowed = gradient_tolerances(*tensors, lse_gradient=lse_gradient, **options)
    for name, gradient in found.items():
        right = expected[name]
        error = distance(gradient, right)
        if not error <= allowed[name]:
            wrong = ~((gradient.double() - right).abs() <= allowed[name])
            place = tuple(wrong.nonzero()[0].tolist())
            raise AttentionError(
                f"The gradient of {name} is wrong at {list(place)} and {int(wrong.sum())} of "
                f"{wrong.numel()} places: {float(gradient[place]):.6g} where the float64 formula "
                f"gives {float(right[place]):.6g}; off by up to {error:.3g}, rounding explains "
                f'{allowed[name]:.3g}. Train with impl="eager" and report it.'
            )


def eager_gradients(
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    dtype: torch.dtype,
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """The gradients "query", "key", "value", and of bias and sinks, by autograd in `dtype`."""
    given = {"query": query, "key": key, "value": value}
    given |= {name: options[name] for name in _TRAINED if options.get(name) is not None}
    with torch.enable_grad():
        leaves = {name: one.detach().to(dtype).requires_grad_() for name, one in given.items()}
        others = {name: leaves[name] for name in _TRAINED if name in leaves}
        options = _DEFAULTS | options | others
        shared = (repeated(leaves[name], query.shape[1]) for name in ("key", "value"))
        attended = eager.attend(leaves["query"], *shared, **options)
        outputs, gradients = [attended["z"]], [z_gradient.to(dtype)]
        if lse_gradient is not None:
            outputs.append(attended["lse"])
            gradients.append(lse_gradient.to(attended["lse"].dtype))
        found = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    return dict(zip(leaves, found, strict=True))


def gradient_tolerances(
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    **options: Any,
) -> dict[str, float]:
    """The largest error a gradient may have: twice eager's own, and at least that of rounding."""
    tensors = (z_gradient, query, key, value)
    options["lse_gradient"] = lse_gradient
    right = eager_gradients(*tensors, torch.float64, **options)
    rounded = eager_gradients(*tensors, query.dtype, **options)
    least = _floors(*tensors, right, **options)
    return {
        name: max(TIMES_EAGER * distance(rounded[name], right[name]), least[name]) for name in right
    }


def _floors(
    z_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    right: dict[str, Tensor],
    *,
    scale: float,
    lse_gradient: Tensor | None = None,
    **options: Any,
) -> dict[str, float]:
    """The error by which a backward that is right in every step may be off.

    u is the unit roundoff of the dtype, w that of float32, A the largest sum of absolute terms that
    a score is made of, G that of dP and δ, L the largest gradient of lse, R the largest sum of P
    over the queries, and heads, that read a key. A sum of D terms is off by about sqrt(D)·w of its
    absolute terms (Higham & Mary 2019), z and dS are rounded once to the dtype:

        P:  p = 2·(sqrt(D) + 4)·w·A + 4·w of itself
        dS: e = (p + u)·(2·G + L) + (3·u + 2·sqrt(D)·w)·G for each P
        d query: scale·max|key|·e      d key: scale·max|query|·e·R      d value: max|dz|·(p + u)·R

    and each is rounded once more at the end. A bias adds e up over what it is repeated for, a sink
    over its rows.
    """
    unit, fine = torch.finfo(query.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    sizes = {"query": query, "key": key, "value": value, "dz": z_gradient}
    wide = {name: one.detach().double().abs() for name, one in sizes.items()}
    largest = {name: float(one.max()) for name, one in wide.items()}
    B, H, Q, _ = query.shape
    group = H // key.shape[1]
    many = {name: repeated(wide[name], H) for name in ("key", "value")}
    of_scores = abs(scale) * float((wide["query"] @ many["key"].mT).max())
    for name in _TRAINED:
        if options.get(name) is not None:
            of_scores += float(options[name].detach().abs().max())
    if options.get("alibi_slopes") is not None:
        of_scores += float(options["alibi_slopes"].detach().abs().max()) * max(Q, key.shape[2])
    of_probs = float((wide["dz"] @ many["value"].mT).max())
    of_lse = 0.0 if lse_gradient is None else float(lse_gradient.nan_to_num(0, 0, 0).abs().max())
    asked = _DEFAULTS | options | {"scale": scale, "want": {"received": ()}}
    vectors = (one.detach().double() for one in (query, repeated(key, H), repeated(value, H)))
    received = eager.attend(*vectors, **asked)["received"].unflatten(1, (-1, group)).sum(2)
    most = max(1.0, float(received.max()))
    root = math.sqrt(max(query.shape[3], value.shape[3]))
    p = 2 * (root + 4) * fine * of_scores + 4 * fine
    e = (p + unit) * (2 * of_probs + of_lse) + (3 * unit + 2 * root * fine) * of_probs
    found = {
        "query": abs(scale) * largest["key"] * e,
        "key": abs(scale) * largest["query"] * e * most,
        "value": largest["dz"] * (p + unit) * most,
        "sinks": e * (B * Q),
    }
    if options.get("bias") is not None:
        found["bias"] = e * (B * H * Q) / math.prod(options["bias"].shape[:3])
    return {name: found[name] + unit * float(one.abs().max()) for name, one in right.items()}
