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


def squared_differences(
    found: dict[str, Tensor], expected: dict[str, Tensor], tokens: Tokens
) -> dict[str, Tensor]:
    """The squares of the differences of each quantity at real tokens, in parts of its largest."""
    return {
        name: (_differences(found[name], value, tokens) / value.abs().max()).square()
        for name, value in expected.items()
    }


def _differences(found: Tensor, expected: Tensor, tokens: Tokens) -> Tensor:
    assert found.shape == expected.shape
    difference = (found.double() - expected.double()).abs()
    if difference.dim() == 4:
        difference = difference.transpose(1, 2)
    # The logits of a classification of whole texts have no positions.
    return difference[tokens.mask] if difference.dim() > 2 else difference


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tokens: Tokens) -> None:
    """Every quantity is within the limit, relative to its largest number, at real tokens."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype == torch.float64
        largest = _differences(found[name], value, tokens).max()
        assert largest <= LIMIT * max(1.0, float(value.abs().max())), name
