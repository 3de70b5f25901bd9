"""The one rule of parity with transformers where rounding is seen: real and full-size weights.

A bare limit such as 1e-5 does not hold there for anybody: what transformers itself errs against
float64 grows with depth, width and the size of the weights.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.check.tolerances import TIMES_EAGER
from minibert.trace.read import Trace
from tests.families import run_transformers, their_logits


@dataclass(frozen=True)
class Reference:
    """What a transformers model gives in float32 and in float64, by the name of the quantity."""

    single: dict[str, Tensor]
    double: dict[str, Tensor]

    @classmethod
    def of(cls, theirs: Any, inputs: dict[str, Tensor]) -> "Reference":
        """Both runs; the float64 model has the float32 weights, without further rounding."""
        wide = copy.deepcopy(theirs).double()
        return cls(*(_outputs(model, inputs) for model in (theirs, wide)))

    def check(self, trace: Trace, error: Callable[[Tensor], Tensor]) -> None:
        """Assert the rule for every hidden state, attention and logit of real tokens.

        The error of our float32 against float64 is at most twice that of transformers' float32,
        the factor of the kernels. `error` makes one number of all differences of a quantity.
        """
        mask = trace.tokens.mask
        ours = _named(trace.hidden_states, trace.attentions, trace.logits)
        assert ours.keys() == self.double.keys()
        for name, exact in self.double.items():
            found, theirs = (
                float(error(_difference(one[name], exact, mask))) for one in (ours, self.single)
            )
            assert found <= TIMES_EAGER * theirs, f"{name}: {found:.2e}, theirs {theirs:.2e}"


def largest(difference: Tensor) -> Tensor:
    """The largest difference."""
    return difference.abs().max()


def root_mean_square(difference: Tensor) -> Tensor:
    """The root of the mean of the squares."""
    return difference.square().mean().sqrt()


def _outputs(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    output = run_transformers(model, inputs)
    logits = their_logits(output, type(model).__name__)
    return _named(output.hidden_states, output.attentions, logits)


def _named(hidden: Any, attentions: Any, logits: Tensor) -> dict[str, Tensor]:
    found = {f"hidden state {n}": value for n, value in enumerate(hidden)}
    found |= {f"attention {n}": value for n, value in enumerate(attentions)}
    return found | {"logits": logits}


def _difference(found: Tensor, exact: Tensor, mask: Tensor) -> Tensor:
    """What is between them for real tokens; of an attention matrix, in their rows."""
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    difference = found.double() - exact
    return (difference if difference.dim() == 3 else difference.transpose(1, 2))[mask]
