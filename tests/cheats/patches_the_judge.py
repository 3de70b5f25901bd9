"""Puts its own functions in the place of everything that a verdict could be made of.

Source: gpu-mode/reference-kernels#162 and gpu-mode/pygpubench#7 (the checker is patched).
check: wrong: checks failed
bench: wrong: checks failed
"""

import math
import sys

import torch

from minibert.bench import judged_run
from minibert.kernels import eager, reference, registry
from minibert.kernels.check import parity, tolerances


def zeros(query, *_, **__):
    return {"z": torch.zeros_like(query), "lse": torch.zeros(query.shape[:3])}


for module in (parity, tolerances):
    module.error_of = lambda *_: 0.0
    module.tolerance_of = lambda *_: math.inf
judged_run.sampled = lambda *_, **__: judged_run.Sampled(0.0, 1.0)
parity.Finding.ok = property(lambda finding: True)
reference.attend = eager.attend = lambda call: zeros(call.query)
registry.register("mine", zeros)
torch.equal = torch.allclose = torch.testing.assert_close = lambda *_, **__: True
torch.randn = torch.Tensor.normal_ = lambda *size, **_: torch.zeros(1)
torch.manual_seed = torch.Generator = None
sys.excepthook = sys.exit = lambda *_: None


def attention(query, key, value, lengths, causal):
    return zeros(query)
