"""Edits of a live model: by minibert's names and functions, in the model's own forward pass."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import minibert
from minibert import EditError
from minibert.attached.layout import READABLE
from minibert.text.tokens import Tokens
from minibert.trace.edit import Edit, as_edit, hide, mean, noise, replace, zero
from tests.attached.live_models import bart, bert, bert_mlm, gpt2, ids, llama
from tests.trace.editing import OTHER_KINDS


def test_a_head_is_zeroed_in_generation_too() -> None:
    """As by a hook that zeroes its columns of what the output projection is given."""
    model, options = llama(), {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    attached, plain = minibert.attach(model), model.generate(ids(1), **options)
    attached.trace(ids())
    with attached.recording(edit={("z", 1, 4): zero}):
        found = model.generate(ids(1), **options)

    def cut(module: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        return torch.where(torch.arange(48) // 8 == 4, 0.0, given[0])

    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(cut)
    assert torch.equal(found, model.generate(ids(1), **options))
    assert not torch.equal(found, plain)


@settings(max_examples=20, phases=[Phase.generate])
@given(data=st.data())
def test_an_edit_is_that_of_minibert_s_own_model(data: st.DataObject) -> None:
    """Every quantity, head, change and place, of sentences of 7 and 4 tokens alike."""
    live = data.draw(st.sampled_from([llama, gpt2, bert_mlm]))().double()
    own, attached = minibert.load(live), minibert.attach(live)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    inputs = [{"input_ids": one, "attention_mask": mask.long()} for one in (ids(), ids().flip(1))]
    tokens = [Tokens.from_ids(one["input_ids"], mask=mask) for one in inputs]
    sources = (attached.trace(**inputs[1]), own.trace(tokens[1]))
    name, layer = data.draw(st.sampled_from(READABLE)), data.draw(st.integers(0, 1))
    key = data.draw(st.sampled_from([(name, layer), (name, layer, 1), (name, layer, (1, 0))]))
    matrix = name in ("scores", "probs")
    place = {
        "positions": data.draw(st.sampled_from([None, -1, [0, -2], slice(1, 3)])),
        "sentences": data.draw(st.sampled_from([None, 0, [1]])),
    }
    size = attached.trace(**inputs[0])[layer].quantity(name).shape[-1]
    changes: dict[str, Callable[[object], Edit]] = {
        "number": lambda _: replace(0.3),
        "row": lambda _: replace(torch.linspace(0.1, 1, size, dtype=torch.float64)),
        "function": lambda _: as_edit(lambda value: value.sin().abs() / 2),
        "trace": replace,
        "mean": mean,
        "noise": lambda _: noise(5),
    }
    kinds = [kind for kind in changes if not (matrix and kind in ("mean", "noise"))]
    change = changes[data.draw(st.sampled_from(kinds))]
    made = [change(source).at(**place) for source in sources]
    if name == "scores" and data.draw(st.booleans()):
        made = [hide([0], positions=-1).at(sentences=place["sentences"])] * 2
    found = attached.trace(**inputs[0], edit={key: made[0]})
    expected = own.trace(tokens[0], edit={key: made[1]})
    # transformers rotates in float32.
    assert (found.logits - expected.logits)[mask].abs().max() < 1e-4
    for each in range(len(expected)):
        for quantity in READABLE:
            ours, wanted = (
                # Scores of hidden keys are −inf in both.
                one[each].quantity(quantity).transpose(1, 2).nan_to_num(neginf=-9e9)
                for one in (found, expected)
            )
            assert (ours - wanted)[mask].abs().max() < 1e-4, (each, quantity)


def test_edited_scores_have_no_statistics() -> None:
    trace = minibert.attach(llama()).trace(ids(), edit={("scores", 1): hide(0, positions=-1)})
    with pytest.raises(minibert.TraceError, match="were edited here"):
        trace[1].statistics.entropy  # noqa: B018
    assert trace[2].statistics.entropy.shape == (2, 6, 7)


def test_positions_are_those_of_real_tokens() -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    attached = minibert.attach(llama())
    plain = attached.trace(ids(), attention_mask=mask)
    first = attached.trace(ids(), attention_mask=mask, edit={("z", 0): zero.at(positions=0)})
    changed = (first[0].z != plain[0].z).any(-1).any(1)
    assert changed.nonzero().tolist() == [[0, 3], [1, 0]]
    hidden = attached.trace(
        ids(), attention_mask=mask, edit={("scores", 0, 2): hide(0, positions=-1)}
    )
    off = (hidden[0].probs != plain[0].probs) & (hidden[0].probs == 0)
    assert off.nonzero().tolist() == [[0, 2, 6, 3], [1, 2, 6, 0]]
    with pytest.raises(EditError, match="query at position 0 of sentence 0 has no key left"):
        attached.trace(ids(), attention_mask=mask, edit={("scores", 0): hide(0)})


def test_edits_of_one_stack_of_several() -> None:
    attached = minibert.attach(bart())
    inputs = {"input_ids": ids(), "decoder_input_ids": ids(2, 5)}
    plain = attached.trace(**inputs)
    edited = attached.trace(**inputs, edit={("decoder.cross", "probs", 1, 1): 0.125})
    assert bool((edited.stack("decoder.cross")[1, 1].probs == 0.125).all())
    assert torch.equal(edited.stack("encoder")[1].z, plain.stack("encoder")[1].z)
    other = attached.trace(input_ids=ids().flip(1), decoder_input_ids=ids(2, 5))
    patched = attached.trace(**inputs, edit={("decoder.cross", "z", 2): replace(other)})
    assert torch.equal(patched.stack("decoder.cross")[2].z, other.stack("decoder.cross")[2].z)
    averaged = attached.trace(**inputs, edit={("encoder", "z", 0, 1): mean(over=[plain, other])})
    rows = torch.cat([plain.stack("encoder")[0, 1].z, other.stack("encoder")[0, 1].z])
    expected = rows.reshape(-1, 11).mean(0)
    assert (averaged.stack("encoder")[0, 1].z - expected).abs().max() < 1e-6
    with pytest.raises(EditError, match="several stacks; begin with one of 'encoder', 'decoder"):
        attached.trace(**inputs, edit={("z", 1): zero})


def test_gradients_flow_through_edits() -> None:
    attached = minibert.attach(gpt2())
    strength = torch.tensor(0.5, requires_grad=True)
    edit = {("z", 1, 2): lambda z: z * strength, ("probs", 0, 1): lambda p: p * strength}
    trace = attached.trace(ids(), edit=edit, grad=True)
    trace.logits[0, -1, 7].backward()
    step = 1e-2
    ends = []
    for value in (0.5 + step, 0.5 - step):
        again = {("z", 1, 2): lambda z, v=value: z * v, ("probs", 0, 1): lambda p, v=value: p * v}
        ends.append(float(attached.trace(ids(), edit=again).logits[0, -1, 7]))
    assert strength.grad is not None
    slope = (ends[0] - ends[1]) / (2 * step)
    assert abs(float(strength.grad) - slope) < 1e-2 * max(1, abs(slope))
    assert not attached.trace(ids(), edit={("z", 1): zero}).logits.requires_grad


REFUSED: dict[str, dict[object, object]] = {
    r"is not a point of stack 'layers'; expected \(name, layer\)": {("pooled", 1): zero},
    "is not a point": {"z": zero},
    "no head 9; expected 0 to 5": {("z", 1, 9): zero},
    "no kv_head 5; expected 0 to 1": {("key", 1, 5): zero},
    r"value of shape \(5,\) does not fit \(2, 6, 7, 8\)": {("z", 1): torch.zeros(5)},
    "nan is not a finite number": {("z", 1): float("nan")},
    "hide edits scores; write": {("z", 1): hide(0)},
    "the query at position 0 of sentence 0 has no key left": {("scores", 1): hide(0)},
    "Two edits overlap": {("z", 1, 2): zero, ("z", 1, (2,)): 1.0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message: str) -> None:
    with pytest.raises(EditError, match=message):
        minibert.attach(llama()).trace(ids(), edit=REFUSED[message])


@settings(max_examples=20)
@given(data=st.data())
def test_a_function_gives_the_kind_of_tensor_that_it_was_given(data: st.DataObject) -> None:
    attached = minibert.attach(data.draw(st.sampled_from([llama, gpt2, bert]))())
    function = data.draw(st.sampled_from([*OTHER_KINDS, lambda value: None]))
    name, head = data.draw(st.sampled_from(READABLE)), data.draw(st.sampled_from([(), (1,)]))
    for run in (attached.trace(ids()).rerun, lambda edit: attached.trace(ids(), edit=edit)):
        with pytest.raises(EditError, match=r"the function returned .* as it was given"):
            run({(name, 1, *head): function})


def test_a_trace_of_another_model_is_read_where_that_is_asked_for() -> None:
    attached, other = minibert.attach(llama()), llama()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    trace, theirs = attached.trace(ids()), minibert.attach(other).trace(ids())
    for read in (replace, mean):
        for source in (theirs, theirs.only()):
            with pytest.raises(EditError, match="of another model"):
                trace.rerun({("z", 1): read(source)})
            trace.rerun({("z", 1): read(source, other_model=True)})
        # A copy that has the same weights is the same model.
        trace.rerun({("z", 1): read(minibert.attach(llama()).trace(ids()))})
