"""A user's function judged in this process: quick, for what the worker has no part in."""

import torch

from minibert.bench.kernel_gate import asked_kinds
from minibert.bench.user_file import load_function
from minibert.kernels.call import SHAPES
from minibert.kernels.check.parity import check
from minibert.kernels.registry import Implementation


class Here:
    """Calls a `UserFunction` as a worker does."""

    def __init__(self, user):
        self.user = user

    def call(self, problem, *, again):
        self.given = problem.copy()
        for name in ("query", "key", "value"):
            getattr(self.given, name).requires_grad_(problem.z_gradient is not None)
        self.outputs = {name: one.detach() for name, one in self.user.bound(self.given)().items()}
        return {name: one.clone() for name, one in self.outputs.items()}

    def later(self):
        given = {name: one.detach() for name, one in self.given.tensors().items()}
        return given, self.outputs


def report(
    source, name, *, signature=None, causal_only=False, workload=None, kinds=None, **options
):
    """The report of `parity.check` at 17 keys in float32, of a file or a module's function."""
    user = load_function(source, name, signature)
    taken = {*user.options, *(["causal"] if causal_only else [])}
    asked = asked_kinds(user.signature, taken, causal_only=causal_only, workload=workload)
    if kinds is not None:
        asked = {one: asked[one] for one in kinds}
    record = Implementation(name, lambda: None, options=frozenset(taken) | {*SHAPES})
    defaults = {"sizes": (17,), "dtypes": (torch.float32,), "input_scales": (1.0,), "d_head": 16}
    return check(record, kinds=asked, caller=Here(user), **defaults | options)
