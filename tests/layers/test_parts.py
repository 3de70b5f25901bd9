"""The small parts, against torch's own modules and the formulas in double precision."""

import torch
from torch import nn

from minibert.layers.config import Config
from minibert.layers.norms import LayerNorm
from minibert.layers.parts import Embedding, FeedForward


def config(activation: str) -> Config:
    return Config(
        family="bert",
        task="none",
        vocab_size=11,
        n_positions=7,
        n_layers=1,
        n_heads=1,
        d_model=5,
        d_mlp=13,
        activation=activation,
    )


def test_layer_norm_is_its_formula() -> None:
    eps = 0.3
    norm = LayerNorm(13, eps=eps).double()
    norm.weight.normal_()
    norm.bias.normal_()
    x = 3 * torch.randn(2, 7, 13, dtype=torch.float64) + 5
    variance = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
    expected = (x - x.mean(-1, keepdim=True)) / (variance + eps).sqrt() * norm.weight + norm.bias
    assert torch.allclose(norm(x), expected, atol=1e-13)


def test_an_embedding_is_a_row_of_its_table() -> None:
    table = Embedding(11, 5)
    table.weight.normal_()
    ids = torch.tensor([[3, 10, 0], [7, 7, 1]])
    expected = nn.functional.one_hot(ids, 11).float() @ table.weight
    assert torch.allclose(table(ids), expected)


ACTIVATIONS = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "gelu_fast": nn.GELU(approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
}


def test_feed_forward_is_two_linear_layers_around_the_activation() -> None:
    for activation, function in ACTIVATIONS.items():
        block = FeedForward(config(activation)).double()
        for parameter in block.parameters():
            parameter.normal_()
        x, residual = (torch.randn(2, 3, 5, dtype=torch.float64) for _ in range(2))
        pre = x @ block.up.weight.T + block.up.bias
        post = function(pre)
        out = post @ block.down.weight.T + block.down.bias
        assert torch.allclose(block.pre(x), pre)
        assert torch.allclose(block.post(pre), post)
        assert torch.allclose(block(x), out)
        assert torch.allclose(block(x, residual), out + residual)


def test_reading_what_enters_the_activation_does_not_change_it() -> None:
    block = FeedForward(config("gelu"))
    pre = torch.randn(2, 3, 13)
    kept = pre.clone()
    block.post(pre)
    assert torch.equal(pre, kept)
