"""What a trace gives after its model was changed: what it gave before, or a refusal by name."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import minibert
from minibert.errors import TraceError
from minibert.model import Model
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from minibert.transformer_lens.cache import ActivationCache
from tests.trace.editing import FAMILIES as ENCODERS
from tests.trace.test_laws import ROTARY, names_of, traces

REFUSED = "were changed after this (trace|cache) was made"


def trained(**options: Any) -> Callable[[Model, nn.Parameter], object]:
    """One step of an optimizer."""

    def change(model: Model, weight: nn.Parameter) -> None:
        weight.requires_grad_()
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], lr=0.01, **options).step()

    return change


def within(context: Any, write: Callable[[nn.Parameter], object]) -> Any:
    def change(model: Model, weight: nn.Parameter) -> None:
        with context():
            write(weight)

    return change


def replaced(model: Model, weight: nn.Parameter) -> None:
    for module in model.modules():
        for name, own in dict(module._parameters).items():
            if own is weight:
                setattr(module, name, nn.Parameter(weight.detach() * 1.5))


def other_module(model: Model, weight: nn.Parameter) -> None:
    mlp = model.body.layers[0].mlp
    mlp.up = deepcopy(mlp.up)


def memory_again(model: Model, weight: nn.Parameter) -> None:
    """Other numbers where the old ones were, as when memory is freed and given out again."""
    memory = weight.detach().numpy()
    weight.data = torch.zeros_like(weight)
    memory *= 1.5
    weight.data = torch.from_numpy(memory)


WAYS: dict[str, Callable[[Model, nn.Parameter], object]] = {
    "optimizer": trained(),
    "fused optimizer": trained(fused=True),
    "optimizer of lists": trained(foreach=True),
    "in place": within(torch.no_grad, lambda weight: weight.mul_(1.5)),
    "one number": within(torch.no_grad, lambda weight: weight[(0,) * weight.dim()].add_(1)),
    "inference mode": within(torch.inference_mode, lambda weight: weight.mul_(1.5)),
    "data in place": lambda model, weight: weight.data.mul_(1.5),
    "data": lambda model, weight: setattr(weight, "data", weight.detach() * 1.5),
    "memory again": memory_again,
    "view of a weight": lambda model, weight: model.body.layers[0].mlp.W_in.data.mul_(1.5),
    "state": lambda model, weight: model.load_state_dict(
        {name: value * 1.5 for name, value in model.state_dict().items()}
    ),
    "named weight": lambda model, weight: model.body.word.weight.detach().mul_(1.5),
    "type": lambda model, weight: model.to(torch.bfloat16),
    "type and back": lambda model, weight: model.to(torch.bfloat16).to(torch.float64),
    "parameter": replaced,
    "module": other_module,
    "hook": lambda model, weight: model.body.layers[0].mlp.up.register_forward_hook(
        lambda module, given, out: out * 1.5
    ),
}

WHOLE: dict[str, Callable[[Trace], Any]] = {
    "rerun": lambda trace: trace.rerun({("z", 0): zero}).logits,
    "rerun_each": lambda trace: trace.rerun_each([{("z", 0): zero}], lambda x: x.flatten(1)[:, 0]),
    "why": lambda trace: trace.why(0, 0, query=2, key=1).score,
    "backward": lambda trace: trace.backward(trace.logits.flatten()[0]),
}


def read(of: Any, name: str, layer: int) -> Tensor | None:
    """The number, or None where it is refused because of the change."""
    try:
        found: Tensor = of[layer].quantity(name) if layer >= 0 else getattr(of, name)
        return found
    except TraceError as error:
        if "were changed after" not in str(error):
            raise
        return None


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_numbers_of_two_states_of_a_model_are_never_mixed(way: str, data: st.DataObject) -> None:
    made = data.draw(traces(data.draw(st.sampled_from([*ENCODERS, *ROTARY]))))
    model = made.model
    grad = data.draw(st.booleans())
    trace = model.trace(made.tokens, grad=grad, packed=not grad and data.draw(st.booleans()))
    if trace.allowed.packed is not None or data.draw(st.booleans()):
        trace = trace.text(0)
    elif grad:
        trace.backward(trace.logits.flatten()[0])
    read_from = [trace, *([trace.grad] if trace._found is not None else [])]
    places = [(name, layer) for layer in range(len(trace)) for name in names_of(trace, layer)]
    places += [("hidden", -1), ("logits", -1), ("embed", -1)]
    before: dict[Any, Tensor] = {}
    for number, of in enumerate(read_from):
        for name, layer in places:
            if hasattr(of, name) if layer < 0 else True:
                value = read(of, name, layer)
                assert value is not None
                before[number, name, layer] = value.detach().clone()

    # A move to where it is changes nothing.
    model.to("cpu", torch.float64)
    assert all(read(read_from[number], name, layer) is not None for number, name, layer in before)

    WAYS[way](model, data.draw(st.sampled_from(list(model.parameters()))))

    for (number, name, layer), value in before.items():
        found = read(read_from[number], name, layer)
        assert found is None or torch.equal(found, value), (way, name, layer)
        kept = layer >= 0 and name in trace.records[layer] and number == 0
        assert not (kept and found is None), f"{name} was kept and is refused"
    if data.draw(st.booleans()):
        trace = trace.text(0)
    for of in WHOLE.values():
        with pytest.raises(TraceError, match=REFUSED):
            of(trace)
    assert model.trace(trace.tokens).rerun({("z", 0): zero})


def test_the_cache_of_a_hooked_model_is_not_mixed_either() -> None:
    from minibert.transformer_lens import HookedTransformer

    hooked = HookedTransformer.from_pretrained("tiny-gpt2")
    _, cache = hooked.run_with_cache("leaves fall in autumn")
    assert isinstance(cache, ActivationCache)
    pattern, result = cache["pattern", 1].clone(), cache["result", 1]
    assert result.shape[-2] == hooked.cfg.n_heads
    hooked.blocks[1].attn.W_O.data[:] = 0
    assert torch.equal(cache["pattern", 1], pattern)
    for lazy in (lambda: cache["result", 1], cache.stack_head_results):
        with pytest.raises(TraceError, match=REFUSED):
            lazy()
    assert minibert.load("tiny-gpt2").trace("leaves").rerun({("z", 0): zero})
