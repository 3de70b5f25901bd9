"""The linear layer on every back end: the rule that names one, and that no write goes unseen."""

import copy
import itertools
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

import minibert
from minibert.analysis import decompose
from minibert.errors import CheckpointError, EditError, MinibertError, TraceError
from minibert.layers import linear as backends
from minibert.layers.linear import Int8Linear, Linear, describe, held, held_by_name
from minibert.model import Model
from minibert.trace.identity import weights_digest
from minibert.verification import verify
from minibert.viz.live import live_page

HERE = Path(__file__).resolve().parent
WIDTH = 128
IDS = torch.tensor([[5, 7, 11, 13, 17], [2, 3, 19, 23, 29]])
ONEDNN = torch.float32 in backends.processor().onednn_dtypes
needs_onednn = pytest.mark.skipif(not ONEDNN, reason="this torch has no oneDNN")
ACTIVATIONS = {
    None: lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": transformers.activations.ACT2FN["gelu_fast"],
    "quick_gelu": transformers.activations.ACT2FN["quick_gelu"],
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# (the largest rounding relative to the largest number, how often one rounds)
DTYPES = {torch.float32: 2**-20, torch.bfloat16: 3 * 2**-8, torch.float16: 3 * 2**-11}


@pytest.fixture
def packs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every linear layer of a file is packed, however small it is."""
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    monkeypatch.setenv("MINIBERT_LINEAR", "onednn-packed")


SHAPE = {"vocab_size": 31, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = transformers.BertConfig(
    hidden_size=WIDTH, intermediate_size=521, max_position_embeddings=13, **SHAPE
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT and a GPT-2 of one layer and two heads; the GPT-2's query, key and value are one."""
    torch.manual_seed(0)
    made = {
        "bert": transformers.BertModel(BERT, add_pooling_layer=False),
        "gpt2": transformers.GPT2Model(
            transformers.GPT2Config(n_embd=WIDTH, n_positions=13, **SHAPE)
        ),
    }
    folder = tmp_path_factory.mktemp("linear")
    for name, model in made.items():
        model.save_pretrained(folder / name)
    return {name: folder / name for name in made}


@cache
def never_packed() -> Model:
    """A BERT of the same sizes."""
    return minibert.load(transformers.BertModel(BERT, add_pooling_layer=False))


@torch.no_grad()
def assert_seen(model: Model, before: torch.Tensor | None = None) -> None:
    """The model computes with the weights that its modules have now, and not as it did before."""
    got, names = model(IDS), [name for name, _ in never_packed().named_parameters()]
    now = {name: operator.attrgetter(name)(model).clone() for name in names}
    expected = torch.func.functional_call(never_packed(), now, (IDS,))
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert before is None or not torch.equal(got, before), "the change had no effect"


def inputs(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, int]]:
    """x and how many numbers come out of each of its rows; some lie in strides."""
    for rows, d_in, d_out in (((), 7, 5), ((3,), 13, 11), ((2, 3), 512, 521), ((2, 131), 521, 7)):
        yield torch.randn(*rows, d_in, dtype=dtype), d_out
    x = torch.randn(5, 3, 512, dtype=dtype)
    for strided in (x[:, 1], x.transpose(0, 1), x[::2], torch.randn(7, 512, 5).to(dtype).mT, x[:0]):
        yield strided, 521


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", backends.NAMES)
@torch.no_grad()
def test_every_back_end_gives_what_float64_gives(name: str, dtype: torch.dtype) -> None:
    packed = name == "onednn-packed"
    if packed and dtype not in backends.processor().onednn_dtypes:
        pytest.skip(f"oneDNN does not multiply {dtype} here")
    multiply = backends.onednn_linear if packed else backends.torch_linear
    cases = itertools.product(inputs(dtype), ACTIVATIONS)
    for number, ((x, d_out), activation) in enumerate(cases):
        weight, bias = torch.randn(d_out, x.shape[-1]).to(dtype), torch.randn(d_out).to(dtype)
        matrix = backends.packed_copy(weight) if packed else weight
        # Each activation meets each of these at some shape.
        offset = bias if (number + number // 8) % 2 else None
        residual = torch.randn(*x.shape[:-1], d_out).to(dtype) if number // 16 % 2 else None
        kept = x.clone(), None if residual is None else residual.clone()
        got = multiply(x, matrix, offset, activation, residual)
        product = x.double() @ weight.double().mT + (0 if offset is None else bias.double())
        exact = ACTIVATIONS[activation](product) + (0 if residual is None else residual)
        # Relative to the largest term of the sum, as the rounding of a dot product is.
        size = (x.double().abs() @ weight.double().abs().mT).amax() + 4 if len(x) else 1
        assert got.dtype == dtype
        assert ((got - exact).abs() <= DTYPES[dtype] * size).all()
        assert torch.equal(x, kept[0]), "the input was changed"
        assert residual is None or torch.equal(residual, kept[1]), "the residual was changed"


def test_gradients_and_tangents_are_those_of_torch() -> None:
    layer, x = Linear(7, 5).double(), torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    for parameter in layer.requires_grad_().parameters():
        parameter.data.normal_()
    residual = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    given = [x, layer.weight, layer.bias, residual]
    ours = layer(x, activation="silu", residual=residual).square().sum()
    theirs = (F.silu(F.linear(x, layer.weight, layer.bias)) + residual).square().sum()
    both = (torch.autograd.grad(one, given) for one in (ours, theirs))
    torch.testing.assert_close(*both, atol=1e-12, rtol=0)
    point = (x.detach(),)
    _, ours = torch.func.jvp(lambda x: layer(x, activation="gelu"), point, point)
    _, theirs = torch.func.jvp(
        lambda x: F.gelu(F.linear(x, layer.weight, layer.bias)), point, point
    )
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def _train(model: Any) -> None:
    model.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        model(IDS).square().mean().backward()
    optimizer.step()


def _bigger(model: Any) -> dict[str, Any]:
    return {name: value * 1.5 for name, value in model.state_dict().items()}


def _vector(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()) * 1.5
    nn.utils.vector_to_parameters(vector, model.parameters())


def _new(layer: Any) -> nn.Parameter:
    return nn.Parameter(layer.weight * 2, requires_grad=False)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def itself(one: Any) -> Any:
    return one


# How somebody comes to hold a weight's memory, and writes to it.
WRITES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "an operator": (lambda layer: layer.weight, lambda w: torch.ops.aten.mul_.Tensor(w, 2)),
    "a list of weights": (lambda layer: [layer.weight], lambda w: torch._foreach_mul_(w, 2)),
    "out=": (lambda layer: layer.weight, lambda w: torch.add(w.clone(), 1, out=w)),
    "weight.data": (lambda layer: layer.weight, lambda weight: weight.data.mul_(2)),
    "other data": (lambda layer: layer.weight, lambda w: setattr(w, "data", w * 2)),
    "data of the bias": (lambda layer: layer.bias.data, lambda data: data.add_(1)),
    "detached": (lambda layer: layer.weight.detach(), lambda alias: alias.data.mul_(2)),
    "data of rows": (lambda layer: layer.weight[3:90], lambda rows: rows.data.mul_(3)),
    "unbound rows": (lambda layer: list(layer.weight), lambda rows: rows[5].data.fill_(61)),
    "array protocol": (lambda layer: np.asarray(layer.weight), lambda a: np.negative(a, out=a)),
    "numpy dlpack": (lambda layer: torch.from_dlpack(np.from_dlpack(layer.weight)), torch.neg_),
    "storage": (lambda layer: layer.weight.untyped_storage(), lambda memory: memory.fill_(61)),
    "state dict": (lambda layer: layer.state_dict(), lambda state: state["weight"].mul_(2)),
    "the dictionary": (lambda layer: layer._parameters, lambda all_: all_["weight"].neg_()),
    "a copy of the dictionary": (
        lambda layer: {**layer._parameters},
        lambda all_: all_["weight"].data.neg_(),
    ),
    "shallow copy": (copy.copy, lambda twin: twin.weight.data.mul_(2)),
    "shared memory": (lambda layer: layer.share_memory().weight.data, lambda w: w.mul_(2)),
    "new parameter": (itself, lambda layer: setattr(layer, "weight", _new(layer))),
    "swapped": (itself, lambda layer: torch.utils.swap_tensors(layer.weight, _new(layer))),
    "pruned": (itself, lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5)),
    "parametrized": (
        itself,
        lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    ),
}
#: Of a whole model.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "load_state_dict": lambda model: model.load_state_dict(_bigger(model)),
    "load_state_dict assign": lambda model: model.load_state_dict(_bigger(model), assign=True),
    "vector_to_parameters": _vector,
    "training step": _train,
    "half and back": lambda model: model.half().float(),
}
WAYS = [
    *((place, *one) for one in WRITES.values() for place in ("mlp.up", "attention.key")),
    *(("", itself, change) for change in CHANGES.values()),
]
NAMES = [f"{name} {place}" for name in WRITES for place in ("up", "key")] + [*CHANGES]


@pytest.mark.parametrize(("place", "take", "change"), WAYS, ids=NAMES)
@torch.no_grad()
def test_no_write_to_a_weight_goes_unseen(folders, packs_all, place, take, change) -> None:
    model = minibert.load(folders["bert"])
    assert model.is_packed == ONEDNN
    before = model(IDS)
    held = take(model.get_submodule(f"body.groups.0.{place}" if place else ""))
    change(held)
    assert_seen(model, before)
    del held
    assert_seen(model.requires_grad_(False), before)


def packed_layers(model: Model) -> list[str]:
    linears = {name: one for name, one in model.named_modules() if isinstance(one, Linear)}
    return [name.removeprefix("body.groups.0.") for name, one in linears.items() if one.is_packed]


@needs_onednn
@torch.no_grad()
def test_what_only_reads_leaves_a_model_packed(
    folders: dict[str, Path], packs_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = minibert.load(folders["bert"])
    before, packed = model(IDS), packed_layers(model)
    layer = model.body.groups[0]
    for weight in (layer.attention.W_Q, layer.attention.b_O, layer.mlp.W_in):
        assert weight.sum().isfinite()
        with pytest.raises(ValueError, match="read-only"):
            weight[:2].numpy()[0] = 7
        for write in (weight.neg_, weight[:2].data.neg_):
            with pytest.raises(minibert.CheckpointError, match="would not reach the model"):
                write()
    assert len(model.weights["W_K"]) == 1
    model.save(tmp_path / "saved")
    assert {*held_by_name(model).values()} == {*held(model)}
    hook = layer.attention.key.register_forward_hook(lambda module, arguments, out: 2 * out)
    key = model.trace(IDS)[0].key
    hook.remove()
    assert torch.allclose(2 * model.trace(IDS)[0].key, key, atol=1e-5)
    trace = model.trace(IDS, grad=True)
    with torch.enable_grad():
        trace.backward(trace.logits.sum())
    assert weights_digest(model) == weights_digest(minibert.load(folders["bert"]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (model(IDS).float() - before).abs().max() <= 0.1
    monkeypatch.setenv("MINIBERT_LINEAR", "torch")
    other = model(IDS)
    monkeypatch.setenv("MINIBERT_LINEAR", "onednn-packed")
    assert (other - before).abs().max() <= 1e-5
    assert torch.equal(model(IDS), before)
    assert packed_layers(model) == packed
    assert held_by_name(model) == dict(model.named_parameters())


@needs_onednn
@torch.no_grad()
def test_packing_is_taken_back(folders: dict[str, Path], packs_all: None) -> None:
    model, twin = (minibert.load(folders["bert"]) for _ in range(2))
    names = [*(f"attention.{name}" for name in ("query", "key", "value", "output"))]
    assert packed_layers(model) == [*names, "mlp.up", "mlp.down"]
    name = backends.processor().name
    assert describe(model) == f"onednn-packed ({name}; rule: named by MINIBERT_LINEAR)"
    up = model.body.groups[0].mlp.up
    up.weight.requires_grad = True
    assert packed_layers(model) == [*names, "mlp.down"], "the others are packed still"
    with torch.enable_grad():
        model(IDS).square().sum().backward()
    assert up.weight.grad is not None
    assert model.body.groups[0].attention.key.bias is not None
    assert packed_layers(model) == ["attention.output", "mlp.down"]
    model.unpack()
    assert not model.is_packed
    assert describe(model.double()).startswith("torch (")
    twin.unpack()
    assert all(map(torch.equal, twin.parameters(), model.float().parameters()))
    assert_seen(twin)


@needs_onednn
@torch.no_grad()
def test_what_others_hold_and_copies_are_not_packed(
    folders: dict[str, Path], packs_all: None
) -> None:
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folders["gpt2"]).eval()
    assert not minibert.load(theirs).is_packed
    theirs.save_pretrained(folders["gpt2"] / "tied")
    tied = minibert.load(folders["gpt2"] / "tied")
    before = tied(IDS)
    assert tied.head.decoder.is_packed
    assert tied.W_E.mT.shape == tied.W_U.shape
    assert tied.head.decoder.is_packed
    with pytest.raises(MinibertError, match="packed"):
        tied.W_E.mul_(2)
    tied.body.word.weight.data.mul_(2)
    assert not tied.head.decoder.is_packed
    assert not torch.allclose(tied(IDS), before)
    model = minibert.load(folders["bert"])
    before, bits = packed_layers(model), model(IDS)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not twin.is_packed
        twin.body.groups[0].mlp.up.weight.zero_()
        assert_seen(twin, bits)
    assert packed_layers(model) == before
    assert torch.equal(model(IDS), bits)


@torch.no_grad()
def test_a_change_outlives_the_pages_of_a_file_and_reaches_no_file(
    folders: dict[str, Path], packs_all: None, tmp_path: Path
) -> None:
    """GPT-2 keeps query, key and value in the same pages, which packing gives back."""
    files = {name: (folder / "model.safetensors") for name, folder in folders.items()}
    content = {name: file.read_bytes() for name, file in files.items()}
    model = minibert.load(folders["gpt2"])
    expected = model.trace(IDS)[0].value
    model.body.groups[0].attention.value.weight.mul_(2)
    bias = model.body.groups[0].attention.b_V[:, None]
    assert torch.allclose(model.trace(IDS)[0].value, 2 * expected - bias, atol=1e-5)
    moved = minibert.load(folders["bert"])
    moved.save(tmp_path)
    moved = minibert.load(tmp_path)
    for parameter in moved.parameters():
        parameter.data.mul_(1.5)
    before = {name: one.clone() for name, one in moved.named_parameters()}
    moved.save(tmp_path)
    assert_seen(moved)
    assert all(torch.equal(one, before[name]) for name, one in moved.named_parameters())
    (tmp_path / "model.safetensors").unlink()
    moved.state_dict()
    assert_seen(moved)
    assert content == {name: file.read_bytes() for name, file in files.items()}


# Not ru_maxrss: a process starts with that of the one that started it.
LOAD = """
import sys, torch, minibert
torch.set_num_threads(1)
minibert.load(sys.argv[1])(torch.zeros(1, 7, dtype=torch.long))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].removesuffix("kB\\n")) * 1024)
"""


def run(program: str, folder: Path) -> str:
    """What a program prints in a process of its own, where shapes are not checked."""
    environment = os.environ | {"MINIBERT_LINEAR": "onednn-packed", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_packed_weight_is_not_held_twice(tmp_path: Path, folders: dict[str, Path]) -> None:
    """That a converted one is not either is in checkpoint/test_values.py."""
    config = transformers.BertConfig(num_hidden_layers=3, vocab_size=12_000)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").stat().st_size
    assert weights > 110e6
    # What torch, minibert and the code of its kernels take by themselves.
    alone = int(run(LOAD, folders["bert"]))
    assert int(run(LOAD, tmp_path)) <= 1.15 * weights + alone


ALL = frozenset({torch.float32, torch.bfloat16, torch.float16})
AMD = backends.Processor("AuthenticAMD", "AMD EPYC 9554", frozenset({"avx2", "avx512f"}), ALL)
INTEL = replace(AMD, vendor="GenuineIntel", name="Intel Xeon", features=AMD.features | {"amx_tile"})
OTHER = backends.Processor("", "aarch64", frozenset(), ALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_amd_packs_wide_weights_and_no_other_processor_does(dtype: torch.dtype) -> None:
    assert backends.backend_for(AMD, dtype, 512, 256).name == "onednn-packed"
    assert backends.backend_for(AMD, dtype, 512, 255).name == "torch"
    old = [replace(AMD, features=frozenset({name})) for name in ("avx", "avx2")]
    for processor in (INTEL, OTHER, *old):
        assert backends.backend_for(processor, dtype, 2048, 2048).name == "torch"
    for name in backends.NAMES:
        choice = backends.backend_for(AMD, torch.float64, 999, 999, name=name)
        assert choice == ("torch", "oneDNN does not multiply float64 here")


@needs_onednn
@pytest.mark.parametrize("processor", [AMD, INTEL, OTHER])
def test_a_file_is_packed_on_amd_where_it_is_wide_unless_a_back_end_is_named(
    processor: backends.Processor, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this machine had another processor; what its oneDNN can multiply stays true."""
    # query, key and value as one, up and down; not the output projection.
    monkeypatch.setattr(backends, "PACK_FROM", WIDTH * WIDTH + 1)
    here = replace(processor, onednn_dtypes=backends.processor().onednn_dtypes)
    monkeypatch.setattr(backends, "processor", lambda: here)
    reached: list[bool] = []
    run = backends.onednn_linear
    monkeypatch.setattr(
        backends, "onednn_linear", lambda *given: reached.append(True) or run(*given)
    )
    for named in ("", *backends.NAMES):
        monkeypatch.setenv("MINIBERT_LINEAR", named)
        if not named:
            monkeypatch.delenv("MINIBERT_LINEAR")
        model = minibert.load(folders["bert"])
        reached.clear()
        model(IDS)
        name = named or ("onednn-packed" if processor is AMD else "torch")
        packs = name == "onednn-packed"
        assert model.is_packed == packs
        assert len(reached) == (3 if packs else 0)
        assert describe(model).startswith(f"{name} ({here.name}; rule: ")
    monkeypatch.setenv("MINIBERT_LINEAR", "mkl")
    with pytest.raises(minibert.MinibertError, match=r"MINIBERT_LINEAR='mkl'.*onednn-packed"):
        backends.chosen(torch.float32, 512, 512)


def test_this_processor_is_read_as_the_system_tells_it() -> None:
    here = backends.processor()
    assert here.name
    assert torch.float64 not in here.onednn_dtypes
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert "avx2" in here.features


@pytest.mark.parametrize("rows", [(), (0, 3), (0, 1, 2, 3)])
def test_rows_without_a_gradient_leave_that_of_the_others_alone(rows: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, number = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 2, 5), (7, 5), (7,), (2, 2, 7))
    )
    number = number * torch.tensor([row in rows for row in range(4)]).view(2, 2, 1)
    linear = partial(backends.torch_linear, weight=weight, bias=bias, activation="tanh")
    x.requires_grad_()
    frozen = torch.autograd.grad((linear(x) * number).sum(), x)[0]
    weight.requires_grad_()
    assert torch.allclose(frozen, torch.autograd.grad((linear(x) * number).sum(), x)[0], atol=1e-15)
    weight.requires_grad_(False)
    assert torch.autograd.gradgradcheck(lambda x: linear(x) * number, x)
    each = torch.autograd.grad(linear(x), x, torch.stack([number, -number]), is_grads_batched=True)
    assert torch.allclose(each[0], torch.stack([frozen, -frozen]), atol=1e-15)
    through = torch.func.grad(lambda x: (linear(x) * number).sum())(x.detach())
    assert torch.allclose(through, frozen, atol=1e-15)


needs_int8 = pytest.mark.skipif(
    not backends.int8_by(backends.processor()), reason="this processor does not multiply int8"
)


@needs_int8
@torch.no_grad()
def test_int8_layers_give_the_formula_of_their_rounding_and_keep_its_bound() -> None:
    for number, (x, d_out) in enumerate(inputs(torch.float32)):
        multiplier = 0.5 if number % 3 else 1.0
        linear = Linear(x.shape[-1], d_out, bias=bool(number % 2), multiplier=multiplier)
        for parameter in linear.parameters():
            parameter.normal_()
        residual = torch.randn(*x.shape[:-1], d_out)
        rounded = Int8Linear(linear, linear.weight)
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        matrix = (linear.weight / scale).round().double() * scale
        size = x.abs().amax(-1, keepdim=True) / 127
        q = (x / size).round().double() * size
        bias = 0 if linear.bias is None else linear.bias.double()
        expected = (q @ matrix.mT + bias) * linear.multiplier + residual
        got = rounded(x, residual=residual)
        largest = (q.abs() @ matrix.abs().mT).amax() + 4 if len(x) else 1
        assert ((got - expected).abs() <= 2**-20 * largest).all()
        # Every number is at most half a step away from what it was.
        exact = linear.double()(x.double(), residual=residual)
        steps = x.abs().sum(-1, keepdim=True) * scale.mT + size * linear.weight.abs().sum(1)
        steps = steps + x.shape[-1] / 2 * size * scale.mT
        assert ((got - exact).abs() <= 0.51 * steps + 1e-5).all()
        torch.testing.assert_close(rounded.weight, matrix.float())


@needs_int8
def test_a_gradient_passes_an_int8_layer_as_its_weight_says() -> None:
    linear = Linear(13, 11)
    torch.nn.init.normal_(linear.weight), torch.nn.init.normal_(linear.bias)
    rounded, x, factor = Int8Linear(linear, linear.weight), torch.randn(5, 13), torch.randn(5, 11)
    plain = rounded(x)
    found = rounded(x.requires_grad_())
    assert torch.equal(found, plain)
    (gradient,) = torch.autograd.grad((found * factor).sum(), x)
    torch.testing.assert_close(gradient, factor @ rounded.weight)


@needs_int8
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-llama"])
def test_an_int8_model_is_traced_and_edited_in_float32_and_is_not_trained(
    name: str, tmp_path: Path
) -> None:
    model, exact = minibert.load(name, weights="int8"), minibert.load(name)
    trace = model.trace("leaves fall in autumn")
    assert torch.equal(trace.logits, model("leaves fall in autumn"))
    assert "int8" in trace.backends["linear"]
    for quantity in ("query", "z", "mlp_out", "resid_post"):
        value = getattr(trace[1], quantity)
        assert value.dtype == torch.float32
        edited = trace.rerun({(quantity, 1): lambda x: 2 * x + 0.1})
        assert (edited.logits - trace.logits).abs().max() > 1e-3
        again = model.trace(trace.tokens, edit={(quantity, 1): lambda x: 2 * x + 0.1})
        torch.testing.assert_close(again.logits, edited.logits)
    graded = model.trace(trace.tokens, grad=True)
    assert torch.equal(graded.logits, trace.logits)
    graded.backward(graded.logits.square().sum())
    assert graded.grad[1].z.abs().max() > 0
    for layer, other in zip(model.body.layers, exact.body.layers, strict=True):
        for part, one in (("attention", "W_O"), ("attention", "W_K"), ("mlp", "W_out")):
            ours, theirs = (getattr(getattr(each, part), one) for each in (layer, other))
            assert 0 < (ours - theirs).abs().max() <= 0.51 * theirs.abs().max() / 127
    copied = copy.deepcopy(model)
    assert torch.equal(copied(trace.tokens), trace.logits)
    copied.body.layers[1].mlp.up.rounded.zero_()
    assert not torch.equal(copied(trace.tokens), trace.logits)
    floats = [one for one in held(model) if one.is_floating_point() and one.ndim == 2]
    assert not {"query", "output", "up", "down", "decoder"} & {
        place.split(".")[-2] for place, one in held_by_name(model).items() if one in {*floats}
    }
    for refused in (
        model.train,
        model.requires_grad_,
        model.head.requires_grad_,
        partial(model.save, tmp_path / "saved"),
        partial(live_page, model),
        partial(model.double(), trace.tokens),
        partial(minibert.load, name, weights="int8", dtype=torch.bfloat16),
        partial(minibert.load, name, weights="int4"),
        partial(minibert.load, transformers.BertModel(BERT), weights="int8"),
    ):
        with pytest.raises(MinibertError, match=r"int8|changed after it was loaded"):
            refused()
    assert not any(one.requires_grad for one in model.body.parameters())


@needs_int8
def test_heads_of_an_int8_model_are_not_said_to_add_up() -> None:
    trace = minibert.load("tiny-gpt2", weights="int8").trace(" river window")
    total = decompose(trace, heads=False).total
    torch.testing.assert_close(total, trace[-1].resid_post, atol=1e-4, rtol=1e-4)
    with pytest.raises(TraceError, match="int8"):
        decompose(trace)
    with pytest.raises(EditError, match=r"head_out is not edited.*int8"):
        trace.rerun({("head_out", 1): trace})


@needs_int8
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-llama"])
def test_the_errors_of_int8_weights_are_reported_of_each_quantity(name: str) -> None:
    folder = Path(minibert.__file__).parent / "embedded" / name
    quantities = verify(folder, longest=7, weights="int8")["quantities"]
    assert all(one["right"] for one in quantities)
    for one in quantities:
        exact = one["name"] == "embed"
        assert (one["int8"] <= 1e-5) if exact else (0 < one["int8"] <= 0.1 * one["largest"]), one


def test_int8_is_refused_where_nothing_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(backends.processor(), features=frozenset(("avx2", "avx512f")))
    assert not backends.int8_by(without)
    monkeypatch.setattr("minibert.checkpoint.load.processor", lambda: without)
    with pytest.raises(CheckpointError, match="avx512_vnni"):
        minibert.load("tiny-bert", weights="int8")
