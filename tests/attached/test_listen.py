"""While a model is read nothing of it changes, and afterwards transformers is what it was."""

import threading
from typing import Any

import pytest
import torch
from torch import nn
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


def test_everything_is_restored_after_a_trace_and_after_an_error() -> None:
    before, model = interface(), llama()
    attached = minibert.attach(model)
    attached.trace(input_ids=ids())
    assert interface() == before

    def fails(value: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attached.trace(input_ids=ids(), edit={("z", 1): fails})
    assert interface() == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(attached.trace(input_ids=ids()).logits, model(ids()).logits)


def test_config_and_entries_stay_while_a_model_runs() -> None:
    model, seen = llama(), []
    before, written = interface()[2], model.config.to_json_string()

    def look(*given: Any) -> None:
        same = ALL_ATTENTION_FUNCTIONS._global_mapping == before
        seen.append((model.config.to_json_string() == written, same))

    model.model.layers[1].register_forward_hook(look)
    minibert.attach(model).trace(input_ids=ids())
    assert seen == [(True, True)]


def test_other_models_and_other_threads_are_not_heard() -> None:
    model, other = llama(), gpt2()
    attached = minibert.attach(model)

    def elsewhere() -> None:
        model(ids(1, 3))

    def during(*given: Any) -> None:
        other(ids())
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    model.model.layers[0].mlp.register_forward_hook(_once(during))
    with torch.no_grad():
        trace = attached.trace(input_ids=ids())
    assert trace.stacks == ("layers",)
    assert [layer.query.shape[2] for layer in trace] == [7, 7, 7]


def _once(function: Any) -> Any:
    done: list[bool] = []

    def hook(*given: Any) -> None:
        if not done:
            done.append(True)
            function()

    return hook


def test_two_threads_trace_one_model_with_edits_of_their_own() -> None:
    model = llama()
    attached = minibert.attach(model)
    alone = {head: attached.trace(input_ids=ids(), edit={("z", 1, head): zero}).logits
             for head in range(6)}  # fmt: skip
    found: dict[int, list[torch.Tensor]] = {head: [] for head in alone}

    def run(head: int) -> None:
        for _ in range(5):
            edited = attached.trace(input_ids=ids(), edit={("z", 1, head): zero})
            found[head].append(edited.logits)

    threads = [threading.Thread(target=run, args=(head,)) for head in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for head, logits in alone.items():
        assert len(found[head]) == 5
        assert all(torch.equal(one, logits) for one in found[head])


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


def test_what_transformers_did_not_build_is_refused() -> None:
    with pytest.raises(TraceError, match=r"Linear is no model of transformers.*minibert\.load"):
        minibert.attach(nn.Linear(2, 2))
    with pytest.raises(TraceError, match="no model of transformers"):
        minibert.attach("bert-base-uncased")


def test_a_module_around_a_model_is_read_like_the_model() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = bert()

        def forward(self, given: torch.Tensor) -> Any:
            return self.inside(given)

    around = Around().eval()
    assert torch.equal(
        minibert.attach(around).trace(ids())[1].z, minibert.attach(around.inside).trace(ids())[1].z
    )


def test_a_model_that_attends_by_itself_is_refused_with_its_modules() -> None:
    from transformers import XLNetConfig, XLNetModel

    config = XLNetConfig(vocab_size=59, d_model=32, n_layer=2, n_head=4, d_inner=40)
    attached = minibert.attach(XLNetModel(config).eval())
    with pytest.raises(TraceError, match="XLNetRelativeAttention"):
        attached.trace(input_ids=ids())


def test_dropout_of_weights_is_refused() -> None:
    model = bert()
    model.train()
    with pytest.raises(TraceError, match=r"Call hf_model\.eval\(\) first"):
        minibert.attach(model).trace(ids())


def test_another_implementation_is_refused_by_name() -> None:
    AttentionInterface.register("mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    model = llama()
    try:
        model.set_attn_implementation("mine")
        with pytest.raises(TraceError, match=r"'mine'.*set_attn_implementation"):
            minibert.attach(model).trace(ids())
    finally:
        del AttentionInterface._global_mapping["mine"]


def test_a_recording_without_a_pass_and_edits_before_a_run_say_so() -> None:
    attached = minibert.attach(llama())
    with pytest.raises(TraceError, match="No attention"), attached.recording():
        pass
    unknown = pytest.raises(TraceError, match="layers of this model are not known yet")
    with unknown, attached.recording(edit={("z", 0): zero}):
        pass
    attached.trace(ids())
    with pytest.raises(EditError, match="no layer 7; expected 0 to 2"):
        attached.trace(ids(), edit={("z", 7): zero})
