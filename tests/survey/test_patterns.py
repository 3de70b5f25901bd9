"""Heads named by what they do: the formulas cell by cell, planted, real and live heads."""

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.analysis import repeated_ids
from minibert.analysis.patterns import PATTERNS, Marks
from minibert.attached.call import Call, Mask
from minibert.errors import AttentionError, SurveyError, TokenizationError
from minibert.survey import patterns as module
from minibert.survey.document_rows import AttachedRows
from minibert.survey.live import AttachedStack
from minibert.survey.patterns import patterns
from minibert.survey.run import survey
from tests.survey import oracle
from tests.survey.given_attention import marks_of, patterns_of_attention
from tests.survey.live_models import (
    BACK,
    MODELS,
    attentions,
    bart,
    embedded,
    gemma3,
    gpt2,
    gpt_oss,
    modernbert,
    seen_by,
    tokenizer_of,
)

STORE, RABBIT = "bert-base-uncased__store", "bert-base-uncased__rabbit"
PAIR = (
    "a horse ran home, and the horse, no hedgehog, slept.",
    "the house was old, and he saw the horse.",
)
TEXTS = [PAIR, "the wind turned, and the wind was cold.", "it was unthinkable."]


def real(*names, causal=False):
    files = [np.load(data_path("refs", f"{name}.npz"), allow_pickle=False) for name in names]
    attention = [torch.from_numpy(file["attn"]).double() for file in files]
    return patterns_of_attention(attention, [list(f["tokens"]) for f in files], causal=causal)


def ranks(found, pattern, *heads):
    """The place of each head among all, 1 for the highest score."""
    scores = found.score[pattern]
    return [1 + int((scores > scores[head]).sum()) for head in heads]


def test_published_heads_of_bert_are_the_highest_or_close_to_it():
    store, rabbit = real(STORE), real(RABBIT)
    # Of 144 heads. Clark et al. 2019, section 3.1; 0-2 is Vig's, and 0-3 nobody's.
    previous = [(0, 2), (1, 4), (3, 5), (6, 11), (7, 4)]
    assert sorted(ranks(store, "previous", *previous)) == [1, 3, 4, 5, 6]
    assert sorted(ranks(rabbit, "previous", *previous)) == [1, 2, 3, 5, 6]
    after = [(0, 10), (1, 1), (2, 0), (2, 9), (5, 9)]
    assert sorted(ranks(store, "next", *after)) == [1, 2, 3, 4, 5]
    # Here 3-9 comes before 1-1.
    assert sorted(ranks(rabbit, "next", *after)) == [1, 2, 3, 4, 6]
    # Vig 2019, on his own sentences.
    assert ranks(store, "predictive", (2, 1)) == [1]
    assert ranks(store, "same_word_other_sentence", (10, 10)) == [1]
    assert ranks(store, "bag_of_words", (0, 0)) == [1]
    assert ranks(rabbit, "bag_of_words", (0, 0)) == [2]
    assert ranks(store, "delimiter", (7, 3)) == [2]
    # "Identical or related words": on these sentences others look more at identical ones.
    assert ranks(store, "same_word", (2, 6)) == [4]
    assert ranks(rabbit, "same_word", (2, 6)) == [3]


def test_published_heads_of_gpt2_are_the_highest():
    apples = real("gpt2__apples_qk", causal=True)
    assert ranks(apples, "previous", (4, 11), (2, 2)) == [1, 2]
    # 5-8, which nobody names, comes between them; there is one row to see it by.
    assert ranks(apples, "induction", (5, 5), (5, 1)) == [1, 3]
    assert sorted(ranks(apples, "duplicate", (0, 1), (0, 5))) == [1, 2]
    assert not apples.documents["next"]
    assert apples.best("next") == []


def by_cells(probs, tokens):
    """By pattern the score of each head, of probs (head, query, key): over the rows that count."""
    _, place, texts = oracle.described(tokens)
    query, key = np.indices(probs.shape[1:])
    cells = {name: one & rows[:, None] for name, (one, rows) in oracle.cells_of(tokens).items()}
    plain = (texts >= 0)[:, None]
    keys = {name: cells[f"to_{name}"] & plain for name in ("next", "previous", "first")}
    keys["delimiter"] = cells["rest_to_sep"]
    keys["predictive"] = (place[query] == place[key]) & (query != key) & plain
    keys["same_word_other_sentence"] = cells["to_same_word_other_text"]
    keys |= {name: cells[f"to_{name}"] for name in ("same_word", "duplicate", "induction")}
    # The key is a word; that of the measure is whatever followed.
    keys["induction"] = keys["induction"] & plain.T
    found = {name: (probs * one).sum(-1)[:, one.any(1)].mean(-1) for name, one in keys.items()}
    own = (texts[query] == texts[key]) & plain
    even = own / np.maximum(own.sum(1), 1)[:, None]
    found["bag_of_words"] = np.minimum(probs, even).sum(-1)[:, own.any(1)].mean(-1)
    return found


def test_every_score_is_the_sum_over_its_cells():
    first, second = "a straw ##berry a cat ##s", "straw ##berry cat a cat ##s ."
    text = f"[CLS] {first} [SEP] {second} [SEP]".split()
    probs = torch.randn(2, 3, 16, 16, dtype=torch.float64).mul(2).softmax(-1)
    found = patterns_of_attention([probs], [text], causal=False)
    for layer in range(2):
        expected = by_cells(probs[layer].numpy(), text)
        assert expected.keys() == PATTERNS.keys()
        for name, score in expected.items():
            assert found.score[name][layer] == pytest.approx(score, rel=1e-12), name


def test_rows_in_blocks_give_the_same(monkeypatch):
    model = minibert.load()
    few = repeated_ids(200, length=7, draws=2, low=100)
    whole = patterns(model, TEXTS, repeated=few)
    # Some four rows of the longest text at once.
    monkeypatch.setattr(module, "NUMBERS", 4 * model.config.n_heads * 20)
    pieces = patterns(model, TEXTS, repeated=few)
    for name in PATTERNS:
        np.testing.assert_allclose(pieces.score[name], whole.score[name], atol=1e-6)
        np.testing.assert_allclose(pieces.baseline[name], whole.baseline[name], atol=1e-6)
        np.testing.assert_allclose(pieces.low[name], whole.low[name], atol=1e-6)


def test_a_head_of_fixed_offsets_is_explained_by_its_baseline():
    text = ["[CLS]", *["a", "b", "##c", "d", "e", "f", "g", "##h", "i"], "[SEP]"]
    back = torch.eye(11, dtype=torch.float64).roll(-1, 1)
    pieces = torch.eye(11, dtype=torch.float64)
    pieces[[2, 3, 7, 8]] = pieces[[3, 2, 8, 7]]
    found = patterns_of_attention([torch.stack([back, pieces])[None]], [text], causal=False)
    # Of two pieces one is before the other, so half of the rows find what they look for.
    assert found.score["predictive"].tolist() == [[0.5, 1.0]]
    assert found.baseline["predictive"].tolist() == [[0.5, 0.0]]
    assert found.named() == {(0, 0): ("previous",), (0, 1): ("predictive",)}


def test_what_chance_gives_a_bag_of_words_is_what_random_rows_score():
    text = ["[CLS]", *"abcdefgh", "[SEP]"]
    generator = np.random.default_rng(0)
    rows = generator.dirichlet(np.ones(8), size=(1, 2000, 8))
    probs = torch.zeros(1, 2000, 10, 10, dtype=torch.float64)
    probs[:, :, 1:9, 1:9] = torch.from_numpy(rows)
    probs[:, :, [0, 9], 0] = 1
    found = patterns_of_attention([probs], [text], causal=False)
    chance = found.baseline["bag_of_words"]
    assert (chance == chance[0, 0]).all()
    assert found.score["bag_of_words"].mean() == pytest.approx(chance[0, 0], abs=2e-3)


def test_examples_are_the_rows_that_follow_a_pattern_most():
    found = real(STORE)
    best, *_ = found.examples("predictive", 2, 1)
    assert best[1:5] == (15, "straw", 16, "berries")
    attention = np.load(data_path("refs", f"{STORE}.npz"))["attn"]
    assert best.weight == pytest.approx(attention[2, 1, 15, 16])
    after = found.examples("next", 2, 0)
    assert len(after) == 3
    assert [e.key_position - e.query_position for e in after] == [1, 1, 1]
    diagonal = [attention[2, 0, i, i + 1] for i in range(18) if i not in (0, 7)]
    assert [e.weight for e in after] == pytest.approx(sorted(diagonal)[:-4:-1])


def test_one_document_names_by_score_and_several_by_the_interval():
    text = ["[CLS]", *"abcd", "[SEP]"]

    def looks_ahead(share):
        ahead = torch.eye(6, dtype=torch.float64).roll(1, 1)
        return (share * ahead + (1 - share) * torch.eye(6))[None, None]

    def of(*shares):
        attention = [looks_ahead(share) for share in shares]
        return patterns_of_attention(attention, [text] * len(shares), causal=False)

    assert "next" in of(0.6).named()[0, 0]
    assert np.isnan(of(0.6).low["next"]).all()
    assert "next" in of(0.69, 0.7, 0.71).named()[0, 0]
    # The mean is the same, and two of three documents could be chance.
    assert (0, 0) not in of(0.4, 0.7, 1.0).named()
    assert of(0.4, 0.7, 1.0).score["next"][0, 0] == pytest.approx(0.7)


def test_words_are_known_from_strings_and_from_tokens_alike():
    model = minibert.load()
    tokens = model.tokenize(*PAIR)
    assert any("##" in string for string in tokens.raw[0]), "the pair shows no piece of a word"
    assert model.tokenizer is not None
    ours = Marks.of_tokens(tokens, [model.tokenizer.sep_id], causal=False)
    theirs = marks_of(tokens.raw[0], causal=False)
    ids = Marks.of_tokens(
        minibert.Tokens.from_ids(tokens.ids, tokenizer=model.tokenizer),
        [model.tokenizer.sep_id],
        causal=False,
    )
    for marks in (theirs, ids):
        for name in ("plain", "delimiter", "sentence", "spelling", "word"):
            one, two = getattr(ours, name), getattr(marks, name)
            # Numbers may differ; what is the same may not.
            assert torch.equal(one[:, None] == one, two[:, None] == two), name
    for sign in (" ", "Ġ", "▁"):
        strings = ["Data", f"{sign}em", "powers", f"{sign}us", ",", "It", "'s"]
        marks = marks_of(strings, causal=True)
        assert marks.word.tolist() == [0, 1, 1, 2, 3, 4, 5]


def test_patterns_and_heads_that_there_are_not_are_refused():
    found = patterns_of_attention([torch.full((1, 2, 3, 3), 1 / 3)], ["abc"], causal=False)
    with pytest.raises(
        AttentionError, match=r"'nxt' is not a pattern of heads .*'next'.*; there are next"
    ):
        found.best("nxt")
    with pytest.raises(AttentionError, match="no head 1-0: expected a layer from 0 to 0"):
        found.head("next", 1, 0)


ALONE = [text for text in TEXTS if isinstance(text, str)]
DRAWS = repeated_ids(200, length=11, draws=3, low=100)


@pytest.mark.parametrize("name", [*MODELS, "gemma3", "modernbert"])
def test_a_live_model_has_the_results_of_the_same_weights_loaded(name, tmp_path):
    windows = name not in MODELS
    live = {"gemma3": gemma3, "modernbert": modernbert}[name]() if windows else embedded(name)
    words = tokenizer_of({"gemma3": "tiny-gpt2", "modernbert": "tiny-bert"}.get(name, name))
    # Only tiny-bert draws its own hundred sequences.
    loaded = minibert.load(name) if not windows else None
    draws = None if name == "tiny-bert" else DRAWS
    # The last text is longer than the model.
    texts = [*TEXTS, "the boat turned slowly near the river. " * 40]
    if windows:
        live, texts = live.double(), ALONE
        for one in (live, words):
            one.save_pretrained(tmp_path)
        loaded = minibert.load(tmp_path, dtype=torch.float64)
    attached = minibert.attach(live, tokenizer=words)
    theirs, ours = (patterns(one, texts, repeated=draws) for one in (attached, loaded))
    assert theirs.documents == ours.documents
    for table in ("score", "baseline", "low", "high"):
        for one in PATTERNS:
            found, expected = (getattr(each, table)[one] for each in (theirs, ours))
            np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=f"{table} {one}")
    assert theirs.named() == ours.named()
    assert theirs.documents["induction"] == (100 if draws is None else 3)
    # Both copies of a sequence of 11 are further away than a window of 3 or 4 sees.
    for layer, back in enumerate(BACK.get(name, ())):
        assert np.isnan(theirs.score["duplicate"][layer]).all() == (back is not None)


@pytest.mark.parametrize(
    ("build", "tokenizer", "stack"),
    [
        (bart, "tiny-bert", "encoder"),
        (bart, "tiny-bert", "decoder.self"),
        (gpt2, "tiny-gpt2", None),
    ],
)
def test_scores_are_those_of_the_attentions_that_transformers_gives(build, tokenizer, stack):
    live, words = build(), tokenizer_of(tokenizer)
    attached = minibert.attach(live, tokenizer=words)
    found = patterns(attached, ALONE, repeated=DRAWS, stack=stack)
    live.set_attn_implementation("eager")
    for of_texts, ids in (
        ("corpus", [words(one, return_tensors="pt").input_ids for one in ALONE]),
        ("repeated", list(DRAWS[:, None])),
    ):
        probs = [attentions(live, one, stack) for one in ids]
        strings = [words.convert_ids_to_tokens(one[0].tolist()) for one in ids]
        expected = patterns_of_attention(probs, strings, causal=stack != "encoder")
        for name, pattern in PATTERNS.items():
            # The delimiter of a causal vocabulary is not a mark to somebody who has only strings.
            if pattern.texts == of_texts and (name != "delimiter" or tokenizer == "tiny-bert"):
                for table in ("score", "baseline", "low"):
                    one, other = (getattr(each, table)[name] for each in (found, expected))
                    np.testing.assert_allclose(one, other, atol=1e-5, err_msg=f"{table} {name}")


@pytest.mark.parametrize("name", ["gemma3", "modernbert", "gpt_oss"])
def test_rows_count_where_a_layer_sees_a_key_that_the_pattern_means(name):
    live = {"gemma3": gemma3, "modernbert": modernbert, "gpt_oss": gpt_oss}[name]()
    live.set_attn_implementation("eager")
    words = tokenizer_of("tiny-bert" if name == "modernbert" else "tiny-gpt2")
    text = "the horse ran away , and a boat turned slowly near the river . the horse slept ."
    found = patterns(minibert.attach(live, tokenizer=words), [text], repeated=DRAWS)
    ids = words(text, return_tensors="pt").input_ids
    probs = attentions(live, ids, None).numpy()
    n = probs.shape[-1]
    plain = ~np.isin(words.convert_ids_to_tokens(ids[0].tolist()), ["[CLS]", "[SEP]"])
    query, key = np.indices((n, n))
    for layer, of_layer in enumerate(probs):
        if name == "gpt_oss":
            seen = (key <= query) & (key > query - (n if layer else 8))
        else:
            seen = seen_by(name, layer, n)
        cells = {"previous": key == query - 1, "first": (key == 0) & (query > 0)}
        for pattern, means in cells.items():
            of = means & plain[query] & seen
            rows = of.any(1)
            score = (of_layer * of).sum(-1)[:, rows].mean(-1)
            np.testing.assert_allclose(found.score[pattern][layer], score, atol=1e-6)
            even = (of.sum(1) / seen.sum(1))[rows].mean()
            np.testing.assert_allclose(found.baseline[pattern][layer], even, atol=1e-6)


def test_what_cannot_be_measured_of_a_live_model_is_refused():
    attached = minibert.attach(bart(), tokenizer=tokenizer_of("tiny-bert"))
    with pytest.raises(SurveyError, match="several stacks; name one with stack="):
        patterns(attached, ALONE)
    with pytest.raises(SurveyError, match="has one stack"):
        patterns(minibert.load(), ALONE, stack="encoder")
    with pytest.raises(SurveyError, match="longest=7: expected from 8 to 48"):
        patterns(attached, ALONE, stack="encoder", longest=7)
    for given, message in (
        (torch.arange(50), "50 tokens are more than the 48 positions"),
        ([7, 6656], "outside the vocabulary of BartModel"),
    ):
        with pytest.raises(TokenizationError, match=message):
            patterns(attached, [given], stack="encoder", repeated=DRAWS)
    with pytest.raises(TokenizationError, match="48 positions, fewer than the repeated sequences"):
        patterns(attached, ALONE, stack="encoder")


def test_heads_of_a_layer_that_see_different_keys_are_refused(monkeypatch):
    def of_each_head(call, rows=slice(None)):
        n = call.query.shape[2]
        allowed = torch.ones(n, n, dtype=torch.bool).tril().expand(1, 3, n, n).clone()
        allowed[:, 1, 1:, 0] = False
        return Mask(allowed[:, :, rows])

    attached = minibert.attach(gpt2(), tokenizer=tokenizer_of("tiny-gpt2"))
    stack = AttachedStack(attached, None, None)
    rows = AttachedRows(stack, stack.tokenizer(ALONE[0]))
    assert rows.seen() == [(None, [0, 1])]
    monkeypatch.setattr(Call, "mask_rows", of_each_head)
    with pytest.raises(SurveyError, match="layers 0: heads of the layer see different keys"):
        rows.seen()


def test_no_example_is_a_text_of_signs(tmp_path):
    given = ["* " * 40, " ".join(PAIR), "... !!! " * 10, PAIR[0], "- = " * 20, PAIR[1]]
    model = minibert.load()
    found = patterns(model, given, repeated=DRAWS)
    whole = survey(model, given, output=tmp_path / "survey")
    places = list(np.ndindex(model.config.n_layers, model.config.n_heads))
    read = [name for name, one in PATTERNS.items() if one.texts == "corpus"]
    rows = [one for name in read for at in places for one in found.examples(name, *at)]
    best = [one for name in whole.names for at in places for one in whole.examples(name, *at)]
    for examples in (rows, best):
        assert {one.document for one in examples} == {"1", "3", "5"}
