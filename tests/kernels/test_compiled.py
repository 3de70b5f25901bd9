"""Attention in torch.compile has the numbers and gradients of the call without it."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
#: In a process of its own: torch.compile does not know the checks of shapes that the tests install.
PROGRAM = """
import sys, warnings
import importlib.util
from random import Random
import torch
from drawn_calls import drawn
from minibert.kernels.api import attend, compute
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Call

# A call that a model makes, whose calls of Python are counted, is one graph.
query, key, value = torch.randn(3, 1, 2, 16, 8).unbind()
allowed = AllowedKeys(1, 16, query.device, causal=True)

def layer(query, key, value):
    return compute(Call(query, key, value, 0.3, allowed)).z

expected = layer(query, key, value)
entered = []
sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame.f_code.co_name))
compute(Call(query, key, value, 0.3, allowed))
sys.setprofile(None)
assert len(entered) <= 12, entered
warnings.simplefilter("error")
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
assert torch.equal(compiled(query, key, value), expected)
warnings.simplefilter("ignore")

# Sinks; a bias and a window; ...; packed with a window.
for impl, seed in (("triton", 6), ("eager", 8), ("sdpa", 9), ("chunked", 4)):
    if impl == "triton" and not importlib.util.find_spec("triton"):
        continue
    training = impl != "chunked"
    random = Random(seed)
    dtype = random.choice((torch.float32, torch.float16))
    call = drawn(random, dtype, sizes=(17,), groups=(1, 2, 4, 8), most=2)
    z_gradient = torch.randn(*call.query.shape[:3], call.value.shape[3]).to(dtype)

    def step(vectors, options):
        found = attend(**vectors, impl=impl, want=("entropy",), **options)
        return (found.z * z_gradient).sum(), found.z, found.lse, found.statistics.entropy

    def gradients(run):
        names = ("query", "key", "value", *({"bias", "sinks"} & call.options.keys()))
        given = {n: getattr(call, n, call.options.get(n)).clone() for n in names}
        for one in given.values():
            one.requires_grad_(training)
        trained = {n: given[n] for n in names[3:]}
        loss, *outputs = run({n: given[n] for n in names[:3]}, call.options | trained)
        if training:
            loss.backward()
        return [x.grad for x in given.values() if training], [x.detach() for x in outputs]

    torch.compiler.reset()
    expected, compiled = (gradients(f) for f in (step, torch.compile(step, backend="aot_eager")))
    for one, two in zip(expected, compiled):
        assert all(map(torch.equal, one, two)), (impl, call)
"""


def test_what_is_compiled_has_the_bits_of_what_is_not() -> None:
    folders = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": folders, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
