"""A packed model in other people's hands: pruned, parametrized, hooked, trained, copied."""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from linear_by_hand import IDS, WIDTH, bert_by_hand
from torch import nn
from torch.nn.utils import parametrize, prune

import minibert
from minibert.layers import linear_backends as backends
from minibert.layers.linear import PackedWeight
from minibert.layers.packing import describe, lay_out, layout
from minibert.model import Model

pytestmark = pytest.mark.skipif(
    torch.float32 not in backends.processor().onednn_dtypes, reason="this torch has no oneDNN"
)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A BERT of one layer whose linear layers are all packed, query, key and value as one."""
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=173,
        max_position_embeddings=13,
    )
    torch.manual_seed(0)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    backends.use("onednn-packed")
    model = minibert.load(tmp_path)
    yield model
    backends.use(None)


def packed_weights(model: Model) -> list[str]:
    return [name for name, p in model.named_parameters() if isinstance(p, PackedWeight)]


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def pruned(model: Model) -> None:
    layer = model.body.groups[0].attention.value
    prune.l1_unstructured(layer, "weight", amount=0.5)


def parametrized(model: Model) -> None:
    parametrize.register_parametrization(model.body.groups[0].mlp.up, "weight", Doubled())


def weights_now(model: Model) -> dict[str, torch.Tensor]:
    """What every layer says its weight and bias are, computed ones included."""
    return {
        f"{place}.{name}": getattr(module, name)
        for place, module in model.named_modules()
        for name in ("weight", "bias")
        if hasattr(module, name)
    }


@pytest.mark.parametrize("change", [pruned, parametrized], ids=lambda one: one.__name__)
@torch.no_grad()
def test_a_weight_that_is_computed_is_computed(
    packed: Model, change: Callable[[Model], None]
) -> None:
    before = packed(IDS)
    change(packed)
    got, expected = packed(IDS), bert_by_hand(weights_now(packed), IDS)
    assert (got - expected).abs().max() <= 1e-5
    assert (got - before).abs().max() >= 1e-3


@torch.no_grad()
def test_a_hook_on_one_of_three_layers_that_are_packed_as_one_runs(packed: Model) -> None:
    before = packed.trace(IDS)[0].query
    query = packed.body.groups[0].attention.query
    handle = query.register_forward_hook(lambda module, arguments, out: 2 * out)
    assert torch.allclose(packed.trace(IDS)[0].query, 2 * before, atol=1e-5)
    handle.remove()
    assert torch.equal(packed.trace(IDS)[0].query, before)


@torch.no_grad()
def test_weights_swapped_for_one_call_leave_the_packing_as_it_was(packed: Model) -> None:
    before, names = packed(IDS), packed_weights(packed)
    assert len(names) == 6
    other = {name: value * 1.5 for name, value in packed.named_parameters()}
    swapped = torch.func.functional_call(packed, other, (IDS,))
    assert (swapped - bert_by_hand(other, IDS)).abs().max() <= 1e-4
    assert packed_weights(packed) == names
    assert torch.equal(packed(IDS), before)


COMPILE = """
import sys, torch, minibert
from minibert.layers import linear_backends as backends
backends.PACK_FROM = 1
backends.use("onednn-packed")
model = minibert.load(sys.argv[1])
mlp, x = model.body.groups[0].mlp, torch.randn(2, 3, 128)
with torch.no_grad():
    compiled = torch.compile(mlp, backend="eager", fullgraph=True)(x)
    assert torch.allclose(compiled, mlp(x), atol=1e-5)
assert model.is_packed
"""


def test_a_packed_model_compiles(packed: Model) -> None:
    """In a process of its own: the shape checks of the tests cannot be compiled."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    program = [sys.executable, "-c", COMPILE, packed.name]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@torch.no_grad()
def test_a_packed_model_runs_under_autocast(packed: Model) -> None:
    before = packed(IDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (packed(IDS).float() - before).abs().max() <= 0.1
    assert torch.equal(packed(IDS), before)


def test_a_gradient_unpacks_the_weight_it_is_for(packed: Model) -> None:
    up = packed.body.groups[0].mlp.up
    up.weight.requires_grad = True
    packed(IDS).square().sum().backward()
    assert up.weight.grad is not None
    assert "body.groups.0.mlp.up.weight" not in packed_weights(packed)
    assert packed.is_packed
    packed.requires_grad_()
    assert not packed.is_packed


HAND_OUTS: dict[str, Callable[[Any], Any]] = {
    "data": lambda weight: weight.data,
    "detach": lambda weight: weight.detach(),
    "numpy": lambda weight: weight.numpy(),
    "array": lambda weight: weight.__array__(),
    "dlpack": lambda weight: torch.from_dlpack(weight),
    "storage": lambda weight: weight.untyped_storage(),
}


@pytest.mark.parametrize("name", HAND_OUTS)
def test_a_hand_out_of_memory_unpacks_the_layer_and_reading_does_not(
    packed: Model, name: str
) -> None:
    weight = packed.body.groups[0].attention.query.weight
    for read in (weight[3:9].sum(), weight.T @ weight, weight.clone(), weight.shape, weight.norm()):
        assert read is not None
    assert len(packed_weights(packed)) == 6
    address = weight.data_ptr()
    HAND_OUTS[name](weight)
    # The three that were one matrix, and no other.
    assert len(packed_weights(packed)) == 3
    assert type(weight) is nn.Parameter
    assert weight.data_ptr() == address


@torch.no_grad()
def test_copies_are_plain_models_and_leave_the_original_packed(packed: Model) -> None:
    before = packed(IDS)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert not twin.is_packed
        assert {type(parameter) for parameter in twin.parameters()} == {nn.Parameter}
        assert (twin(IDS) - before).abs().max() <= 1e-5
        twin.body.groups[0].mlp.up.weight.zero_()
    assert len(packed_weights(packed)) == 6
    assert torch.equal(packed(IDS), before)


def test_the_description_names_back_end_processor_and_rule(packed: Model) -> None:
    name = backends.processor().name
    assert describe(packed) == f"onednn-packed ({name}; rule: named by MINIBERT_LINEAR or use())"
    packed.double()
    assert describe(packed) == f"torch ({name}; rule: oneDNN does not multiply float64 here)"


@pytest.mark.parametrize("source", ["packed", "tiny-bert", "unpacked"])
def test_a_copy_that_is_laid_out_as_its_model_gives_the_same_bits(
    packed: Model, source: str
) -> None:
    model = minibert.load(source) if source == "tiny-bert" else packed
    if source == "unpacked":
        model.unpack()
    expected = {"packed": "packed", "tiny-bert": "side by side", "unpacked": "apart"}[source]
    before = layout(model)
    assert expected in before
    copied = pickle.loads(pickle.dumps(model))
    assert layout(model) == before
    assert set(layout(copied)) == {"apart"}
    lay_out(copied, before)
    assert layout(copied) == before
    assert torch.equal(copied.trace(IDS)[0].attn_out, model.trace(IDS)[0].attn_out)
