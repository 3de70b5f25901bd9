"""The linear layer on every back end, and that no back end ever multiplies by an old weight."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from linear_by_hand import IDS, WIDTH, bert_by_hand
from torch.nn import functional as F

import minibert
from minibert.layers import linear_backends as backends
from minibert.layers.linear import Linear

HERE = Path(__file__).resolve().parent
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


@pytest.fixture(params=backends.NAMES)
def back_end(request: pytest.FixtureRequest) -> Iterator[str]:
    backends.use(request.param)
    yield request.param
    backends.use(None)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer; mlp.up has just as many weights as a packed copy is made from."""
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=backends.PACK_FROM // WIDTH,
        max_position_embeddings=13,
    )
    torch.manual_seed(0)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    config = transformers.GPT2Config(
        vocab_size=31, n_embd=WIDTH, n_layer=1, n_head=2, n_positions=13
    )
    transformers.GPT2Model(config).save_pretrained(folder)
    return folder


def sample(rows: tuple[int, ...], d_in: int, d_out: int, dtype: torch.dtype) -> tuple[Linear, ...]:
    layer = Linear(d_in, d_out)
    for parameter in layer.parameters():
        parameter.normal_()
    return layer.to(dtype), torch.randn(*rows, d_in, dtype=dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_residual", [False, True])
@torch.no_grad()
def test_every_back_end_gives_what_torch_gives(
    back_end: str, activation: str | None, with_residual: bool
) -> None:
    for rows, d_in, d_out in (((), 7, 5), ((3,), 13, 11), ((2, 3), 512, 521), ((2, 131), 521, 7)):
        layer, x = sample(rows, d_in, d_out, torch.float32)
        residual = torch.randn(*rows, d_out) if with_residual else None
        kept = x.clone(), None if residual is None else residual.clone()
        got = layer(x, activation=activation, residual=residual)
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        exact = ACTIVATIONS[activation](exact)
        exact = exact if residual is None else exact + residual
        # Relative to the largest term of the sum, as the rounding of a dot product is.
        size = F.linear(x.abs(), layer.weight.abs()).max()
        assert (got - exact).abs().max() <= 1e-6 * size
        assert torch.equal(x, kept[0]), "the input was changed"
        assert residual is None or torch.equal(residual, kept[1]), "the residual was changed"


def test_columns_of_a_wider_matrix_do_not_go_through_onednn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined, asked = torch.randn(64, 3 * 64), []
    monkeypatch.setattr(
        backends, "onednn_linear", lambda x, weight, *_: asked.append(weight) or x @ weight.t()
    )
    backends.use("onednn")
    try:
        for weight in (joined[:, 64:128].t(), joined.t(), torch.randn(64, 64)):
            layer = Linear(64, len(weight), bias=False)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            x = torch.randn(3, 64)
            assert torch.allclose(layer(x), x @ weight.t(), atol=1e-4)
    finally:
        backends.use(None)
    assert [weight.shape[0] for weight in asked] == [3 * 64, 64]


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
@torch.no_grad()
def test_half_precision_is_within_its_own_rounding(
    back_end: str, dtype: torch.dtype, unit: float, activation: str | None
) -> None:
    layer, x = sample((5, 3), 128, 71, dtype)
    residual = torch.randn(5, 3, 71, dtype=dtype)
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    # One rounding each for product, activation and residual, of the largest number there.
    allowed = 3 * unit * (exact.abs().max() + residual.abs().max())
    exact = ACTIVATIONS[activation](exact) + residual.double()
    got = layer(x, activation=activation, residual=residual)
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max() <= allowed


@torch.no_grad()
def test_a_strided_input_is_read_as_it_lies(back_end: str) -> None:
    layer, x = sample((5, 3), 512, 521, torch.float32)
    hidden = torch.randn(7, 512, 5).mT
    for strided in (x[:, 1], x.transpose(0, 1), x[::2], hidden, x[:0]):
        expected = F.linear(strided, layer.weight, layer.bias)
        assert (layer(strided) - expected).abs().amax().item() <= 1e-3 if len(strided) else True
        assert layer(strided).shape == expected.shape


@torch.no_grad()
def test_a_layer_without_bias_has_none(back_end: str) -> None:
    layer = Linear(512, 521, bias=False)
    layer.weight.normal_()
    x = torch.randn(3, 512)
    assert layer.bias is None
    assert set(layer.state_dict()) == {"weight"}
    assert torch.allclose(layer(x), x @ layer.weight.T, atol=1e-3)


def test_gradients_are_those_of_torch(back_end: str) -> None:
    layer, x = sample((3,), 7, 5, torch.float64)
    layer.requires_grad_()
    x, residual = x.requires_grad_(), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 5, dtype=torch.float64)
    inputs = [x, layer.weight, layer.bias, residual]
    ours = torch.autograd.grad(
        (layer(x, activation="silu", residual=residual) * weights).sum(), inputs
    )
    expected = F.silu(F.linear(x, layer.weight, layer.bias)) + residual
    for got, wanted in zip(
        ours, torch.autograd.grad((expected * weights).sum(), inputs), strict=True
    ):
        assert torch.allclose(got, wanted, atol=1e-12)


@pytest.fixture(scope="module")
def changes(bert: Path, gpt2: Path) -> dict[str, dict[str, str]]:
    program = [sys.executable, str(HERE / "linear_changes.py"), str(bert), str(gpt2)]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", backends.NAMES)
def test_every_change_of_a_weight_counts_however_it_was_made(
    changes: dict[str, dict[str, str]], name: str
) -> None:
    """Aliases held early or late, loops, loading, training, copies: see linear_changes.py."""
    results = changes[name]
    assert len(results) > (100 if name == "onednn-packed" else 60)
    assert {case: problem for case, problem in results.items() if problem} == {}


@torch.no_grad()
def test_weights_can_be_swapped_for_one_call(bert: Path, back_end: str) -> None:
    model = minibert.load(bert)
    before = model(IDS)
    other = {name: value * 1.5 for name, value in model.named_parameters()}
    swapped = torch.func.functional_call(model, other, (IDS,))
    assert (swapped - bert_by_hand(other, IDS)).abs().max() <= 1e-4
    assert torch.equal(model(IDS), before)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.bfloat16, 0.1), (torch.float16, 0.01)]
)
@torch.no_grad()
def test_a_model_runs_on_in_the_type_it_is_changed_to(
    bert: Path, back_end: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = minibert.load(bert)
    model(IDS)
    changed = model.to(dtype)(IDS)
    assert changed.dtype == dtype
    expected = bert_by_hand(dict(model.double().named_parameters()), IDS)
    assert (changed.double() - expected).abs().max() <= tolerance
    single = model.float()(IDS)
    assert (single - expected).abs().max() <= 1e-4


@torch.no_grad()
def test_the_file_is_never_written_to(bert: Path, back_end: str) -> None:
    file = bert / "model.safetensors"
    content = file.read_bytes()
    model = minibert.load(bert)
    model(IDS)
    for parameter in model.parameters():
        parameter.mul_(2)
    model(IDS)
    del model
    assert file.read_bytes() == content


# Not ru_maxrss: a process starts with that of the one that started it.
MEASURE = """
import sys, torch
torch.set_num_threads(1)
{body}
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].removesuffix("kB\\n")) * 1024)
"""
LOAD = """
import minibert
model = minibert.load(sys.argv[1])
model(torch.zeros(1, 7, dtype=torch.long))
"""


def peak_bytes(body: str, *arguments: str) -> int:
    environment = os.environ | {"MINIBERT_LINEAR": "onednn-packed", "PYTHONPATH": str(HERE.parent)}
    program = [sys.executable, "-c", MEASURE.format(body=body), *arguments]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_no_weight_is_held_twice_not_even_packed(tmp_path: Path, bert: Path, family: str) -> None:
    if family == "bert":
        config = transformers.BertConfig(num_hidden_layers=5, vocab_size=18_000)
        model = transformers.BertModel(config, add_pooling_layer=False)
    else:
        config = transformers.GPT2Config(n_layer=5, vocab_size=18_000)
        model = transformers.GPT2Model(config)
    model.save_pretrained(tmp_path)
    del model
    weights = (tmp_path / "model.safetensors").stat().st_size
    assert weights > 190e6
    # What torch, minibert and the code of its kernels take by themselves.
    alone = peak_bytes(LOAD, str(bert))
    assert peak_bytes(LOAD, str(tmp_path)) <= 1.15 * weights + alone


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_query_key_and_value_of_a_file_lie_side_by_side_and_are_one_product(
    family: str, bert: Path, gpt2: Path
) -> None:
    model = minibert.load(bert if family == "bert" else gpt2)
    attention = model.body.layers[0].attention
    shared, linears = attention._qkv, (attention.query, attention.key, attention.value)
    x = torch.randn(1, 3, model.config.d_model)
    one = shared.one_matrix
    assert one is not None
    assert [source for source, _, _ in one.sources[:3]] == [each.weight for each in linears]
    with torch.no_grad():
        assert torch.allclose(torch.cat(shared(x), -1), F.linear(x, one.matrix, one.bias))
        attention.key.weight.data.mul_(2)
        attention.value.bias.data.add_(1)
        got, apart = shared(x), [F.linear(x, each.weight, each.bias) for each in linears]
        assert one.matrix is not None, "the views are the weights: there is nothing to go stale"
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, apart, strict=True))
        attention.key.weight.data = attention.key.weight * 3
        got, apart = shared(x), [F.linear(x, each.weight, each.bias) for each in linears]
        assert one.matrix is None
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, apart, strict=True))


@torch.no_grad()
def test_a_call_of_a_linear_layer_makes_three_calls_of_minibert_at_most(
    bert: Path, back_end: str
) -> None:
    model = minibert.load(bert)
    layer, x = model.body.layers[0].mlp.up, torch.randn(2, 5, WIDTH)
    layer(x)
    called: list[str] = []
    # A folder above, of the environment too, may have the same name.
    layers = str(Path(backends.__file__).parent)

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(layers):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        layer(x, activation="gelu")
    finally:
        sys.setprofile(None)
    assert 1 <= len(called) <= 3, called
