"""A program: changes weights in every way it can think of and says which changes went unseen.

`python tests/linear_changes.py BERT GPT2` writes {back end: {case: what went wrong or ""}}.
test_linear.py runs it in a process of its own, because it lowers the size from which weights are
packed: here all are, query, key and value as one.
"""

import copy
import itertools
import json
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from linear_by_hand import IDS, bert_by_hand
from torch import nn
from torch.nn import functional as F

import minibert
from minibert.checkpoint.save import save
from minibert.layers import linear_backends as backends

PLACES = ("mlp.up", "attention.key")

# What somebody may hold of a layer, and how it is changed through that.
HOLDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "weight": (lambda layer: layer.weight, lambda weight: weight.mul_(2)),
    "weight.data": (lambda layer: layer.weight, lambda weight: weight.data.mul_(2)),
    "bias": (lambda layer: layer.bias, lambda bias: bias.add_(1)),
    "data": (lambda layer: layer.weight.data, lambda data: data.mul_(2)),
    "data of the bias": (lambda layer: layer.bias.data, lambda data: data.add_(1)),
    "detached": (lambda layer: layer.weight.detach(), lambda alias: alias.mul_(2)),
    "rows": (lambda layer: layer.weight[3:90], lambda rows: rows.mul_(3)),
    "array": (lambda layer: layer.weight.numpy(), lambda a: np.multiply(a, 2, out=a)),
    "dlpack": (lambda layer: torch.from_dlpack(layer.weight), lambda alias: alias.mul_(2)),
    "detached array": (
        lambda layer: layer.weight.detach().numpy(),
        lambda a: np.negative(a, out=a),
    ),
    "array protocol": (lambda layer: np.asarray(layer.weight), lambda a: np.negative(a, out=a)),
    "storage": (lambda layer: layer.weight.untyped_storage(), lambda memory: memory.fill_(61)),
    "view of a view": (lambda layer: layer.weight[1:].view(-1)[5:99], torch.neg_),
    "numpy dlpack": (lambda layer: torch.from_dlpack(np.from_dlpack(layer.weight)), torch.neg_),
    "state dict": (lambda layer: layer.state_dict(), lambda state: state["weight"].mul_(2)),
    "state dict bias": (lambda layer: layer.state_dict(), lambda state: state["bias"].add_(1)),
    "parameters": (lambda layer: list(layer.parameters()), lambda both: both[0].data.mul_(2)),
    "iterator": (lambda layer: layer.parameters(), lambda walk: next(walk).data.mul_(2)),
    "named": (lambda layer: dict(layer.named_parameters()), lambda all_: all_["bias"].add_(1)),
    "get_parameter": (lambda layer: layer.get_parameter("weight"), lambda w: w.data.neg_()),
    "the dictionary": (lambda layer: layer._parameters, lambda all_: all_.get("weight").neg_()),
    "shallow copy": (copy.copy, lambda twin: twin.weight.data.mul_(2)),
    "the layer": (lambda layer: layer, lambda layer: layer.weight.data.mul_(2)),
    "shared memory": (lambda layer: layer.share_memory().weight.data, lambda w: w.mul_(2)),
}


def _train(model: Any, **options: Any) -> None:
    model.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    with torch.enable_grad():
        model(IDS).square().mean().backward()
    optimizer.step()


def _step_by_hand(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    torch.optim.SGD(model.parameters(), lr=0.1, fused=True).step()


def _other_weight(model: Any) -> None:
    layer = model.get_submodule("body.groups.0.mlp.up")
    layer.weight = nn.Parameter(layer.weight * 2, requires_grad=False)


def _other_data(model: Any) -> None:
    layer = model.get_submodule("body.groups.0.mlp.up")
    layer.weight.data = layer.weight * 2


def _bigger(model: Any) -> dict[str, Any]:
    return {name: value * 1.5 for name, value in model.state_dict().items()}


def _vector(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()) * 1.5
    nn.utils.vector_to_parameters(vector, model.parameters())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "loop": lambda model: [p.data.mul_(1.5) for p in model.parameters()],
    "load_state_dict": lambda model: model.load_state_dict(_bigger(model)),
    "load_state_dict assign": lambda model: model.load_state_dict(_bigger(model), assign=True),
    "init": lambda model: nn.init.normal_(model.get_parameter("body.groups.0.mlp.up.weight")),
    "vector_to_parameters": _vector,
    "new parameter": _other_weight,
    "new data": _other_data,
    "training step": _train,
    "fused training step": lambda model: _train(model, fused=True),
    "step with a gradient by hand": _step_by_hand,
    "half and back": lambda model: model.half().float(),
}


def wrong(model: Any, before: torch.Tensor | None = None) -> str:
    """How the model differs from torch on the weights it has now, or stayed as it was before."""
    got = model(IDS)
    expected = bert_by_hand(dict(model.named_parameters()), IDS)
    error = (got - expected).abs().max().item()
    if error > 1e-5 * expected.abs().max().item():
        return f"off by {error}"
    if before is not None and torch.equal(got, before):
        return "the change had no effect"
    return ""


def hold_then_change(folder: str, place: str, hold: str, early: bool) -> str:
    take, change = HOLDS[hold]
    model = minibert.load(folder)
    if not early:
        model(IDS)
    held = take(model.get_submodule(f"body.groups.0.{place}"))
    before = model(IDS)
    model(IDS)
    change(held)
    first = wrong(model, before)
    held = None
    return first or wrong(model, before)


def change_all(folder: str, how: str) -> str:
    model = minibert.load(folder)
    before = model(IDS)
    CHANGES[how](model)
    return wrong(model, before) or wrong(model.requires_grad_(False), before)


def deep_copy(folder: str, touches: int) -> str:
    model = minibert.load(folder)
    for _ in range(2):
        _ = [model.get_parameter(f"body.groups.0.{place}.weight") for place in PLACES]
        before = model(IDS)
    twin = copy.deepcopy(model)
    for _ in range(touches):
        for place in PLACES:
            twin.get_parameter(f"body.groups.0.{place}.weight").mul_(1.1)
    if not torch.equal(model(IDS), before):
        return "the original changed"
    return wrong(twin, before)


def pickled(folder: str) -> str:
    model = minibert.load(folder)
    # Of weights in memory of their own, as a pickled model has them: where the weights of a file
    # lie can change how MKL rounds (seen on AMD).
    before = copy.deepcopy(model)(IDS)
    with tempfile.TemporaryDirectory() as beside:
        torch.save(model, Path(beside) / "model.pt")
        saved = torch.load(Path(beside) / "model.pt", weights_only=False)
    for twin in (pickle.loads(pickle.dumps(model)), saved):
        if not torch.equal(twin(IDS), before):
            return "differs after pickling"
        twin.get_parameter("body.groups.0.mlp.up.weight").data.mul_(2)
        if problem := wrong(twin, before) or wrong(model):
            return problem
    return ""


def unpacked(folder: str) -> str:
    """unpack() keeps every bit of the weights, and pack() brings the same results back."""
    model = minibert.load(folder)
    before, weights = model(IDS), {n: w.clone() for n, w in model.named_parameters()}
    packed = model.is_packed
    if packed != (backends.named() == "onednn-packed"):
        return f"packed after loading: {packed}"
    model.unpack()
    if model.is_packed:
        return "still packed after unpack()"
    if lost := [n for n, w in model.named_parameters() if not torch.equal(w, weights[n])]:
        return f"unpacking changed {lost}"
    if problem := wrong(model):
        return problem
    model.pack()
    if model.is_packed != packed:
        return "not packed again"
    return "" if torch.equal(model(IDS), before) else "packed again, the result differs"


def packed_as_one(folder: str) -> str:
    """What the cases below rest on: query, key and value are one packed matrix."""
    one = minibert.load(folder).body.groups[0].attention._qkv.one_matrix
    if one is None or one.packed != (backends.named() == "onednn-packed"):
        return f"not as expected: {one}"
    return ""


def saved_over(folder: str) -> str:
    """Changed weights are saved where they came from; the mapping still is of the old file."""
    with tempfile.TemporaryDirectory() as beside:
        shutil.copytree(folder, beside, dirs_exist_ok=True)
        model = minibert.load(beside)
        model(IDS)
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        del parameter
        before = {name: value.clone() for name, value in model.named_parameters()}
        save(model, beside)
        problem = wrong(model) or wrong(model)
        after = dict(model.named_parameters())
        lost = [name for name, value in before.items() if not torch.equal(after[name], value)]
        return problem or (f"lost {lost}" if lost else "")


def file_gone(folder: str) -> str:
    with tempfile.TemporaryDirectory() as beside:
        shutil.copytree(folder, beside, dirs_exist_ok=True)
        model = minibert.load(beside)
        before = model(IDS)
    model.state_dict()
    return wrong(model) or ("" if torch.equal(model(IDS), before) else "changed")


def one_of_three(gpt2: str) -> str:
    """GPT-2 keeps query, key and value in the same pages; a change of one must outlive them."""
    model = minibert.load(gpt2)
    value = model.body.groups[0].attention.value
    value.weight.mul_(2)
    changed = value.weight.clone()
    trace = model.trace(IDS, until=0)
    expected = trace[0].value
    _ = trace[0].query, trace[0].key
    model(IDS)
    if not torch.equal(value.weight, changed):
        return "the change was lost"
    again = model.trace(IDS)[0].value
    return "" if torch.allclose(again, expected, atol=1e-5) else "value differs"


def forward_mode(folder: str) -> str:
    layer = minibert.load(folder).get_submodule("body.groups.0.mlp.up")
    x = torch.randn(3, layer.weight.shape[1])
    _, got = torch.func.jvp(lambda x: layer(x, activation="gelu"), (x,), (x,))
    weight, bias = layer.weight, layer.bias
    _, expected = torch.func.jvp(lambda x: F.gelu(F.linear(x, weight, bias)), (x,), (x,))
    return "" if torch.allclose(got, expected, atol=1e-5) else "the tangent is lost"


@torch.no_grad()
def changes(folder: str, gpt2: str, back_end: str) -> dict[str, str]:
    backends.use(back_end)
    backends.PACK_FROM = 1
    # A packed weight can go stale at any place and time; elsewhere each hold is tried twice.
    everywhere = list(itertools.product(PLACES, (True, False)))
    if back_end != "onednn-packed":
        everywhere = [(PLACES[0], False), (PLACES[1], True)]
    found = {
        f"{hold}, {place}, {'early' if early else 'late'}": hold_then_change(
            folder, place, hold, early
        )
        for hold in HOLDS
        for place, early in everywhere
    }
    found |= {how: change_all(folder, how) for how in CHANGES}
    found |= {f"deep copy, {n} touches": deep_copy(folder, n) for n in (1, 2, 8)}
    found |= {
        "pickled": pickled(folder),
        "unpacked": unpacked(folder),
        "as one": packed_as_one(folder),
    }
    found |= {"saved over": saved_over(folder), "file gone": file_gone(folder)}
    found |= {"one of three": one_of_three(gpt2)}
    return found | {"forward mode": forward_mode(folder)}


if __name__ == "__main__":
    print(json.dumps({name: changes(*sys.argv[1:], name) for name in backends.NAMES}))
