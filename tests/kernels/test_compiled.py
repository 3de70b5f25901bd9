"""Attention in torch.compile is one graph with the right numbers, and a training step is too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
#: In a process of its own: torch.compile does not know the checks of shapes that the tests install.
#: The uncompiled call gives the bits to expect, NumPy float64 says that Triton's are right.
STEP = """
import sys
import torch
from fused_calls import call_of, gradients_judged, wrong, z_gradient_of
from minibert.kernels.api import attend

impl, seed = sys.argv[1], int(sys.argv[2])
call = call_of(seed, sizes=(17,))
z_gradient = z_gradient_of(call, seed)

def step(vectors, options):
    found = attend(**vectors, impl=impl, want=("entropy",), **options)
    return (found.z * z_gradient).sum(), found.z, found.lse, found.statistics.entropy

def gradients(run):
    names = ("query", "key", "value", *({"bias", "sinks"} & call.options.keys()))
    given = {n: getattr(call, n, call.options.get(n)).clone().requires_grad_() for n in names}
    trained = {n: given[n] for n in names[3:]}
    loss, z, lse, entropy = run({n: given[n] for n in names[:3]}, call.options | trained)
    loss.backward()
    told = (lse.requires_grad, entropy.requires_grad)
    return {n: x.grad for n, x in given.items()}, (z.detach(), lse.detach()), told

expected, outputs, trained = gradients(step)
found, compiled, in_graph = gradients(torch.compile(step, backend="aot_eager", fullgraph=True))
assert in_graph == trained, in_graph
assert all(map(torch.equal, compiled, outputs))
for name, gradient in found.items():
    assert torch.equal(gradient, expected[name]), name
if impl == "triton":
    said = wrong(gradients_judged(call, z_gradient, found))
    assert not said, said
"""


#: In a process of its own, as above. Lengths, a window and statistics beside z.
COMPILED = """
import warnings
import torch
from minibert.kernels.api import attend

query, key, value = torch.randn(3, 2, 2, 33, 8).unbind()
options = {"lengths": torch.tensor([33, 20]), "causal": True, "window": (5, None)}

def layer(query, key, value, impl, want):
    found = attend(query, key, value, impl=impl, want=want, **options)
    return found.z, found.lse, *([found.statistics.received] if want else [])

warnings.simplefilter("error")
for impl, want in (("auto", ()), ("auto", ("received",)), ("chunked", ("received",)), ("sdpa", ())):
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for one, two in zip(*(f(query, key, value, impl, want) for f in (compiled, layer))):
        assert torch.equal(one, two), (impl, want)
    torch._dynamo.reset()
"""

#: The same of a call that a model makes, whose calls of Python are counted.
PLAIN = """
import sys, warnings
import torch
from minibert.kernels.api import compute
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Call

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
"""


def run(program: str, *arguments: str) -> None:
    folders = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": folders, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("impl", "seed"),
    # Pages, a prefix, a soft cap and ALiBi; sinks; packed with a window; a bias and a window; ...
    [("triton", 3), ("triton", 6), ("triton", 4), ("triton", 12), ("eager", 8), ("sdpa", 9)],
)
def test_a_training_step_is_one_graph_with_the_bits_of_the_uncompiled_one(
    impl: str, seed: int
) -> None:
    if impl == "triton":
        pytest.importorskip("triton")
    run(STEP, impl, str(seed))


@pytest.mark.parametrize("program", [COMPILED, PLAIN])
def test_attend_and_a_plain_call_are_compiled_into_one_graph(program: str) -> None:
    run(program)
