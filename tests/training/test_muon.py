"""Muon: its step is that of torch.optim.Muon, up to that one's bfloat16."""

import pytest
import torch
from torch import nn

from minibert.training.optimizer import Muon, orthogonal

torch.manual_seed(0)
SHAPES = ((23, 7), (7, 23), (13, 13))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_singular_values_come_to_lie_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    found = orthogonal(matrices)
    values = torch.diagonal(left.mT @ found @ right.mT, dim1=1, dim2=2)
    assert ((values > 0.3) & (values < 1.3)).all()
    torch.testing.assert_close(left * values[:, None, :] @ right, found)


def test_five_steps_are_those_of_torch() -> None:
    start = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(5)]
    results = []
    for kind in (Muon, torch.optim.Muon):
        weights = [nn.Parameter(weight.clone()) for weight in start]
        optimizer = kind(weights, lr=0.02, weight_decay=0.1)
        for gradient in gradients:
            for weight, each in zip(weights, gradient, strict=True):
                weight.grad = each.clone()
            optimizer.step()
        results.append([w.detach() - s for w, s in zip(weights, start, strict=True)])
    for mine, theirs in zip(*results, strict=True):
        # bfloat16 has 8 bits; the polynomial is steep, so five rounds of it lose some of them.
        assert (mine - theirs).norm() < 0.05 * theirs.norm()


def test_a_matrix_without_a_gradient_stays() -> None:
    used, unused = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    used.grad = torch.ones(3, 2)
    Muon([used, unused], lr=0.1, weight_decay=0.1).step()
    assert not torch.equal(used.detach(), torch.ones(3, 2))
    assert torch.equal(unused.detach(), torch.ones(3, 2))
