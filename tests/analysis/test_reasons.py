"""A score is the sum of its pairs, a part that of what it read, and autograd says the same."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vocabulary_models import both

import minibert
from minibert.analysis import decompose, why, why_heads, why_logit, why_stream
from minibert.analysis.reasons import Branch
from minibert.errors import MinibertError, TraceError
from minibert.trace.edit import hide
from tests.analysis.test_stream import Frozen
from tests.drawn_reasons import CLASSES, LIMITS, misses
from tests.families import sizes


def is_sum(values: Tensor, expected: float, limit: float) -> None:
    """The values add up, up to a share of the largest of them."""
    assert abs(values.sum().item() - expected) <= limit * max(values.abs().max().item(), 1e-30)


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=5, phases=(Phase.generate,))
@given(chosen=sizes, dtype=st.sampled_from(list(LIMITS)), data=st.data())
def test_every_level_adds_up_to_the_one_above(
    family: str, chosen: Any, dtype: torch.dtype, data: Any
) -> None:
    for miss in misses(family, chosen, dtype, data):
        assert miss.within(dtype), miss


@pytest.mark.parametrize("family", CLASSES)
def test_a_direction_of_the_stream_is_read_of_its_parts(family: str) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens)
    direction = torch.linspace(-1, 2, model.config.d_model, dtype=torch.float64)
    parts = decompose(trace.text(0), 1, point="resid_mid", positions=3)
    along = why_stream(trace, direction, 1, point="resid_mid", position=3)
    torch.testing.assert_close(along["head 0-1"], parts["head 0-1"][0, 0] @ direction)
    is_sum(along.values, along.number, 1e-10)
    tree = why_logit(trace, 7, against=11, position=2).tree(depth=2, share=0.05)
    adds_up(tree)
    assert "the rest" in str(tree)


def adds_up(branch: Branch) -> None:
    if branch.branches:
        assert abs(sum(each.value for each in branch.branches) - branch.value) < 1e-9
        for each in branch.branches:
            adds_up(each)


LAYER, HEAD, QUERY, KEY = 1, 1, 5, 3


def side(by_hand: Frozen, name: str, position: int, theta: float) -> Tensor:
    """The query or key of HEAD at a position, its norms held, by each component's scale."""
    layer, config = by_hand.model.body.layers[LAYER], by_hand.trace.config
    attention, x = layer.attention, by_hand.stream(0, position, LAYER)
    if config.norm_place in ("before", "both"):
        x = by_hand.norm(f"attention norm bias {LAYER}", layer.attention_norm, x)
    weights, biases = (getattr(attention, f"{kind}_{name[0].upper()}") for kind in "Wb")
    own = HEAD * len(weights) // config.n_heads
    x = x @ weights[own]
    if biases is not None:
        x = x + by_hand.scaled(f"{name} bias", biases[own])
    if config.query_key_norm == "head":
        x = by_hand.norm("", getattr(attention, f"{name}_norm"), x)
    if config.rotary is None:
        return x
    half = len(x) // 2
    angles = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "distilbert", "albert", "gpt2", "llama", "gemma2", "qwen3", "granite"],
)
def test_the_table_is_the_second_derivative_of_the_score_with_norms_held(family: str) -> None:
    """A score is bilinear in the scales of what its query and its key are made of."""
    theirs, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens)
    found, sides = why(trace, LAYER, HEAD, QUERY, KEY), [Frozen(trace, None) for _ in range(2)]
    rope = getattr(theirs.config, "rope_parameters", None) or {"rope_theta": 1.0}
    query, key = (
        side(one, name, place, rope["rope_theta"])
        for one, name, place in zip(sides, ("query", "key"), (QUERY, KEY), strict=True)
    )
    score = model.body.layers[LAYER].attention.scale * (query @ key)
    assert score.item() == pytest.approx(trace[LAYER].scores[0, HEAD, QUERY, KEY].item())
    scales = [list(one.scales.values()) for one in sides]
    by_key = torch.autograd.grad(score, scales[1], create_graph=True)
    labels = [
        ["embed" if "embedding" in part else part for part in found.labels[f"{name}_component"]]
        for name in ("query", "key")
    ]
    assert [set(one) for one in labels] == [set(one.scales) for one in sides]
    for label, slope in zip(sides[1].scales, by_key, strict=True):
        expected = torch.autograd.grad(slope, scales[0], retain_graph=True)
        of_key = [n for n, part in enumerate(labels[1]) if part == label]
        for other, wanted in zip(sides[0].scales, expected, strict=True):
            of_query = [n for n, part in enumerate(labels[0]) if part == other]
            got = found.values[of_query][:, of_key].sum().item()
            assert got == pytest.approx(wanted.item(), rel=1e-8, abs=1e-10), (other, label)


@pytest.mark.parametrize("family", ["bert", "gemma2", "qwen3", "olmo2"])
def test_over_a_text_it_is_the_mean_of_all_pairs(family: str) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens).text(1)
    found = why_heads(trace, 1)
    seen = trace[1].mask[0, 0].double()
    weights = trace[1].probs[0] - seen / seen.sum(-1, keepdim=True)
    expected = torch.zeros_like(found.values)
    for head in {0, model.config.n_heads - 1}:
        for query, key in seen.nonzero().tolist():
            pair = why(trace, 1, head, query, key)
            expected[head] += weights[head, query, key] * pair.values / len(seen)
            assert found.labels.items() <= pair.labels.items()
    ends = [0, -1]
    torch.testing.assert_close(found.values[ends], expected[ends], atol=1e-9, rtol=1e-6)
    # Sentences count by their tokens, in more rows than are held at once.
    whole, last = why_heads(model.trace(tokens), 1).values * 21, trace.tokens.lengths[0]
    others = [why_heads(model.trace(tokens).text(n), 1).values for n in (0, 2)]
    torch.testing.assert_close(whole, found.values * last + others[0] * 13 + others[1])


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_induction_head_looks_because_the_previous_token_head_wrote(name: str) -> None:
    """First in the table, and first where each head's path to the keys is patched."""
    model = minibert.load(name)
    ids = minibert.analysis.repeated_ids(model.config.vocab_size, draws=2, length=20)
    scores = minibert.analysis.head_scores(model, ids, repeated=ids)
    previous, (layer, head) = (
        divmod(int(scores[kind].argmax()), model.config.n_heads)
        for kind in ("previous", "induction")
    )
    assert (previous[0], layer) == (0, 1)
    generator = torch.Generator().manual_seed(0)
    query, key, heads = 30, 11, range(model.config.n_heads)
    own = head // (model.config.n_heads // model.config.n_kv_heads)
    for _ in range(50):
        halves = torch.randint(300, 4000, (2, 1, 20), generator=generator)
        trace, other = (model.trace(torch.cat([half, half], 1)) for half in halves)
        found = why(trace, layer, head, query, key, against="row").side("key")
        assert found.top(1)[0][0] == "head {}-{}".format(*previous)
        left = []
        for sender in heads:
            sent = trace.rerun({("z", 0, sender): other[0, sender].z})
            patched = trace.rerun({("key", layer, own): sent[layer].key[:, own]})
            left.append(patched[layer, head].probs[0, query, key])
        assert min(heads, key=left.__getitem__) == previous[1]


def test_a_part_is_what_the_score_loses_without_it() -> None:
    for name in ("tiny-gpt2", "tiny-bert", "tiny-llama"):
        trace = minibert.load(name).trace("the horse ran away and the horse ran")
        found = why(trace, 2, 1, -1, 2)
        for side, component in (("key", "head 0-3"), ("query", "mlp 1"), ("key", "word embedding")):
            part, frozen, live = found.check(component, side).values.tolist()
            assert abs(part - frozen) < 1e-4 * found.values.abs().max()
            assert (abs(frozen - live) < 1e-4) == (name == "tiny-bert")


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        ((9, 0, 1, 0), {}, "layer"),
        ((0, 9, 1, 0), {}, "head"),
        ((0, 0, 99, 0), {}, "query"),
        ((0, 0, 1, "no such word"), {}, "key"),
        ((0, 0, 1, 0), {"against": 99}, "against"),
        ((0, 0, 1, 0), {"neurons": -1}, "neurons"),
        ((0, 0, 1, 0), {"sentence": 3}, "text"),
        ((0, None, 1, 0), {}, "head"),
        ((0, 0, 1.0, 0), {}, "query=1.0"),
        ((0, 0, 1, True), {}, "key=True"),
        ((0, 0, 1, 0), {"against": "rows"}, '"row" compares'),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, options: Any, part: str) -> None:
    trace = minibert.load("tiny-gpt2").trace("the horse ran away")
    with pytest.raises(MinibertError, match=part):
        why(trace, *arguments, **options)


def test_what_has_no_parts_is_refused() -> None:
    model = minibert.load("tiny-gpt2")
    trace = model.trace("the horse ran away")
    found = why(trace, 1, 2, -1, 1)
    for component in ("word embedding", "key bias"):
        with pytest.raises(TraceError, match="not computed from tokens"):
            found.follow(component)
    with pytest.raises(TraceError, match="side"):
        found.side("value")
    with pytest.raises(TraceError, match="key bias cannot be taken out"):
        found.check("key bias")
    with pytest.raises(TraceError, match="against"):
        why(trace, 1, 2, -1, 1, against="row").check("head 0-3")
    for other in (minibert.Model, model, "text"):
        for ask in (partial(why_heads, layer=1), partial(why_logit, token=5)):
            with pytest.raises(TraceError, match="expected a trace"):
                ask(other)
    with pytest.raises(TraceError, match="128 floats"):
        why_stream(trace, torch.ones(127))


@pytest.mark.parametrize("name", ["resid_pre", "resid_post", "attn_out", "query", "scores"])
def test_what_an_edit_wrote_past_the_components_is_refused(name: str) -> None:
    model = minibert.load("tiny-gpt2")
    layer = 0 if name in ("resid_post", "attn_out") else 1
    trace = model.trace("the horse ran away", edit={(name, layer): lambda x: x + x.square()})
    asked = [lambda: why_heads(trace, 1), lambda: why(trace, 1, 2, -1, 1)]
    if name not in ("query", "scores"):
        asked += [lambda: why_logit(trace, 7), lambda: why_stream(trace, torch.ones(128))]
    for ask in asked:
        with pytest.raises(TraceError, match="an edit wrote"):
            ask()
    hidden = model.trace("the horse ran away", edit={("scores", 1): hide(1)})
    with pytest.raises(TraceError, match="hid this key"):
        why(hidden, 1, 2, -1, 1)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-llama"])
def test_half_precision_is_followed_and_checked_too(name: str) -> None:
    trace = minibert.load(name, dtype=torch.bfloat16).trace("the horse ran away and the boy ran")
    for head in range(4):
        found = why(trace, 2, head, -1, 1)
        found.tree()
        part, frozen, _ = found.check("mlp 1").values.tolist()
        assert abs(part - frozen) <= 0.1 * max(found.values.abs().max(), abs(part))
