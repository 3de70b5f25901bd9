"""Sweeps of edits: the same numbers as one edited pass after the other, and TransformerLens'."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.analysis import (
    Effects,
    ablate_heads,
    answer_probability,
    attention_knockout,
    attribution_patching,
    causal_tracing,
    logit_difference,
    patch_heads,
    patch_positions,
    path_patching,
    phrase_positions,
)
from minibert.errors import EditError, MinibertError, TokenizationError, TraceError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import noise, replace, zero
from minibert.trace.read import Trace

LAYERS, HEADS, D_HEAD = 3, 2, 5
# Sentences of three lengths, each with a partner of its own length.
CLEAN = [[3, 17, 5, 22, 9], [11, 4, 30], [7, 8, 2, 40, 1, 6, 12]]
CORRUPT = [[3, 18, 5, 21, 9], [12, 4, 31], [7, 9, 2, 39, 1, 6, 13]]
RIGHT, WRONG = [5, 11, 23], [7, 2, 19]
SUBJECT = [[1, 2], [0], [2, 3, 4]]
METRIC = logit_difference(RIGHT, WRONG)
GROUPED = {"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "d_model": 12, "rotary": Rotary(4)}
Place = tuple[Any, ...]


def random_model(family: str = "gpt2", task: str = "causal-lm", **options: Any) -> Model:
    sizes = {"vocab_size": 41, "n_positions": 7, "n_layers": LAYERS, "n_heads": HEADS}
    sizes |= {"d_model": HEADS * D_HEAD, "d_mlp": 13, "causal": task == "causal-lm"}
    model = Model.from_config(Config(family, task, **(sizes | options)), seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


@cache
def gpt2() -> Model:
    return random_model()


def grouped() -> Model:
    return random_model("llama", **GROUPED, activation="silu")


def batch(sentences: list[list[int]]) -> Tokens:
    """Sentences of several lengths, filled up with padding."""
    longest = max(map(len, sentences))
    ids = [sentence + [0] * (longest - len(sentence)) for sentence in sentences]
    mask = [[n < len(sentence) for n in range(longest)] for sentence in sentences]
    return Tokens.from_ids(ids, mask=mask)


def pair(model: Model, **options: Any) -> tuple[Trace, Trace]:
    return model.trace(batch(CLEAN), **options), model.trace(batch(CORRUPT), **options)


def by_hand(sentence: int, edits: list[Any]) -> Tensor:
    """The difference of this sentence's answers, one whole pass after the other."""
    rows = [gpt2().trace(CLEAN[sentence], edit=edit).logits[0, -1] for edit in edits]
    return torch.stack([row[RIGHT[sentence]] - row[WRONG[sentence]] for row in rows])


def same(found: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol, equal_nan=True)


# The edits of one sentence that a sweep stands for, in the order of its values.
Sweep = tuple[Callable[[Trace, Trace], Effects], Callable[[Trace, int], list[Any]]]
EVERY = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
NAMED = {"changed": [[1, 3], 0, [1, 3]], "end": -1}
SWEEPS: dict[str, Sweep] = {
    "ablate_heads": (
        lambda clean, corrupt: ablate_heads(clean, METRIC),
        lambda source, n: [{("z", *head): zero} for head in EVERY],
    ),
    **{
        f"patch_heads {name}": (
            lambda clean, corrupt, name=name: patch_heads(
                clean, corrupt, METRIC, name=name, batch=3
            ),
            lambda source, n, name=name: [{(name, *head): replace(source)} for head in EVERY],
        )
        for name in ("query", "value", "scores", "z")
    },
    **{
        f"patch_positions {name}": (
            lambda clean, corrupt, name=name: patch_positions(
                clean, corrupt, METRIC, name=name, aligned=NAMED
            ),
            lambda source, n, name=name: [
                {(name, layer): replace(source, positions=at)}
                for layer in range(LAYERS)
                for at in (([1, 3], [0], [1, 3])[n], [-1])
            ],
        )
        for name in ("resid_pre", "mlp_norm_scale", "mlp_post")
    },
    **{
        f"patch_positions of heads {name}": (
            lambda clean, corrupt, name=name: patch_positions(
                clean, corrupt, METRIC, name=name, heads=True, layers=[0, 2], aligned=NAMED
            ),
            lambda source, n, name=name: [
                {(name, layer, head): replace(source, positions=at)}
                for layer in (0, 2)
                for head in range(HEADS)
                for at in (([1, 3], [0], [1, 3])[n], [-1])
            ],
        )
        for name in ("z", "key")
    },
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_over_pairs_is_one_edited_pass_after_the_other(name: str) -> None:
    sweep, edits = SWEEPS[name]
    found = sweep(*pair(gpt2()))
    for n in range(3):
        expected = by_hand(n, edits(gpt2().trace(CORRUPT[n]), n))
        same(found.values[:, n].flatten(), expected)
    clean = torch.cat([by_hand(n, [{}]) for n in range(3)])
    same(found.clean, clean)
    change = found.values - clean.view(1, 3, *[1] * (found.values.dim() - 2))
    same(found.change, change)
    same(found.mean, change.mean(1))
    same(found.standard_error, change.std(1) / 3**0.5)
    assert found.change.abs().max() > 1e-3
    assert found.axes[:2] == ("layer", "batch")
    if "head_positions" in name:
        assert found.labels["layer"] == [0, 2]
    if "positions" in name:
        assert found.labels["place"] == ("changed", "end")


def test_every_token_of_sentences_of_one_length_is_patched_and_padding_never() -> None:
    tokens = [Tokens.from_ids([s[0] + [0, 0]], mask=[[1] * 5 + [0] * 2]) for s in (CLEAN, CORRUPT)]
    traces, metric = [gpt2().trace(each) for each in tokens], logit_difference(5, 7)
    for sweep in (patch_positions, partial(patch_positions, name="z", heads=True)):
        found = sweep(*traces, metric)
        assert found.axes[-1] == "position"
        assert found.values.shape[-1] == 5
        same(found.values, sweep(gpt2().trace(CLEAN[0]), gpt2().trace(CORRUPT[0]), metric).values)
    recovered = patch_positions(*traces, metric).recovered[-1]
    same(recovered, torch.tensor([0.0] * 4 + [1.0]).double())


def test_the_largest_changes_come_first_and_one_text_has_no_error() -> None:
    values = torch.tensor([[[1.0, 5.0]], [[2.0, -7.0]]])
    sweep = Effects(values, "layer batch head", clean=torch.ones(1))
    assert sweep.largest(2) == [(1, 1, -8.0), (0, 1, 4.0)]
    for ask, words in (("recovered", "recover"), ("standard_error", "no standard error")):
        with pytest.raises(EditError, match=words):
            getattr(sweep, ask)


# What people do to logits before they read a number of them; none of it changes the difference.
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": Tensor.detach,
    "/ 1.0": lambda logits: logits / 1.0,
    "log_softmax": lambda logits: logits.log_softmax(-1),
    "slice": lambda logits: logits[:, 1:],
    "first sentence": lambda logits: logits[:1],
    "turned": lambda logits: logits.flip(0),
}


@given(
    lengths=st.lists(st.integers(2, 7), min_size=1, max_size=4),
    operations=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=3),
    packed=st.booleans(),
)
def test_a_metric_of_tokens_is_right_or_refuses(
    lengths: list[int], operations: list[str], packed: bool
) -> None:
    tokens = batch([[2 + (7 * n + i) % 39 for i in range(size)] for n, size in enumerate(lengths)])
    trace = gpt2().trace(tokens, packed=packed)
    last = torch.stack([trace.text(i).logits[0, -1] for i in range(len(lengths))])
    right, wrong = ([(k * n) % 41 for n in range(len(lengths))] for k in (5, 7))
    rows = range(len(lengths))
    metric, expected = logit_difference(right, wrong), last[rows, right] - last[rows, wrong]
    same(metric(trace), expected)
    same(answer_probability(right)(trace), last.softmax(-1)[rows, right])

    def through(logits: Tensor) -> Tensor:
        for name in operations:
            logits = OPERATIONS[name](logits)
        return logits

    with pytest.raises(EditError, match=r"do not say where their sentences end.*lengths="):
        metric(through(trace.logits))
    if not packed and not {"slice", "first sentence", "turned"}.intersection(operations):
        same(metric(through(trace.logits), lengths=tokens.lengths), expected)
        same(trace.rerun_each([{}], metric)[0], expected)
        one = logit_difference(5, 7)
        same(trace.rerun_each([{}], lambda own: one(through(own)))[0], last[:, 5] - last[:, 7])


@pytest.mark.parametrize("lengths", [[3], [3, 10], [0, 3], [3, True], "34", 3])
def test_lengths_that_are_not_those_of_the_logits_are_refused(lengths: Any) -> None:
    with pytest.raises(EditError, match="lengths"):
        logit_difference(5, 7)(torch.zeros(2, 9, 41), lengths=lengths)


def value_at(found: Trace, place: Place) -> Tensor:
    """Of a layer, or of one of its heads."""
    name, layer, *head = place
    return found[layer].quantity(name)[(slice(None), *head)]


def path_patched(n: int, sender: Place, receivers: list[Any], frozen: bool) -> Tensor:
    """Appendix B of Wang et al. 2022, step by step; every head but the sender is frozen."""
    clean, corrupt = gpt2().trace(CLEAN[n]), gpt2().trace(CORRUPT[n])
    names = ("z", "mlp_out") if frozen else ("z",)
    places: list[Place] = [(name, layer) for name in names for layer in range(LAYERS)]
    write = {place: value_at(clean, place) for place in places}
    received = gpt2().trace(CLEAN[n], edit=write | {sender: value_at(corrupt, sender)})
    if receivers != ["logits"]:
        read = {place: value_at(received, place) for place in receivers}
        received = gpt2().trace(CLEAN[n], edit=read)
    logits = received.logits[0, -1]
    return logits[RIGHT[n]] - logits[WRONG[n]]


RECEIVERS: list[list[Any]] = [
    ["logits"],
    [("query", 2, 1)],
    [("key", 1, 0), ("value", 2, 1)],
    [(name, 2, head) for name in ("query", "key", "value") for head in range(HEADS)],
    [("mlp_pre", 1), ("value", 2, 0)],
]


@pytest.mark.parametrize("receivers", RECEIVERS, ids=str)
@pytest.mark.parametrize("freeze_mlps", [False, True])
def test_a_path_is_the_three_passes_written_by_hand(
    receivers: list[Any], freeze_mlps: bool
) -> None:
    senders: list[Place] = [("z", 0, 1), ("z", 1, 0), ("mlp_out", 0)]
    found = path_patching(
        *pair(gpt2()), METRIC, senders=senders, receivers=receivers, freeze_mlps=freeze_mlps
    )
    for n in range(3):
        expected = [path_patched(n, each, receivers, freeze_mlps) for each in senders]
        same(found.values[[0, 1, 0], n, [1, 0, -1]], torch.stack(expected), 1e-10)
    assert found.at(head="MLP").isnan().tolist() == [[False] * 3, [True] * 3, [True] * 3]
    # Far above the tolerance.
    assert found.change[0, :, 1].abs().min() > 1e-7
    way = (found.patched - found.clean).mean()
    same(found.recovered * way, found.mean)


def test_keys_and_values_of_a_path_are_those_of_key_value_heads() -> None:
    clean, corrupt = pair(grouped())
    sent = clean.rerun({("z", 0, 1): replace(corrupt)})[1].key
    for receiver in (("key", 1, 0), ("key", 1, 1), ("key", 1)):
        key = clean[1].key.clone()
        heads = receiver[2:] or (slice(None),)
        key[:, heads[0]] = sent[:, heads[0]]
        found = path_patching(clean, corrupt, METRIC, senders=[("z", 0, 1)], receivers=[receiver])
        same(found.values[0, :, 1], METRIC(clean.rerun({("key", 1): key})))


def test_a_path_costs_the_mlps_between_its_ends_once_for_all_senders() -> None:
    model, ran = random_model(), list[str]()
    for n, layer in enumerate(model.body.layers):
        for name in ("attention.key", "mlp.up"):
            layer.get_submodule(name).register_forward_hook(
                lambda module, given, out, name=f"{name} {n}": ran.append(
                    f"{name}: {len(given[0])}"
                )
            )
    clean, corrupt = pair(model)
    for freeze_mlps, each in ((False, 6), (True, 3)):
        ran.clear()
        options: dict[str, Any] = {"receivers": [("query", 2, 0)], "positions": [-1]}
        found = path_patching(clean, corrupt, METRIC, freeze_mlps=freeze_mlps, **options)
        # Two senders of three texts from layer 0, as many from 1, and from the receiver on all.
        expected = [f"mlp.up {n}: {each}" for n in (0, 1, 1)] + ["mlp.up 2: 12"]
        # What is frozen is computed once, of the clean texts.
        assert sorted(ran) == sorted(expected + ["mlp.up 2: 3"] * 2 * freeze_mlps)
        assert found.change[:2].all()
        assert not found.change[2].any()


def traced(metric: Any = None, **options: Any) -> Any:
    metric = answer_probability(RIGHT) if metric is None else metric
    return causal_tracing(gpt2().trace(batch(CLEAN)), [[1, 2], 0, [2, 3, 4]], metric, **options)


def answer(trace: Trace, n: int) -> Tensor:
    return trace.logits[0, -1].softmax(-1)[RIGHT[n]]


@pytest.mark.parametrize(("name", "window"), [("resid_post", 1), ("mlp_out", 2), ("attn_out", 3)])
def test_a_restored_state_gives_what_a_pass_with_both_edits_gives(name: str, window: int) -> None:
    found = traced(name=name, window=window, samples=2, std=0.7, seed=5)
    # The window of layer 1 in the authors' code, max(0, 1 − w // 2) to 1 + ceil(w / 2).
    around = {1: [1], 2: [0, 1], 3: [0, 1, 2]}[window]
    for n, subject in enumerate(SUBJECT):
        clean, place = gpt2().trace(CLEAN[n]), subject[-1]
        noisy = [{"embed": noise(seed, std=0.7, positions=subject)} for seed in (5, 6)]
        same(found.clean[n], answer(clean, n))
        same(found.corrupt[n], torch.stack([answer(clean.rerun(e), n) for e in noisy]).mean())
        put = {(name, at): replace(clean, positions=place) for at in around}
        hand = torch.stack([answer(clean.rerun(edit | put), n) for edit in noisy]).mean()
        same(found.values[1, n, place], hand)
    assert found.values[:, 1, 3:].isnan().all()


def test_the_mean_counts_each_group_of_tokens_where_a_sentence_has_it() -> None:
    found = traced(samples=1)
    change = found.change
    # The noise is three standard deviations of the subjects' embeddings.
    rows = gpt2().body.word.weight[[17, 5, 11, 2, 40, 1]]
    assert found.std == pytest.approx(3 * float(rows.std()), rel=1e-9)
    # The subjects are at 1 and 2 of 5 tokens, at 0 of 3, and from 2 to 4 of 7.
    expected = [
        (change[:, 0, 1] + change[:, 2, 2]) / 2,
        change[:, 2, 3],
        (change[:, 0, 2] + change[:, 1, 0] + change[:, 2, 4]) / 3,
        (change[:, 0, 3] + change[:, 1, 1] + change[:, 2, 5]) / 3,
        torch.full((LAYERS,), torch.nan).double(),
        (change[:, 0, 4] + change[:, 1, 2] + change[:, 2, 6]) / 3,
    ]
    same(found.mean, torch.stack(expected, 1))
    assert len(found.kinds) == 6 == found.by_kind().sizes["kind"]


def test_knocked_out_attention_gives_what_a_pass_with_hidden_keys_gives() -> None:
    blocked = {"subject": (-1, SUBJECT), "both": [(-1, SUBJECT), (-2, 0)]}
    metric = answer_probability(RIGHT)
    found = attention_knockout(gpt2().trace(batch(CLEAN)), blocked, metric, window=2)
    assert found.values.shape == (LAYERS, 3, 2)
    for n, subject in enumerate(SUBJECT):
        clean = gpt2().trace(CLEAN[n])
        same(found.clean[n], answer(clean, n))

        def out(scores: Tensor, subject: list[int] = subject) -> Tensor:
            scores[:, :, -1, subject] = -torch.inf
            return scores

        def two(scores: Tensor, out: Any = out) -> Tensor:
            out(scores)[:, :, -2, 0] = -torch.inf
            return scores

        for row, change in enumerate((out, two)):
            hand = clean.rerun({("scores", at): change for at in (1, 0)})
            same(found.values[1, n, row], answer(hand, n))
    assert torch.equal(found["subject"], found.values[..., 0])
    same(found.relative, found.change / found.clean[:, None])


@pytest.mark.parametrize("make", [gpt2, grouped])
def test_an_estimate_is_the_derivative_of_the_metric_toward_the_patch(make: Any) -> None:
    clean, corrupt = pair(make())
    names = ("z", "query", "key", "value", "resid_pre", "resid_mid", "attn_out", "mlp_norm_scale")
    estimates = attribution_patching(clean, corrupt, METRIC, quantities=names)
    for name, found in estimates.items():
        head = (1,) if found.values.dim() == 4 else ()
        assert found.axes == ("layer", "batch", *("head",) * len(head), "position")
        value, step = clean[1].quantity(name), 1e-5
        for at, estimate in (((), found.total), ((1,), found.values[..., 1])):
            place = (slice(None), *head, *at)
            moved = torch.zeros_like(value)
            moved[place] = (corrupt[1].quantity(name) - value)[place]
            edits = [{(name, 1): value + sign * step * moved} for sign in (1, -1)]
            up, down = clean.rerun_each(edits, METRIC)
            same(estimate[(1, slice(None), *head)], (up - down) / (2 * step), 1e-7)
        # Far above the tolerance.
        assert found.total[(1, slice(None), *head)].abs().min() > 1e-6
        assert not found.values[:, 1, ..., 3:].any()
        same(found.mean, found.total.mean(1))


def test_both_ends_agree_where_the_texts_are_close_and_differ_where_they_are_not() -> None:
    clean, corrupt = pair(gpt2())
    ends = [attribution_patching(clean, corrupt, METRIC, at=at)["z"] for at in ("clean", "corrupt")]
    assert not torch.allclose(ends[0].values, ends[1].values, atol=1e-3)
    near = clean.rerun({"embed": torch.lerp(clean.embed, corrupt.embed, 1e-4)})
    at_clean = attribution_patching(clean, near, METRIC)["z"].total
    graded = gpt2().trace(clean.tokens, grad=True, edit={"embed": near.embed})
    at_near = attribution_patching(clean, graded, METRIC, at="corrupt")["z"].total
    assert torch.allclose(at_clean, at_near, rtol=1e-2, atol=1e-8)


def test_estimates_cost_three_passes_with_the_traces_and_one_backward_and_leave_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passes, backward = random_model(), [], []
    for layer in model.body.layers:
        layer.register_forward_hook(lambda *_: passes.append(1))
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: backward.append(1) or grad(*a, **b))
    clean, corrupt = pair(model)
    attribution_patching(clean, corrupt, METRIC, quantities=("z", "query", "resid_pre", "mlp_out"))
    assert (len(passes), len(backward)) == (3 * LAYERS, 1)
    graded, _ = pair(model, grad=True)
    graded.backward(graded.logits[0, 1, 3])
    before, count = graded.grad[0].z.clone(), len(passes)
    attribution_patching(graded, corrupt, METRIC)
    assert torch.equal(graded.grad[0].z, before)
    assert len(passes) == count


def test_a_phrase_is_found_by_its_characters() -> None:
    bert, tiny = minibert.load("tiny-bert"), minibert.load("tiny-gpt2")
    trace = bert.trace("the horse quickly ran", "a quickly turning boat")
    [places] = phrase_positions(trace, "Quickly")
    assert [trace.tokens.words[0][n] for n in places] == [2] * len(places)
    assert max(places) < trace.tokens.strings[0].index("[SEP]")
    trace = tiny.trace([" river window summer", " summer horse"])
    for n, each in enumerate(phrase_positions(trace, ["window summer", "summer"])):
        expected = (" window summer", " summer")[n]
        assert "".join(trace.tokens.strings[n][place] for place in each) == expected
    for wrong in ("letter", ["summer"], ""):
        with pytest.raises(EditError):
            phrase_positions(trace, wrong)
    with pytest.raises(EditError, match="positions instead"):
        phrase_positions(tiny.trace([3, 4]), "horse")


def knocked(blocked: Any, trace: Trace | None = None) -> Any:
    trace = gpt2().trace(batch(CLEAN)) if trace is None else trace
    return attention_knockout(trace, blocked, answer_probability(RIGHT))


def edited() -> Trace:
    return gpt2().trace(batch(CLEAN), edit={("z", 0): zero})


def refused(function: Any, *others: Any, at: Any = None, **options: Any) -> Any:
    """A call of a function of two traces and a metric, with others in their places."""

    def call() -> Any:
        given = [*pair(gpt2())]
        if others:
            given[: len(others)] = [each() for each in others]
        return function(*given, METRIC if at is None else at, **options)

    return call


def short() -> Trace:
    return gpt2().trace([1, 2, 3])


REFUSED: dict[str, Any] = {
    "5, 3, 7 and 3 tokens": refused(patch_heads, lambda: gpt2().trace(batch(CLEAN)), short),
    "'mlp_out' has no heads": refused(patch_heads, name="mlp_out"),
    "'probs' has no positions": refused(patch_positions, name="probs"),
    "'embed' has no positions; resid_pre": refused(patch_positions, name="embed"),
    "5, 3, 7 tokens, so a column would": refused(patch_positions),
    "another token in each": refused(patch_positions, name="z", heads=True),
    "1 entries for 3 sentences": refused(patch_positions, aligned={"end": [-1]}),
    "places by name": refused(patch_positions, aligned={}),
    "found None": refused(patch_positions, aligned={"end": None}),
    "sentence 1: there is no position 3": refused(patch_positions, aligned={"end": 3}),
    "at least one": refused(patch_positions, aligned={"end": [[], 0, 0]}),
    "This trace was made with edits": lambda: ablate_heads(edited(), METRIC),
    "made with edits, but this": refused(patch_heads, edited),
    "was made with edits": refused(path_patching, edited, receivers=[("query", 1, 0)]),
    "made with edits": refused(attribution_patching, edited),
    "made with edit": lambda: causal_tracing(edited(), 0, METRIC),
    "with edits": lambda: knocked({"a": (-1, 0)}, edited()),
    "2 answers for 3 sentences": lambda: logit_difference(RIGHT[:2], 4)(pair(gpt2())[0]),
    "right=True": lambda: logit_difference([True, 2, 3], 4),
    "answer=41": lambda: logit_difference([1, 2, 41], 4)(pair(gpt2())[0]),
    "not a single head": refused(path_patching, receivers=[("query", 1, 0)], senders=[("z", 0)]),
    r"receivers: .*not one of them": refused(path_patching, receivers=[("probs", 1, 0)]),
    "at least one point": refused(path_patching, receivers=[]),
    "same length": refused(path_patching, short, receivers=[("query", 1, 0)]),
    "kv_head 2": lambda: path_patching(*pair(grouped()), METRIC, receivers=[("key", 1, 2)]),
    "probs has no layers or no positions": refused(attribution_patching, quantities=("probs",)),
    "mlp_gate: the MLP of": refused(attribution_patching, quantities=("mlp_gate",)),
    "at='both'": lambda: attribution_patching(*pair(gpt2()), METRIC, at="both"),
    "one number for each": refused(attribution_patching, at=lambda logits: logits.sum()),
    "name='z'": lambda: traced(name="z"),
    "window=0": lambda: traced(window=0),
    "samples=0": lambda: traced(samples=0),
    "std": lambda: traced(std=-1.0),
    "seed=True": lambda: traced(seed=True),
    "no position 6": lambda: causal_tracing(pair(gpt2())[0], 6, METRIC),
    "blocked: expected pairs": lambda: knocked({}),
    "blocked: expected": lambda: knocked([(0, 1)]),
    "is 3; expected pairs": lambda: knocked({"a": 3}),
    r"is \[\]; expected": lambda: knocked({"a": []}),
    "no key left": lambda: knocked({"a": (0, 0)}),
    "no position 9": lambda: knocked({"a": (-1, 9)}),
    r"\[\[0\], \[1\], \[2\]\] for one of each": lambda: knocked({"a": (-1, [0, 1, 2])}),
    "at least one edit": lambda: gpt2().trace([1, 2], edit={("z", 1): []}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused(words: str) -> None:
    with pytest.raises((EditError, TraceError, TokenizationError), match=words) as error:
        REFUSED[words]()
    assert isinstance(error.value, MinibertError)
