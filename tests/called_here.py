"""A user's function judged in this process: quick, for what the worker has no part in."""

from dataclasses import replace
from functools import partial

import torch

from minibert.bench.judge import JudgedFunction, asked_kinds, learn
from minibert.bench.user_file import load_function
from minibert.kernels.call import SHAPES
from minibert.kernels.check.parity import check
from minibert.kernels.registry import Implementation


class Here(JudgedFunction):
    """Calls a `UserFunction` as a worker does."""

    def __init__(self, user, causal_only, layout=""):
        self.user, self.causal_only, self.layout = user, causal_only, layout
        self.signature, self.takes, self.device = user.signature, user.takes, torch.device("cpu")
        self.said, self.uncovered = [], []
        self.called(user.way)

    def called(self, way):
        self.user, self.way = self.user.called(way), way
        self.options = (*self.user.options, *(["causal"] if self.causal_only else []))

    def call(self, problem, *, again=False):
        self.given = problem.copy()
        for name in ("query", "key", "value"):
            getattr(self.given, name).requires_grad_(problem.z_gradient is not None)
        self.outputs = {name: one.detach() for name, one in self.user.bound(self.given)().items()}
        return {name: one.clone() for name, one in self.outputs.items()}

    def later(self):
        given = {name: one.detach() for name, one in self.given.tensors().items()}
        return given, self.outputs


def report(
    source,
    name,
    *,
    signature=None,
    layout="",
    causal_only=False,
    workload=None,
    kinds=None,
    **options,
):
    """The report of `parity.check` at 17 keys in float32, of a file or a module's function."""
    defaults = {
        "sizes": (17,),
        "dtypes": (torch.float32,),
        "input_scales": (1.0, 30.0),
        "d_head": 32,
    }
    options = defaults | options
    user = Here(load_function(source, name, signature), causal_only, layout)
    learn(user, dtype=options["dtypes"][0], d_head=options["d_head"])
    asked = asked_kinds(user, workload=workload)
    if kinds is not None:
        asked = {one: asked[one] for one in kinds}
    wants = frozenset(one.name for one in user.way.others or ()) - {"", "lse"}
    taken = frozenset({*user.options, *SHAPES, "window"})
    # No function of this file, whose lines are not where errors arise.
    record = Implementation(name, partial(user.call), options=taken, wants=wants)
    found = check(record, kinds=asked, caller=user, **options)
    return replace(found, skipped=(*found.skipped, *user.uncovered))
