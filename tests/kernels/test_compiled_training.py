"""A training step through attention in torch.compile is one graph with the right gradients."""

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
    said = wrong(gradients_judged(call, z_gradient, found, found))
    assert not said, said
"""


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
    folders = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STEP, impl, str(seed)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": folders, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
