"""While a model is read nothing of it changes, and afterwards transformers is what it was."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import XLNetConfig, XLNetModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import minibert
from minibert import EditError, TraceError
from minibert.trace.edit import zero
from tests.attached.live_models import bert, gpt2, ids, llama


def interface() -> tuple[Any, ...]:
    """What of the interface can be replaced."""
    own = vars(AttentionInterface)
    entries = dict(AttentionInterface._global_mapping)
    return own.get("get_interface"), own.get("__getitem__"), entries


def in_threads(functions: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_nothing_changes_while_a_model_runs_nor_after_a_trace_or_an_error() -> None:
    before, model = interface(), llama()
    written, seen = model.config.to_json_string(), []

    def look(*given: Any) -> None:
        same = ALL_ATTENTION_FUNCTIONS._global_mapping == before[2]
        seen.append((model.config.to_json_string() == written, same))

    def fails(value: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    handle = model.model.layers[1].register_forward_hook(look)
    attached = minibert.attach(model)
    attached.trace(input_ids=ids())
    handle.remove()
    assert seen == [(True, True)]
    assert interface() == before
    with pytest.raises(ZeroDivisionError):
        attached.trace(input_ids=ids(), edit={("z", 1): fails})
    assert interface() == before
    # The layers that did not run any more are still known.
    assert len(attached.stacks["layers"]) == 3
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(attached.trace(input_ids=ids()).logits, model(ids()).logits)


def test_other_models_and_other_threads_are_not_heard() -> None:
    model, other = llama(), gpt2()
    attached = minibert.attach(model)
    done: list[bool] = []

    def during(*given: Any) -> None:
        if not done:
            done.append(True)
            other(ids())
            in_threads([lambda: model(ids(1, 3))])

    model.model.layers[0].mlp.register_forward_hook(during)
    with torch.no_grad():
        trace = attached.trace(input_ids=ids())
    assert done
    assert trace.stacks == ("layers",)
    assert [layer.query.shape[2] for layer in trace] == [7, 7, 7]


def test_threads_trace_one_model_with_edits_of_their_own() -> None:
    attached = minibert.attach(llama())

    def edited(head: int) -> torch.Tensor:
        return attached.trace(input_ids=ids(), edit={("z", 1, head): zero}).logits

    alone = [edited(head) for head in range(6)]
    found: list[list[torch.Tensor]] = [[] for _ in alone]
    in_threads([lambda h=h: found[h].extend(edited(h) for _ in range(5)) for h in range(6)])
    for logits, ours in zip(alone, found, strict=True):
        assert len(ours) == 5
        assert all(torch.equal(one, logits) for one in ours)


def test_attaching_twice_records_in_both_and_edits_reach_both() -> None:
    model = llama()
    outer, inner = minibert.attach(model), minibert.attach(model.model)
    plain = outer.trace(input_ids=ids())
    inner.trace(input_ids=ids())
    with outer.recording() as passes:
        edited = inner.trace(input_ids=ids(), edit={("probs", 1, 2): 0.25})
    assert len(passes) == 1
    assert torch.equal(passes[0][2].z, edited[2].z)
    assert bool((passes[0][1, 2].probs == 0.25).all())
    assert not torch.equal(passes[0][2].z, plain[2].z)


def test_a_module_around_a_model_is_read_like_the_model() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = bert()

        def forward(self, given: torch.Tensor) -> Any:
            return self.inside(given)

    around = Around().eval()
    expected = minibert.attach(around.inside).trace(ids())[1].z
    assert torch.equal(minibert.attach(around).trace(ids())[1].z, expected)


def other_implementation() -> nn.Module:
    model = llama()
    model.set_attn_implementation("mine")
    return model


def by_itself() -> nn.Module:
    """It does not ask the interface."""
    sizes = {"vocab_size": 59, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40}
    return XLNetModel(XLNetConfig(**sizes)).eval()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.Linear(2, 2), r"Linear is not a model of transformers.*minibert\.load"),
    (lambda: "bert-base-uncased", "not a model of transformers"),
    (by_itself, "XLNetRelativeAttention"),
    (lambda: bert().train(), r"Call hf_model\.eval\(\) first"),
    (other_implementation, r"'mine'.*set_attn_implementation"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(
    build: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = AttentionInterface._global_mapping
    monkeypatch.setitem(entries, "mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    with pytest.raises(TraceError, match=message):
        minibert.attach(build()).trace(ids())


def test_a_recording_without_a_pass_and_edits_before_a_run_say_so() -> None:
    attached = minibert.attach(llama())
    with pytest.raises(TraceError, match="was not called"), attached.recording():
        pass
    unknown = pytest.raises(TraceError, match="layers of this model are not known yet")
    with unknown, attached.recording(edit={("z", 0): zero}):
        pass
    attached.trace(ids())
    with pytest.raises(EditError, match="no layer 7; expected 0 to 2"):
        attached.trace(ids(), edit={("z", 7): zero})
