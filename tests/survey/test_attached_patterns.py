"""Patterns and distances of the heads of a live transformers model, against its own attentions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import minibert
from minibert.analysis import repeated_ids
from minibert.attached.call import Call, Mask
from minibert.errors import SurveyError, TokenizationError
from minibert.survey.distances import head_distances
from minibert.survey.document_rows import AttachedRows
from minibert.survey.live import AttachedStack
from minibert.survey.pattern_table import PATTERNS
from minibert.survey.patterns import patterns, patterns_of_attention
from tests.survey.test_attached import EMBEDDED, MODELS, bart, gpt2, gpt_oss, tokenizer_of
from tests.survey.test_distances import published
from tests.survey.test_windowed import BACK, gemma3, modernbert
from tests.survey.test_windowed import TEXTS as WINDOWED

PAIR = ("the horse ran home, and the horse slept.", "the old house saw the horse.")
TEXTS = ["the wind turned, and the wind was cold.", "it was unthinkable.", PAIR]
DRAWS = repeated_ids(200, length=11, draws=3, low=100)


def compared(one: Any, other: Any, accuracy: float) -> None:
    """Scores, baselines, intervals and documents of two results."""
    assert one.documents == other.documents
    for table in ("score", "baseline", "low", "high"):
        for name in PATTERNS:
            found, expected = getattr(one, table)[name], getattr(other, table)[name]
            np.testing.assert_allclose(found, expected, atol=accuracy, err_msg=f"{table} {name}")


@pytest.mark.parametrize("name", MODELS)
def test_an_embedded_model_read_by_transformers_has_the_results_of_the_loaded_one(
    name: str,
) -> None:
    live = MODELS[name].from_pretrained(EMBEDDED / name, dtype=torch.float32).eval()
    attached, loaded = minibert.attach(live, tokenizer=tokenizer_of(name)), minibert.load(name)
    # The last text is longer than the model.
    texts = [*TEXTS, "the boat turned slowly near the river. " * 40]
    theirs, ours = patterns(attached, texts), patterns(loaded, texts)
    compared(theirs, ours, 2e-5)
    assert theirs.named() == ours.named()
    assert theirs.documents["induction"] == 100
    one, other = head_distances(attached, texts), head_distances(loaded, texts)
    assert (one.rows, one.documents) == (other.rows, other.documents)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-5)
    np.testing.assert_allclose(one.standard_error, other.standard_error, atol=1e-5)


def attentions(live: Any, ids: torch.Tensor, stack: str) -> torch.Tensor:
    """(layer, head, query, key) as transformers gives them."""
    names = {"encoder": "encoder_attentions", "decoder.self": "decoder_attentions"}
    given = {"decoder_input_ids": ids} if stack in names else {}
    with torch.no_grad():
        out = live(ids, output_attentions=True, **given)
    return torch.cat(out[names.get(stack, "attentions")]).double()


@pytest.mark.parametrize(
    ("build", "tokenizer", "stack"),
    [(bart, "tiny-bert", "encoder"), (bart, "tiny-bert", "decoder.self"), (gpt2, "tiny-gpt2", "")],
)
def test_scores_are_those_of_the_attentions_that_transformers_gives(
    build: Any, tokenizer: str, stack: str
) -> None:
    live, vocabulary = build(), tokenizer_of(tokenizer)
    attached, texts = minibert.attach(live, tokenizer=vocabulary), TEXTS[:2]
    found = patterns(attached, texts, repeated=DRAWS, stack=stack or None)
    near = head_distances(attached, texts, rows_per_document=None, stack=stack or None)
    live.set_attn_implementation("eager")
    sums, rows = 0, 0
    for of_texts, ids in (
        ("corpus", [vocabulary(one, return_tensors="pt").input_ids for one in texts]),
        ("repeated", list(DRAWS[:, None])),
    ):
        probs = [attentions(live, one, stack) for one in ids]
        strings = [vocabulary.convert_ids_to_tokens(one[0].tolist()) for one in ids]
        strings = [[one.replace("Ġ", " ") for one in row] for row in strings]
        expected = patterns_of_attention(probs, strings, causal=stack != "encoder")
        for name, pattern in PATTERNS.items():
            # The delimiter of a causal vocabulary is no mark to somebody who has only strings.
            if pattern.texts == of_texts and (name != "delimiter" or tokenizer == "tiny-bert"):
                for table in ("score", "baseline", "low"):
                    np.testing.assert_allclose(
                        getattr(found, table)[name],
                        getattr(expected, table)[name],
                        atol=1e-5,
                        err_msg=f"{table} {name}",
                    )
        if of_texts == "corpus":
            flat = [one.flatten(0, 1).numpy() for one in probs]
            sums = sum(published(one) for one in flat)
            rows = sum(one.shape[1] for one in flat)
    np.testing.assert_allclose(near.mean, sums / rows, atol=1e-5)
    assert near.rows == rows


@pytest.mark.parametrize("build", [gemma3, modernbert])
def test_windows_of_a_live_model_are_those_of_the_loaded_one(build: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    live = build().double().eval()
    tokenizer = tokenizer_of("tiny-gpt2" if build is gemma3 else "tiny-bert")
    for one in (live, tokenizer):
        one.save_pretrained(tmp_path)
    loaded = minibert.load(tmp_path, dtype=torch.float64)
    theirs = patterns(minibert.attach(live, tokenizer=tokenizer), WINDOWED, repeated=DRAWS)
    compared(theirs, patterns(loaded, WINDOWED, repeated=DRAWS), 1e-6)
    name = "gemma3" if build is gemma3 else "modernbert"
    # Both copies of a sequence of 11 are further away than a window of 3 or 4 sees.
    for layer, back in enumerate(BACK[name]):
        assert np.isnan(theirs.score["duplicate"][layer]).all() == (back is not None)


def test_sinks_and_windows_of_a_model_that_load_does_not_know_are_counted_by_hand() -> None:
    live, tokenizer = gpt_oss(attn_implementation="eager"), tokenizer_of("tiny-gpt2")
    texts = ["the horse ran away , and a boat turned slowly near the river . it was dark there"]
    attached = minibert.attach(live, tokenizer=tokenizer)
    found = patterns(attached, texts, repeated=DRAWS)
    ids = tokenizer(texts[0], return_tensors="pt").input_ids
    probs = attentions(live, ids, "").numpy()
    n = ids.shape[1]
    np.testing.assert_allclose(
        found.score["previous"], np.trace(probs, -1, 2, 3) / (n - 1), atol=1e-6
    )
    # Layer 0 sees 8 keys: only the first rows see the first token, and count.
    np.testing.assert_allclose(found.score["first"][0], probs[0, :, 1:8, 0].mean(-1), atol=1e-6)
    np.testing.assert_allclose(found.score["first"][1], probs[1, :, 1:, 0].mean(-1), atol=1e-6)


def test_what_cannot_be_measured_is_refused() -> None:
    tokenizer = tokenizer_of("tiny-bert")
    attached = minibert.attach(bart(), tokenizer=tokenizer)
    for measure in (patterns, head_distances):
        with pytest.raises(SurveyError, match="several stacks; name one with stack="):
            measure(attached, TEXTS)
        with pytest.raises(SurveyError, match="has one stack"):
            measure(minibert.load(), TEXTS, stack="encoder")
        with pytest.raises(SurveyError, match="longest=7: expected from 8 to 48"):
            measure(attached, TEXTS, stack="encoder", longest=7)
    with pytest.raises(TokenizationError, match="50 tokens are more than the 48 positions"):
        patterns(attached, [torch.arange(50)], stack="encoder", repeated=DRAWS)
    with pytest.raises(TokenizationError, match="outside the vocabulary of BartModel"):
        patterns(attached, [[7, 6656]], stack="encoder", repeated=DRAWS)
    with pytest.raises(TokenizationError, match="48 positions, fewer than the repeated sequences"):
        patterns(attached, TEXTS, stack="encoder")


def test_heads_of_a_layer_that_see_different_keys_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_each_head(call: Call, rows: Any = slice(None)) -> Mask:
        n = call.query.shape[2]
        allowed = torch.ones(n, n, dtype=torch.bool).tril().expand(1, 3, n, n).clone()
        allowed[:, 1, 1:, 0] = False
        return Mask(allowed[:, :, rows])

    attached = minibert.attach(gpt2(), tokenizer=tokenizer_of("tiny-gpt2"))
    stack = AttachedStack(attached, None, None)
    rows = AttachedRows(stack, stack.tokenizer(TEXTS[0]))
    assert rows.seen() == [(None, [0, 1])]
    monkeypatch.setattr(Call, "mask_rows", of_each_head)
    with pytest.raises(SurveyError, match="layers 0: heads of the layer see different keys"):
        rows.seen()


def test_a_long_text_is_cut_into_parts_of_longest_tokens() -> None:
    live, tokenizer = bart(), AutoTokenizer.from_pretrained(EMBEDDED / "tiny-bert")
    attached = minibert.attach(live, tokenizer=tokenizer)
    text = "the boat turned slowly near the river."
    ids = tokenizer(text).input_ids
    # 8 tokens of a part are 6 of the text, between [CLS] and [SEP].
    inside = np.array_split(ids[1:-1], -(-(len(ids) - 2) // 6))
    parts = [torch.tensor([[ids[0], *part, ids[-1]]]) for part in inside]
    assert len(parts) > 1
    found = head_distances(attached, [text], rows_per_document=None, stack="encoder", longest=8)
    live.set_attn_implementation("eager")
    probs = [attentions(live, part, "encoder").flatten(0, 1).numpy() for part in parts]
    rows = sum(part.shape[1] for part in parts)
    np.testing.assert_allclose(found.mean, sum(map(published, probs)) / rows, atol=1e-5)
