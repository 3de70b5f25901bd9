"""The logit lens reads each layer as the model reads its last one."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import SmallTokenizer
from small_traces import small_trace
from vocabulary_models import (
    ROTARY_CLASSES,
    VOCABULARY_CLASSES,
    both,
    induction_gpt2,
    planted_sequence,
    previous_token_bert,
)

import minibert
from minibert.analysis import lens
from minibert.analysis.lens import POINTS, LogitLens, logit_lens
from minibert.errors import TokenizationError, TraceError
from tests.families import VOCABULARY, sizes
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE

FAMILIES = pytest.mark.parametrize(("family", "name"), VOCABULARY_CLASSES + ROTARY_CLASSES)


def their_head(name: str, theirs: Any) -> Any:
    """What turns a hidden state into logits, of the transformers model's own modules."""
    if name.startswith("Bert"):
        return getattr(theirs.cls, "predictions", theirs.cls)
    if name.startswith("Roberta"):
        return theirs.lm_head
    if name.startswith("Albert"):
        return theirs.predictions
    if name.startswith("Electra"):
        return lambda x: theirs.generator_lm_head(theirs.generator_predictions(x))
    if name.startswith("DistilBert"):
        return lambda x: theirs.vocab_projector(
            theirs.vocab_layer_norm(theirs.activation(theirs.vocab_transform(x)))
        )
    return theirs.lm_head


def their_rotary_lens(theirs: Any, inputs: Any) -> list[torch.Tensor]:
    """The same of a model with rotary positions: its last norm, then its head and soft cap."""
    out = rotary.run(theirs, inputs)
    states = [value for name, value in out.items() if name.startswith("stream")]
    kind = theirs.config.model_type
    norm = {
        "gpt_neox": lambda: theirs.gpt_neox.final_layer_norm,
        "modernbert": lambda: theirs.model.final_norm,
    }.get(kind, lambda: theirs.model.norm)()
    decoder = theirs.decoder if kind == "modernbert" else theirs.get_output_embeddings()
    cap = getattr(theirs.config, "final_logit_softcapping", None)
    with torch.no_grad(), rotary.computing(theirs):
        read = [norm(state) for state in states]
        if kind == "modernbert":
            read = [theirs.head(state) for state in read]
        scaling = getattr(theirs.config, "logits_scaling", 1.0)
        logits = [decoder(state) / scaling for state in read]
    return logits if cap is None else [cap * torch.tanh(each / cap) for each in logits]


def their_lens(name: str, theirs: Any, inputs: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        states = list(theirs(**inputs, output_hidden_states=True).hidden_states)
        if name.startswith("GPT2"):
            # transformers gives the last one behind the last LayerNorm.
            states[:-1] = [theirs.transformer.ln_f(state) for state in states[:-1]]
        return [their_head(name, theirs)(state) for state in states]


def gpt2_trace(tokens: int = 11) -> Any:
    return small_trace(tokens, causal=True, task="causal-lm")


@FAMILIES
@settings(max_examples=2)
@given(chosen=sizes)
def test_logits_equal_transformers_own_head_on_its_hidden_states(
    family: str, name: str, chosen: Any
) -> None:
    theirs, model, inputs, tokens = both(family, name, chosen)
    found = logit_lens(model.trace(tokens), points=("embed", "resid_post"), keep_logits=True)
    read = their_rotary_lens if family in LANGUAGE else partial(their_lens, name)
    expected = torch.stack(read(theirs, inputs))
    assert found.rows == ("embed", *(f"resid_post {n}" for n in range(model.config.n_layers)))
    assert found.logits is not None
    real = tokens.mask
    difference = (found.logits - expected)[:, real].abs().max()
    assert difference <= 1e-9 * max(1.0, expected.abs().max().item())
    probs, ids = expected.softmax(-1).topk(5)
    torch.testing.assert_close(found.probs[:, real], probs[:, real], atol=1e-9, rtol=0)
    assert torch.equal(found.ids[:, real], ids[:, real])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_the_last_row_is_what_the_model_predicts(name: str) -> None:
    family = "gpt2" if name.startswith("GPT2") else "bert"
    _, model, _, tokens = both(family, name)
    trace = model.trace(tokens)
    found = logit_lens(trace, keep_logits=True)
    assert found.logits is not None
    torch.testing.assert_close(found.logits[-1], trace.logits)


@given(token=st.integers(0, VOCABULARY - 1), top=st.integers(1, VOCABULARY))
@settings(max_examples=8)
def test_rank_and_probability_of_a_target_are_its_place_among_all(token: int, top: int) -> None:
    trace = gpt2_trace()
    found = logit_lens(trace, target=token, top=top)
    whole = logit_lens(trace, top=VOCABULARY)
    assert found.target_ranks is not None
    assert found.target_probs is not None
    place = (whole.ids == token).nonzero()[:, -1].reshape(found.target_ranks.shape)
    assert torch.equal(found.target_ranks, place)
    inside = whole.probs.gather(-1, place[..., None])[..., 0]
    torch.testing.assert_close(found.target_probs, inside)
    assert torch.equal(found.ids, whole.ids[..., :top])
    torch.testing.assert_close(whole.probs.sum(-1), torch.ones_like(whole.probs[..., 0]))


def test_each_position_can_have_its_own_target() -> None:
    trace = gpt2_trace()
    following = trace.tokens.ids.roll(-1, 1)
    found = logit_lens(trace, target=following)
    for position in range(11):
        alone = logit_lens(trace, target=int(following[0, position]), positions=position)
        assert found.target_ranks is not None
        assert alone.target_ranks is not None
        assert torch.equal(found.target_ranks[..., position], alone.target_ranks[..., 0])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("until", [None, 1])
def test_chosen_positions_give_the_same_as_all_of_them(causal: bool, until: int | None) -> None:
    task = "causal-lm" if causal else "masked-lm"
    model = small_trace(causal=causal, task=task).model
    trace = model.trace(torch.randint(0, 41, (3, 11)), until=until)
    whole = logit_lens(trace, points=POINTS, keep_logits=True)
    some = logit_lens(trace, points=POINTS, positions=[7, -1, 2], keep_logits=True)
    assert some.positions == ((7, 10, 2),) * 3
    assert whole.logits is not None
    assert some.logits is not None
    torch.testing.assert_close(some.logits, whole.logits[:, :, [7, 10, 2]], atol=2e-5, rtol=1e-5)
    assert len(some.rows) == 1 + 5 * len(trace)


def test_a_trace_that_stopped_early_gives_the_rows_of_its_layers() -> None:
    whole = gpt2_trace()
    early = whole.model.trace(whole.tokens, until=1)
    found = logit_lens(early)
    assert found.rows == ("resid_post 0", "resid_post 1")
    torch.testing.assert_close(found.probs, logit_lens(whole).probs[:2])


def test_no_more_logits_are_held_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = gpt2_trace()
    whole = logit_lens(trace, target=3, keep_logits=True)
    held = []
    trace.model.head.register_forward_hook(lambda _, __, out: held.append(out.numel()))
    monkeypatch.setattr(lens, "_NUMBERS", 4 * VOCABULARY)
    found = logit_lens(trace, target=3, keep_logits=True)
    assert max(held) == 4 * VOCABULARY
    for name in ("ids", "probs", "target_probs", "target_ranks", "logits"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
    assert logit_lens(trace).logits is None


def test_a_planted_copy_is_first_from_the_layer_that_makes_it() -> None:
    ids = planted_sequence()
    second = list(range(41, 81))
    trace = induction_gpt2().trace(ids)
    found = logit_lens(trace, positions=second, target=ids[[p + 1 for p in second]])
    assert found.target_ranks is not None
    assert found.target_probs is not None
    assert (found.target_ranks[1] == 0).all()
    assert (found.target_probs[1] > 5 * found.target_probs[0]).all()
    assert torch.equal(found.ids[1, 0, :, 0], ids[42:82])


def test_a_planted_copy_in_bert_is_found_after_attention() -> None:
    ids = planted_sequence()
    trace = previous_token_bert().trace(ids)
    found = logit_lens(trace, points=("embed", "resid_mid"), target=ids.roll(1))
    assert found.target_ranks is not None
    assert found.target_probs is not None
    assert (found.target_ranks[1, 0, 1:] == 0).all()
    assert (found.target_probs[1, 0, 1:] > 2 * found.target_probs[0, 0, 1:]).all()


def test_strings_are_the_tokens_of_the_ids() -> None:
    model = minibert.load("tiny-bert")
    trace = model.trace("The capital of France is [MASK].")
    found = logit_lens(trace, top=2, target="[SEP]")
    assert model.tokenizer is not None
    for row in range(len(found.rows)):
        for position in range(found.ids.shape[2]):
            ranks = [found.texts(0, rank)[row][position] for rank in range(found.ids.shape[3])]
            ids = found.ids[row, 0, position].tolist()
            assert ranks == [model.tokenizer.string(i) for i in ids]
    assert found.target is not None
    assert (found.target == model.tokenizer.sep_id).all()
    assert "rank 2" in repr(found)


def test_entries_without_a_token_are_not_named() -> None:
    trace = gpt2_trace()
    trace.model.tokenizer = SmallTokenizer()
    trace.model.tokenizer.vocab_size = 29
    found = logit_lens(trace, top=VOCABULARY)
    assert found.ids.shape[-1] == 29
    assert int(found.ids.max()) == 28
    assert (found.probs.sum(-1) < 1).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": VOCABULARY}, TokenizationError, "Token id 41 is outside"),
        ({"target": -1}, TokenizationError, "Token id -1 is outside"),
        ({"target": True}, TokenizationError, "True is no token"),
        ({"target": 1.5}, TokenizationError, "1.5 is no token"),
        ({"target": " Paris"}, TokenizationError, "has no tokenizer"),
        ({"target": [1, 2, 3]}, TokenizationError, "does not fit"),
        ({"target": ["a"] * 11}, TokenizationError, "does not fit"),
        ({"target": [0.5] * 11}, TokenizationError, "expected token ids"),
        ({"target": [99] * 11}, TokenizationError, "Token id 99"),
        ({"positions": 11}, TraceError, "no position 11"),
        ({"positions": [0, -12]}, TraceError, "no position -12"),
        ({"positions": []}, TraceError, "at least one"),
        ({"points": "probs"}, TraceError, "'probs' is no point"),
        ({"points": ()}, TraceError, "points is empty"),
        ({"top": 0}, TraceError, "top=0"),
    ],
)
def test_wrong_requests_are_refused(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        logit_lens(gpt2_trace(), **options)


@pytest.mark.parametrize("task", ["none", "sequence-classification", "token-classification"])
def test_a_model_without_a_vocabulary_head_is_refused(task: str) -> None:
    with pytest.raises(TraceError, match=f"its task is '{task}'"):
        logit_lens(small_trace(task=task, labels=("A", "B", "C"), pooler=True))


def test_electra_s_discriminator_has_no_vocabulary() -> None:
    with pytest.raises(TraceError, match="no logits of tokens"):
        logit_lens(small_trace(family="electra", task="pre-training"))


def test_text_that_is_no_single_token_is_refused() -> None:
    model = minibert.load("tiny-bert")
    trace = model.trace("leaves fall in autumn")
    with pytest.raises(TokenizationError, match="tokens of"):
        logit_lens(trace, target="the capital of France")
    with pytest.raises(TokenizationError, match="is no token"):
        logit_lens(trace, target="\N{SNOWMAN}")
    piece = next(i for i in range(999) if model.tokenizer.raw(i).startswith("##"))
    found = logit_lens(trace, target=model.tokenizer.raw(piece))
    assert isinstance(found, LogitLens)
    assert found.target is not None
    assert (found.target == piece).all()
