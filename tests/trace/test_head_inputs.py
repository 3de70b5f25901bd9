"""What each head's query, key and value projection reads, beside hooks on the projections."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minibert.errors import EditError
from tests.families import difference
from tests.trace.norms_of_peers import LAYER, PROJECTIONS, Pair, rewritten

NAMES = ("query", "key", "value")
TOLERANCE = 1e-10


def other(x: Tensor) -> Tensor:
    return x.sin() + 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", PROJECTIONS)
def test_an_edit_of_one_head_is_a_hook_on_its_rows_in_transformers(family: str, name: str) -> None:
    pair = Pair(family)
    real, d_head, head = pair.tokens.mask, pair.ours.config.d_head, 1
    rows = slice(head * d_head, (head + 1) * d_head)

    def of_head(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        assert isinstance(module, nn.Linear)
        out = out.clone()
        out[..., rows] = other(x) @ module.weight[rows].T
        if module.bias is not None:
            out[..., rows] += module.bias[rows]
        return out

    with rewritten((pair.projection(name), of_head)):
        expected = pair.logits()
    trace = pair.ours.trace(pair.tokens)
    edit = {(f"{name}_input", LAYER, head): other}
    for edited in (trace.rerun(edit), pair.ours.trace(pair.tokens, edit=edit)):
        assert difference(edited.logits[real], expected[real]) <= TOLERANCE
    assert difference(expected[real], trace.logits[real]) > 1e-6


def test_a_projection_with_a_hook_is_asked_for_each_head() -> None:
    pair = Pair("bert")
    edit: Any = {("key_input", LAYER, 2): other, ("query_input", LAYER): other}
    expected = pair.ours.trace(pair.tokens, edit=edit).logits
    doubled = pair.ours.body.layers[LAYER].attention.key
    handle = doubled.register_forward_hook(lambda module, given, out: 2 * out)
    found = pair.ours.trace(pair.tokens, edit=edit)[LAYER].key
    handle.remove()
    plain = pair.ours.trace(pair.tokens, edit=edit)
    assert difference(found, 2 * plain[LAYER].key) <= TOLERANCE
    assert torch.equal(plain.logits, expected)


def test_key_value_heads_are_counted_as_the_model_has_them() -> None:
    pair = Pair("llama")
    config, trace = pair.ours.config, pair.ours.trace(pair.tokens)
    assert config.n_kv_heads == 2
    assert config.n_heads == 4
    assert trace[1].key_input.shape[1] == 2
    assert trace[1].key_input.stride(1) == 0, "nothing is copied for the heads"
    edited = trace.rerun({("key_input", 1, 1): other})
    # Heads 2 and 3 read key-value head 1.
    assert torch.equal(edited[1, 1].key_input, trace[1, 1].key_input)
    assert torch.equal(edited[1, 3].key_input, other(trace[1, 3].key_input))
    with pytest.raises(EditError, match="no kv_head 2; expected 0 to 1"):
        trace.rerun({("key_input", 1, 2): other})


def test_the_gradient_of_a_number_made_of_what_a_head_reads() -> None:
    """Read head by head, of shared key-value heads too; it reaches the scale of the norm."""
    pair = Pair("llama")
    trace = pair.ours.trace(pair.tokens, grad=True)
    trace.backward(trace[1, 3].key_input[0].square().sum() / 2)
    value = trace[1, 3].key_input.detach()
    expected = torch.zeros_like(trace[1].key_input)
    expected[0, 1] = value[0]
    assert difference(trace.grad[1].key_input, expected) <= TOLERANCE
    assert trace.grad[1].query_input.count_nonzero() == 0
    # x = c / s · w, so that the derivative of |x|² / 2 by s is −|x|² / s.
    scale = trace[1].attention_norm_scale.detach()
    slope = -value.square().sum(-1, keepdim=True) / scale
    assert difference(trace.grad[1].attention_norm_scale[0], slope[0]) <= TOLERANCE
