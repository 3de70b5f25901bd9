"""Our side, by the names of the transformers side, and how the two are compared."""

import torch
from torch import Tensor

from minibert.text.tokens import Tokens
from minibert.trace.read import Trace
from tests.rotary.drawn import Drawn
from tests.rotary.theirs import LENGTHS, batch

LIMIT = 1e-10


def named(trace: Trace) -> dict[str, Tensor]:
    """What transformers shows of a pass, as our trace has it."""
    found = {"stream 0": trace.embed}
    found |= {f"stream {n}": at.resid_post for n, at in enumerate(trace, start=1)}
    found |= {f"probs {n}": at.probs for n, at in enumerate(trace)}
    return found | {"last": trace.hidden, "logits": trace.logits}


def inputs_of(drawn: Drawn, lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, Tensor]]:
    """The texts in one ragged batch; one by one where frequencies depend on a text's length.

    transformers takes the length of the whole batch for that of each text there.
    """
    if not drawn.depends_on_length:
        return [batch(lengths)]
    return [batch((length,), seed=length) for length in lengths]


def differences(
    found: dict[str, Tensor], expected: dict[str, Tensor], tokens: Tokens
) -> dict[str, float]:
    """The largest difference of each quantity, at real tokens and in their rows of attention."""
    assert found.keys() == expected.keys()
    return {name: _difference(found[name], value, tokens) for name, value in expected.items()}


def largest(values: dict[str, Tensor]) -> dict[str, float]:
    """The largest number of each quantity."""
    return {name: value.abs().max().item() for name, value in values.items()}


def _difference(found: Tensor, expected: Tensor, tokens: Tokens) -> float:
    assert found.shape == expected.shape
    difference = (found.double() - expected.double()).abs()
    if difference.dim() == 4:
        difference = difference.transpose(1, 2)
    # The logits of a classification of whole texts have no positions.
    return (difference[tokens.mask] if difference.dim() > 2 else difference).max().item()


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tokens: Tokens) -> None:
    """Every quantity is within the limit, relative to its largest number."""
    assert all(value.dtype == torch.float64 for value in (*found.values(), *expected.values()))
    sizes = largest(expected)
    far = {
        name: difference
        for name, difference in differences(found, expected, tokens).items()
        if not difference <= LIMIT * max(1.0, sizes[name])
    }
    assert not far, far
