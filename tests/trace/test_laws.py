"""What holds in every family whatever the sizes, the weights and the texts: one driver for all.

Each law goes over every quantity of a layer of a model that is drawn: read, edited in a rerun, in a
new pass, side by side with other edits, packed, saved, while a text is written, differentiated.
That the numbers are those of transformers is in tests/test_verification.py and tests/rotary.
"""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.errors import EditError
from minibert.layers.layer import layer_quantities
from minibert.model import from_transformers
from minibert.quantities import QUANTITIES
from minibert.text.tokens import Tokens
from minibert.trace.edit import replace
from minibert.trace.read import Trace
from tests.families import as_tokens, batch, hf_model, sizes
from tests.rotary import theirs as rotary
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import drawn, plain
from tests.trace.editing import FAMILIES as ENCODERS
from tests.trace.editing import OTHER_KINDS, close

BOTH = ("scores", "probs")
LIMIT = 1e-10
STEP = 1e-6
# Of these alone two are RoBERTa by other names.
TWINS = ("xlm-roberta", "camembert")
every_family = pytest.mark.parametrize(
    "family", [family for family in (*ENCODERS, *ROTARY) if family not in TWINS]
)


@st.composite
def traces(draw: Any, family: str, *, smooth: bool = False, short: bool = False) -> Trace:
    """A ragged batch through a model in float64 that says words.

    `smooth` leaves out relu, which has two sides beside 0; `short` what turns long texts otherwise.
    """
    if family in ROTARY:
        # The first example is the plain one, which has caps, windows and shared heads.
        chosen = draw(st.just(plain(family)) | drawn(family))
        assume(not (smooth and "relu" in chosen.options.values()))
        assume(not (short and chosen.depends_on_length))
        model = minibert.load(rotary.model_of(chosen, LANGUAGE[family]))
        return model.trace(rotary.as_tokens(rotary.batch()))
    size = draw(sizes)
    assume(not (smooth and size.activation == "relu"))
    model = from_transformers(hf_model(family, ENCODERS[family], size, torch.float64))
    return model.trace(as_tokens(batch(family, size.segments)))


def names_of(trace: Trace, layer: int) -> list[str]:
    absent = trace.config.absent_in(layer)
    return [name for name in layer_quantities(trace.config) if name not in absent]


def whole_names(trace: Trace) -> list[str]:
    """What a trace has once, beside what it has of each layer."""
    return ["embed", *({"final_norm_scale"} - trace.config.absent_quantities)]


def name_of(place: Any) -> str:
    return place if isinstance(place, str) else place[0]


def places(trace: Trace, data: st.DataObject) -> list[Any]:
    """Each quantity at a layer that has it, in turn, and those without layers."""
    found: list[Any] = whole_names(trace)
    first = data.draw(st.integers(0, len(trace) - 1))
    for number, name in enumerate(layer_quantities(trace.config), first):
        has = [layer for layer in range(len(trace)) if name in names_of(trace, layer)]
        found.append((name, has[number % len(has)]))
    return found


def turns(family: str, found: list[Any]) -> list[tuple[Any, bool]]:
    """Every second place, so that of two dear checks each has one; the families begin in turn."""
    first = [*ENCODERS, *ROTARY].index(family)
    return [(place, number % 2 == 0) for number, place in enumerate(found, first)]


def value_at(trace: Any, place: Any) -> Tensor:
    """Of a trace, or of its gradients."""
    return getattr(trace, place) if isinstance(place, str) else trace[place[1]].quantity(place[0])


def changed(value: Tensor) -> Tensor:
    """The same with every number moved, the same in each sentence; what divides stays positive."""
    cosines = torch.arange(value[0].numel(), dtype=value.dtype).cos().view_as(value[0])
    return value * (1 + 0.3 * cosines)


def assert_same(found: Trace, expected: Trace, why: Any) -> None:
    """Every quantity at real tokens; of matrices the rows of real tokens."""
    real = expected.tokens.mask
    for name in ("logits", *whole_names(expected)):
        ours, wanted = (getattr(each, name)[real] for each in (found, expected))
        assert close(ours, wanted, LIMIT), (why, name)
    for layer in range(len(expected)):
        for name in names_of(expected, layer):
            ours, wanted = (value_at(each, (name, layer)) for each in (found, expected))
            if ours.dim() == 4:
                ours, wanted = ours.transpose(1, 2), wanted.transpose(1, 2)
            assert close(ours[real], wanted[real], LIMIT), (why, layer, name)


@every_family
@settings(max_examples=1)
@given(data=st.data())
def test_writing_back_what_was_read_changes_nothing(family: str, data: st.DataObject) -> None:
    plain = data.draw(traces(family))
    kept = plain.rerun({}, keep=BOTH)
    for place, in_turn in turns(family, places(plain, data)):
        value = value_at(plain, place).clone()
        same = [plain.rerun({place: edit}) for edit in (value, plain if in_turn else lambda x: x)]
        for again in same:
            assert torch.equal(value_at(again, place), value), place
            assert torch.equal(again.logits, same[0].logits), place
        again = kept.rerun({place: value}, keep=BOTH) if in_turn else same[0]
        assert_same(again, plain, place)
        if name_of(place).endswith(("_scale", "_input", "_unrotated")):
            assert torch.equal(same[0].logits, plain.logits), place


@every_family
@settings(max_examples=1)
@given(data=st.data())
def test_a_changed_quantity_gives_the_same_in_every_kind_of_pass(
    family: str, data: st.DataObject
) -> None:
    plain = data.draw(traces(family))
    model, tokens, edits, expected = plain.model, plain.tokens, [], []

    def metric(logits: Tensor) -> Tensor:
        return logits.flatten(1).sin().mean(1)

    for place, in_turn in turns(family, places(plain, data)):
        edit: Any = {place: changed}
        edited = plain.rerun(edit)
        assert torch.equal(value_at(edited, place), changed(value_at(plain, place))), place
        if in_turn:
            assert_same(edited, model.trace(tokens, edit=edit), place)
        elif "query" not in QUANTITIES[name_of(place)].axes:
            # Of a text alone: another length has other numbers to change by.
            half: Any = {place: lambda value: value * 0.7}
            packed, padded = (model.trace(tokens, edit=half, packed=p) for p in (True, False))
            for text in range(len(tokens)):
                assert close(packed.text(text).logits, padded.text(text).logits, LIMIT), place
        edits.append(edit)
        expected.append(torch.cat([metric(edited.text(n).logits) for n in range(len(tokens))]))
    swept = plain.rerun_each(edits, metric, batch=data.draw(st.sampled_from([1, 7, 64])))
    assert close(swept, torch.stack(expected), LIMIT)


@every_family
@settings(max_examples=1)
@given(data=st.data())
def test_a_function_gives_the_kind_of_tensor_that_it_was_given(
    family: str, data: st.DataObject
) -> None:
    plain = data.draw(traces(family, short=True))
    found = places(plain, data)
    whole = [*dict.fromkeys([*found, "embed", "logits"])]
    layered = [place for place in found if isinstance(place, tuple)]
    heads = [(*place, 0) for place in layered if QUANTITIES[place[0]].per_head]
    for place in [*whole, *heads]:
        edit: Any = {place: data.draw(st.sampled_from([*OTHER_KINDS, lambda value: None]))}
        for door in doors(plain, edit, written=name_of(place) not in BOTH):
            with pytest.raises(EditError, match=r"the function returned .* as it was given"):
                door()


def doors(plain: Trace, edit: Any, *, written: bool) -> list[Callable[[], object]]:
    """Every way to make an edit; `written` where it can be made of packed and of written texts."""
    model, tokens = plain.model, plain.tokens
    found: list[Callable[[], object]] = [
        lambda: plain.rerun(edit),
        lambda: model.trace(tokens, edit=edit, grad=True),
        lambda: plain.rerun_each([edit], lambda logits: logits.flatten(1).sum(1)),
    ]
    if written:
        found.append(lambda: model.trace(tokens, edit=edit, packed=True))
    if written and model.config.generates:
        found.append(lambda: model.generate(tokens, max_new_tokens=2, edit=edit))
    return found


@every_family
@settings(max_examples=2)
@given(data=st.data())
def test_padding_packing_order_neighbours_and_an_early_end_change_nothing(
    family: str, data: st.DataObject
) -> None:
    padded = data.draw(traces(family))
    model, tokens = padded.model, padded.tokens
    order = data.draw(st.permutations(range(len(tokens))))
    parts = (tokens.ids, tokens.mask, tokens.segments)
    ids, mask, segments = (part[order] for part in parts)
    turned = model.trace(Tokens.from_ids(ids, mask=mask, segments=segments))
    packed, logits = model.trace(tokens, packed=True), model.packed(tokens)
    early = model.trace(tokens, until=data.draw(st.integers(-1, len(padded) - 1)), keep=BOTH)
    for place in ((name, n) for n in range(len(early)) for name in names_of(early, n)):
        assert close(value_at(early, place), value_at(padded, place), LIMIT), place
    for row, number in enumerate(order):
        alone = model.trace(tokens[number])
        for among in (packed.text(number), padded.text(number), turned.text(row)):
            assert_same(among, alone, number)
        assert close(logits[number], alone.logits[0], LIMIT)


@every_family
@settings(max_examples=1)
@given(data=st.data())
def test_patching_everything_of_another_trace_gives_that_trace(
    family: str, data: st.DataObject
) -> None:
    trace = data.draw(traces(family))
    tokens = trace.tokens
    # The same lengths, and other ids that are not padding.
    ids = torch.where(tokens.mask, (tokens.ids + 7) % 37 + 4, tokens.ids)
    other = Tokens.from_ids(ids, mask=tokens.mask, segments=tokens.segments)
    source = trace.model.trace(other, keep=BOTH)
    every = [(name, layer) for layer in range(len(trace)) for name in names_of(trace, layer)]
    patched = trace.rerun(dict.fromkeys(["embed", *every, "logits"], source), keep=BOTH)
    assert all(torch.equal(value_at(patched, at), value_at(source, at)) for at in every)
    assert torch.equal(patched.logits, source.logits)
    inputs = [at for at in every if at[0] in ("query", "key", "value")]
    assert_same(trace.rerun(dict.fromkeys(["embed", *inputs], source)), source, "embed")


@every_family
@settings(max_examples=2)
@given(data=st.data())
def test_values_are_taken_from_packed_and_padded_traces_alike(
    family: str, data: st.DataObject
) -> None:
    padded = data.draw(traces(family))
    model, tokens = padded.model, padded.tokens
    ids = torch.where(tokens.mask, (tokens.ids + 7) % 37 + 4, tokens.ids)
    other = Tokens.from_ids(ids, mask=tokens.mask, segments=tokens.segments)
    sources = [model.trace(other, packed=packed) for packed in (False, True)]
    names = [name for name in names_of(padded, 0) if "query" not in QUANTITIES[name].axes]
    place = data.draw(st.sampled_from(["embed", *((name, 0) for name in names)]))
    positions = data.draw(st.sampled_from([None, 0, [-1]]))
    sentences = data.draw(st.sampled_from([None, [0, 1]]))
    packed = model.trace(tokens, packed=True)
    results = [
        trace.rerun({place: replace(source, positions=positions, sentences=sentences)})
        for trace in (padded, packed)
        for source in sources
    ]
    for number in range(len(tokens)):
        expected = results[0].text(number)
        for result in results[1:]:
            assert_same(result.text(number), expected, (place, positions, sentences))
    assert not torch.equal(value_at(results[0], place), value_at(padded, place))


def every_point(trace: Trace) -> Tensor:
    """A number of each quantity of the last layer, twice."""
    layer = trace[-1]
    values = [layer.quantity(name) for name in names_of(trace, len(trace) - 1)]
    return sum((changed(one).sum() + one.sum() for one in values), trace.logits.sum())


# What is made of other numbers than logits; the encoders and GPT-2 take one in turn. Of the rotary
# families, whose weights are larger, some bend too much for a central difference.
NUMBERS: list[Callable[[Trace], Any]] = [
    lambda trace: trace[-1, -1].probs[0, 5, 3],
    lambda trace: trace[-1].probs[0, 0, 4].square().sum(),
    lambda trace: trace[-1, 0].window("scores", queries=slice(1, 6, 2), keys=slice(0, 2)).sum(),
    lambda trace: trace[0].mlp_post[0, 3, 7],
    every_point,
    lambda trace: trace[0, -1].head_out[:, 2].sin().sum(),
]


@every_family
@settings(max_examples=1)
@given(data=st.data())
def test_a_gradient_is_what_a_small_step_changes(family: str, data: st.DataObject) -> None:
    """Along a direction, by a central difference of two passes, unedited and edited half of all."""
    plain = data.draw(traces(family, smooth=True))

    def of_logits(trace: Trace) -> Tensor:
        return trace.logits[0, 5, 3] + trace.logits[1, 2, 7]

    # Much of a trace has no part in these.
    another = dict(zip(ENCODERS, cycle(NUMBERS), strict=False)).get(family, of_logits)
    unedited: Any = {}
    found = places(plain, data)
    half = [place for place, in_turn in turns(family, found) if in_turn]
    for edit, number in ((unedited, another), (dict.fromkeys(half, changed), of_logits)):
        keep = BOTH if edit else ()
        trace = plain.model.trace(plain.tokens, grad=True, edit=edit, keep=keep)
        # What was read for another number leaves no mark.
        trace.backward(every_point(trace))
        trace.backward(number(trace))
        for place in found:
            value = value_at(trace, place).detach()
            generator = torch.Generator().manual_seed(1)
            direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            if name_of(place) in BOTH:
                direction = direction * trace.mask
            # Of an edited quantity the value after the edit counts, so its edit is replaced.
            steps = [edit | {place: value + s * STEP * direction} for s in (1, -1)]
            up, down = (number(plain.rerun(step)) for step in steps)
            slope = float((up - down) / (2 * STEP))
            along = float((value_at(trace.grad, place) * direction).sum())
            assert abs(along - slope) <= 2e-6 * max(1.0, abs(slope)), (place, along, slope)


@pytest.mark.parametrize("family", ["gpt2", *ROTARY[:-1]])
@settings(max_examples=1)
@given(data=st.data())
def test_an_edit_acts_while_a_text_is_written_and_is_in_the_file(
    family: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = data.draw(traces(family, short=True))
    model, prompt = plain.model, plain.tokens.ids[0, :5].tolist()
    folder: Path = tmp_path_factory.mktemp("laws")
    again: Any = {("resid_post", 0): lambda value: 0.9 * value}
    expected = plain.rerun(again).logits
    for place, in_turn in turns(family, places(plain, data)):
        # Of the other sign: a last norm that divides by more changes no order of the logits.
        edit: Any = {place: lambda value: -0.7 * value}
        if name_of(place) not in BOTH and in_turn:
            written = model.generate(prompt, max_new_tokens=2, temperature=0, edit=edit)
            ids = [*prompt]
            for _ in range(2):
                ids.append(int(model.trace([ids], edit=edit).logits[0, -1].argmax()))
            assert list(written.ids) == ids, place
            continue
        edited = plain.rerun(edit)
        edited.save(folder / "a.trace")
        stored = Trace.load(folder / "a.trace", model)
        assert_same(stored, edited, place)
        assert torch.equal(value_at(stored, place), value_at(edited, place)), place
        assert torch.equal(stored.logits, edited.logits), place
        # The edit that was saved is not a part of another rerun.
        assert close(stored.rerun(again).logits, expected, LIMIT), place
