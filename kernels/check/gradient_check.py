"""Compares gradients of attention with autograd through the eager formula in float64.

`fused/gradients.py` calls it in its double-check mode; a user can call it for a backward of their
own. It holds whole N x N matrices, so it is too expensive to leave on while training.
"""

import math
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.check.distances import distance
from minibert.kernels.check.problem import Problem, by_eager, largest_score, unfolded
from minibert.quantities import Float

#: How much worse than torch eager's own gradients others may be.
TIMES_EAGER = 2.0


def check_gradients(
    found: dict[str, Tensor],
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    **options: Any,
) -> None:
    """Raises AttentionError where a gradient in `found` is further off than rounding explains.

    `found` holds gradients by the names of `eager_gradients`; `options` are lengths, mask, causal,
    scale and bias of the call. The tolerance is that of `gradient_tolerances`.
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
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    dtype: torch.dtype,
    *,
    scale: float,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    lse_gradient: Float[Tensor, "batch head query"] | None = None,
    **fields: Any,
) -> dict[str, Tensor]:
    """The gradients "query", "key", "value" and, where given, "bias", "sinks", by autograd.

    `fields` are the others of the call, by the names of `Problem`.
    """
    given = {"query": query, "key": key, "value": value}
    given |= {n: one for n, one in (("bias", bias), ("sinks", sinks)) if one is not None}
    with torch.enable_grad():
        leaves = {name: one.detach().to(dtype).requires_grad_() for name, one in given.items()}
        options: dict[str, Any] = {"lengths": lengths, "mask": mask, "causal": causal} | fields
        options |= {"scale": scale, "bias": leaves.get("bias"), "sinks": leaves.get("sinks")}
        problem = Problem(leaves["query"], leaves["key"], leaves["value"], **options)
        attended = by_eager(problem, dtype)
        outputs, gradients = [attended["z"]], [z_gradient.to(dtype)]
        if lse_gradient is not None:
            outputs.append(attended["lse"])
            gradients.append(lse_gradient.to(attended["lse"].dtype))
        found = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    return dict(zip(leaves, found, strict=True))


def gradient_tolerances(
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
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
    lse_gradient: Tensor | None = None,
    **options: Any,
) -> dict[str, float]:
    """The error by which a backward that is right in every step may be off.

    u is the unit roundoff of the dtype, w that of float32, A the largest sum of absolute terms that
    a score is made of, G that of dP and δ, L the largest gradient of lse, R the largest sum of P
    over the queries of a key. A sum of D terms is off by about sqrt(D)·w of its absolute terms
    (Higham & Mary 2019), z and dS are rounded once to the dtype:

        P:  p = 2·(sqrt(D) + 4)·w·A + 4·w of itself
        dS: e = (p + u)·(2·G + L) + (3·u + 2·sqrt(D)·w)·G for each P
        d query: scale·max|key|·e      d key: scale·max|query|·e·R      d value: max|dz|·(p + u)·R

    and each is rounded once more at the end. A bias adds e up over what it is repeated for, a sink
    over its rows.
    """
    unit, fine = torch.finfo(query.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    problem = Problem(query.detach(), key.detach(), value.detach(), **options)
    plain, bias, scale = unfolded(problem), problem.bias, abs(problem.scale)
    sizes = {"query": query, "key": key, "value": value, "dz": z_gradient}
    largest = {name: float(one.detach().abs().max()) for name, one in sizes.items()}
    root, (B, H, Q, _) = math.sqrt(query.shape[3]), query.shape
    of_probs = float((z_gradient.detach().double().abs() @ plain.value.abs().mT).max())
    of_lse = 0.0 if lse_gradient is None else float(lse_gradient.nan_to_num(0, 0, 0).abs().max())
    probs = by_eager(plain, torch.float64)["probs"]
    # A key is seen by the queries of all heads of its group.
    received = max(1.0, float(probs.sum(dim=2).max()) * (H // key.shape[1]))
    p = 2 * (root + 4) * fine * largest_score(problem) + 4 * fine
    e = (p + unit) * (2 * of_probs + of_lse) + (3 * unit + 2 * root * fine) * of_probs
    found = {
        "query": scale * largest["key"] * e,
        "key": scale * largest["query"] * e * received,
        "value": largest["dz"] * (p + unit) * received,
    }
    if bias is not None:
        found["bias"] = e * (B * H * Q) / math.prod(bias.shape[:3])
    if problem.sinks is not None:
        found["sinks"] = e * (B * Q)
    return {name: one + unit * float(right[name].abs().max()) for name, one in found.items()}
