"""The implementations a kernel is timed beside, each forced by its name.

Those of `attend`, and torch's own: the back ends of its SDPA and compiled FlexAttention. Masks, the
blocks of FlexAttention and the choice of the back end are made before the clock starts. A baseline
that cannot do a shape says why; no other takes its place.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from minibert.bench.contest import Contender
from minibert.bench.result_rows import GateError, Outputs
from minibert.bench.signatures import SIGNATURES
from minibert.errors import MinibertError
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.parity import bound
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload
from minibert.kernels.registry import Implementation, Request, implementations

#: Back ends of torch's SDPA, and the devices they run on.
_BACKENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, ("cpu", "cuda")),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, ("cuda",)),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, ("cuda",)),
    "math": (SDPBackend.MATH, ("cpu", "cuda")),
}


def z_of(result: object) -> Outputs:
    """z, in what an implementation gave: a tensor, what begins with it, or a dictionary."""
    found = result["z"] if isinstance(result, dict) else result
    return {"z": found[0] if isinstance(found, tuple | list) else found}


def usual_baselines(device: torch.device) -> tuple[str, ...]:
    """The strong ones on this device."""
    return ("cudnn", "flash", "efficient", "flex") if device.type == "cuda" else ("flash", "eager")


def baseline_names() -> tuple[str, ...]:
    """Everything that can be named."""
    return (*implementations(), *_BACKENDS, "flex")


def baseline(name: str, workload: Workload, problem: Problem) -> Contender:
    """The contender of this name. Raises MinibertError when it cannot do this workload here."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    run: Callable[[], object]
    if name in _BACKENDS or name == "flex":
        back_end, devices = _BACKENDS.get(name, (None, ("cuda",)))
        if problem.query.device.type not in devices:
            raise GateError(f"it runs on {' and '.join(devices)}")
        if back_end is None:
            compiled = torch.compile(flex_attention, dynamic=False)
            run = SIGNATURES["flex"].bind(compiled, problem, None)
        else:
            sdpa = SIGNATURES["sdpa"]
            run = sdpa.bind(scaled_dot_product_attention, problem, None)
            around = partial(sdpa_kernel, [back_end])
    else:
        run = bound(_able(name, workload, problem), problem)
    if not workload.backward:
        return Contender(run, z_of, around)
    return Contender(lambda: _with_gradients(run(), problem), dict, around)


def _able(name: str, workload: Workload, problem: Problem) -> Implementation:
    known = implementations()
    if name not in known:
        raise MinibertError(f"no baseline {name}; known are {', '.join(baseline_names())}")
    query = problem.query
    request = Request(
        frozenset(),
        workload.asks(),
        query.device.type,
        query.dtype,
        workload.backward,
        max(workload.d_head, workload.value_size),
    )
    if refusal := known[name].refusal(request):
        raise GateError(refusal)
    return known[name]


def _with_gradients(result: object, problem: Problem) -> Outputs:
    z = z_of(result)["z"]
    return {"z": z.detach()} | gradients_of(z, problem)
