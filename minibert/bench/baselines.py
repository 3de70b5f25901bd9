"""The implementations a kernel is timed beside, each forced by its name.

Masks, the blocks of FlexAttention and the choice of the back end are made before the clock starts.
A baseline that cannot do a shape says why; no other takes its place.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from minibert.bench.contest import Contender
from minibert.bench.gate import GateError, Outputs
from minibert.bench.workload import Inputs, Workload
from minibert.errors import MinibertError
from minibert.kernels import flex
from minibert.kernels.api import arguments_for
from minibert.kernels.masks import allowed_keys
from minibert.kernels.registry import Request, implementations
from minibert.kernels.torch_backends import BACKENDS, forced

__all__ = ["baseline", "baseline_names", "usual_baselines", "z_of"]


def z_of(result: Any) -> Outputs:
    """z, in what an implementation gave: a tensor, a tuple that begins with it, or a dictionary."""
    found = result["z"] if isinstance(result, dict) else result
    return {"z": found[0] if isinstance(found, tuple) else found}


def usual_baselines(device: torch.device) -> tuple[str, ...]:
    """The strong ones on this device."""
    return ("cudnn", "flash", "efficient", "flex") if device.type == "cuda" else ("flash", "eager")


def baseline_names() -> tuple[str, ...]:
    """Everything that can be named."""
    return tuple(implementations())


def baseline(name: str, workload: Workload, inputs: Inputs) -> Contender:
    """The contender of this name. Raises MinibertError when it cannot do this workload here."""
    known = implementations()
    if name not in known:
        raise MinibertError(f"no baseline {name}; known are {', '.join(known)}")
    options = {"causal"} if workload.causal else set()
    options |= {"lengths"} if inputs.lengths is not None else set()
    request = Request(
        frozenset(), frozenset(options), inputs.query.device.type, inputs.query.dtype, False
    )
    if refusal := known[name].refusal(request):
        raise GateError(refusal)
    if name in BACKENDS:
        return _backend(name, workload, inputs)
    if name == "flex":
        return _flex(workload, inputs)
    given: dict[str, Any] = {"lengths": inputs.lengths} if inputs.lengths is not None else {}
    given |= {"causal": True} if workload.causal else {}
    arguments = arguments_for(known[name], inputs.query, inputs.key, given, {})
    return Contender(partial(known[name].fn, *inputs.vectors, **arguments), z_of)


def _backend(name: str, workload: Workload, inputs: Inputs) -> Contender:
    """torch's back end through torch's public function, which may leave lse out."""
    mask = None
    if inputs.lengths is not None:
        mask = allowed_keys(
            inputs.query, inputs.key, lengths=inputs.lengths, mask=None, causal=workload.causal
        )
    run = partial(
        scaled_dot_product_attention,
        *inputs.vectors,
        attn_mask=mask,
        is_causal=workload.causal and mask is None,
    )
    return Contender(run, z_of, partial(forced, name))


def _flex(workload: Workload, inputs: Inputs) -> Contender:
    if not inputs.query.is_cuda:
        raise GateError("FlexAttention is compiled on CUDA alone; uncompiled it is no baseline")
    blocks = None
    if workload.causal or inputs.lengths is not None:
        blocks = flex.block_mask(
            inputs.query, inputs.key, lengths=inputs.lengths, causal=workload.causal
        )
    return Contender(partial(flex.compiled(), *inputs.vectors, block_mask=blocks), z_of)
