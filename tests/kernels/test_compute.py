"""`compute`: what a model calls for each layer."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention_inputs import B, D, H, K, Q, by_torch, vectors

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import attend, compute, register
from minibert.kernels.call import Call

REPOSITORY = Path(__file__).resolve().parents[2]
ALLOWED = {
    "everything": AllowedKeys(B, K, torch.device("cpu")),
    "causal": AllowedKeys(B, K, torch.device("cpu"), causal=True),
    "lengths": AllowedKeys(B, K, torch.device("cpu"), lengths=(4, 7)),
    "both": AllowedKeys(B, K, torch.device("cpu"), causal=True, lengths=(4, 7)),
}


def call(allowed: AllowedKeys, *, queries: int = K, want=None, dtype=torch.float64) -> Call:
    query, key, value = vectors(queries=queries, keys=K, dtype=dtype)
    return Call(query, key, value, 1 / math.sqrt(D), allowed, want=want or {})


@pytest.mark.parametrize("impl", ["auto", "reference", "eager", "sdpa", "chunked", "math", "flex"])
@pytest.mark.parametrize("queries", ["all", "the last three", "the last", "chosen"])
@pytest.mark.parametrize("name", list(ALLOWED))
def test_the_queries_see_what_is_allowed(name, queries, impl):
    allowed = ALLOWED[name]
    positions = {"the last three": (4, 5, 6), "the last": (6,), "chosen": (5, 0)}.get(queries)
    if queries == "chosen":
        allowed = allowed.at(positions)
    seen = ALLOWED[name].full() if positions is None else ALLOWED[name].full()[:, :, positions]
    dtype = torch.float32 if impl == "flex" else torch.float64
    given = call(allowed, queries=K if positions is None else len(positions), dtype=dtype)
    expected = by_torch(given.query, given.key, given.value, allowed=seen)
    found = compute(given, impl)
    torch.testing.assert_close(found.z.double(), expected["z"], rtol=1e-5, atol=1e-5)
    assert (found.lse, found.scores, found.probs, found.statistics) == (None,) * 4


def test_layers_share_their_masks():
    allowed = AllowedKeys(B, K, torch.device("cpu"), causal=True, lengths=(4, 7))
    compute(call(allowed))
    mask = allowed.mask(K)
    compute(call(allowed), "eager")
    assert allowed.mask(K) is mask
    assert allowed.visible is mask


#: In a process of its own: in tests the checks of shapes make calls, and cannot be compiled.
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


def test_a_plain_call_takes_few_calls_of_python_and_compiles_whole():
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr


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


def test_attend_is_compiled_into_one_graph():
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_an_implementation_that_writes_into_its_inputs_is_named(name):
    def writing(query, key, value):
        z = by_torch(query, key, value)["z"].float()
        {"query": query, "key": key, "value": value}[name].mul_(2)
        return z, torch.zeros(B, H, Q)

    register("mine", writing)
    inputs = vectors(dtype=torch.float32)
    with pytest.raises(AttentionError, match=f'impl="mine" wrote into {name}, or into memory'):
        attend(*inputs, impl="mine")
    # torch keeps no count for inference tensors: there nothing can be said at no cost.
    with torch.inference_mode():
        attend(*vectors(dtype=torch.float32), impl="mine")
