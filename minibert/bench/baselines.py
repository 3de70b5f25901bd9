"""The implementations a kernel is timed beside, each forced by its name.

Masks, the blocks of FlexAttention and the choice of the back end are made before the clock starts.
A baseline that cannot do a shape says why; no other takes its place.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from minibert.bench.contest import Contender
from minibert.bench.gate import GateError, Outputs
from minibert.bench.signatures import SIGNATURES
from minibert.bench.workload import Inputs
from minibert.errors import MinibertError
from minibert.kernels.check.calls import bound
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.workload import Workload
from minibert.kernels.registry import Request, implementations
from minibert.kernels.torch_kernels import BACKENDS, compiled_flex, forced


def z_of(result: object) -> Outputs:
    """z, in what an implementation gave: a tensor, what begins with it, or a dictionary."""
    found = result["z"] if isinstance(result, dict) else result
    return {"z": found[0] if isinstance(found, tuple | list) else found}


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
    problem = inputs.problem
    request = Request(
        frozenset(),
        workload.asks(),
        problem.query.device.type,
        problem.query.dtype,
        workload.backward,
        max(workload.d_head, workload.value_size),
    )
    if refusal := known[name].refusal(request):
        raise GateError(refusal)
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    run: Callable[[], object]
    if name in BACKENDS:
        function, convention = scaled_dot_product_attention, SIGNATURES["sdpa"]
        run, around = convention.bind(function, problem, None), partial(forced, name)
    elif name == "flex":
        if not problem.query.is_cuda:
            raise GateError("FlexAttention is compiled on CUDA alone; uncompiled it is no baseline")
        run = SIGNATURES["flex"].bind(compiled_flex(), problem, None)
    else:
        run = bound(known[name], problem)
    if not workload.backward:
        return Contender(run, z_of, around)
    return Contender(lambda: _with_gradients(run(), inputs), dict, around)


def _with_gradients(result: object, inputs: Inputs) -> Outputs:
    z = z_of(result)["z"]
    return {"z": z.detach()} | gradients_of(z, inputs.problem)
