"""What a task head says in words is what transformers' pipelines, or its logits, say."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from vocabularies import ROBERTA_MARKS, byte_level, word_piece

import minibert
from tests.families import CONFIGS

TEXTS = ["The quick brown fox jumps.", "The lazy dog", "strawberries were fresh, weren't they?"]
LABELS = {0: "sad", 1: "glad", 2: "neither"}


def labels(count: int) -> dict[str, Any]:
    return {"id2label": {index: LABELS[index] for index in range(count)}}


def folder_of(path: Path, family: str, name: str, **options: Any) -> Path:
    """A tiny model of random weights with a tokenizer, as transformers saves it."""
    if family in ("gpt2", "roberta"):
        byte_level(path, ROBERTA_MARKS if family == "roberta" else ["<|endoftext|>"])
    else:
        word_piece(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, config=config_of(family, 9))
    tokenizer.save_pretrained(path)
    torch.manual_seed(5)
    model = getattr(transformers, name)(config_of(family, len(tokenizer), **options))
    model.save_pretrained(path)
    return path


def config_of(family: str, vocab_size: int, **options: Any) -> Any:
    sizes = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = getattr(transformers, CONFIGS[family])(
        vocab_size=vocab_size, initializer_range=0.4, **sizes, **options
    )
    for name in ("intermediate_size", "n_inner", "hidden_dim"):
        if hasattr(config, name):
            setattr(config, name, 23)
    if family == "gpt2":
        config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    return config


def logits(folder: Path, name: str, *texts: Any) -> Any:
    """What the transformers model gives for each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, name).from_pretrained(folder).eval()
    with torch.no_grad():
        kinds = {"return_token_type_ids": True} if name.startswith("Albert") else {}
        return model(**tokenizer(*texts, return_tensors="pt", **kinds))


def assert_choices(ours: Any, names: list[Any], scores: list[float], by: str = "label") -> None:
    assert [getattr(choice, by) for choice in ours.choices] == names
    assert [choice.probability for choice in ours.choices] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "name", "mark"),
    [
        ("bert", "BertForMaskedLM", "[MASK]"),
        ("bert", "BertForPreTraining", "[MASK]"),
        ("roberta", "RobertaForMaskedLM", "<mask>"),
    ],
)
def test_masks_are_filled_with_the_best_tokens(
    family: str, name: str, mark: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, family, name)
    texts = [f"The quick {mark} fox.", f"{mark} dog and the lazy {mark}, weren't they"]
    predictions = minibert.load(folder).predict(texts, top=7)
    assert [prediction.sentence for prediction in predictions] == [0, 1, 1]
    assert {prediction.question for prediction in predictions} == {"masked token"}
    output = [logits(folder, name, text) for text in texts]
    found = [one.get("logits", one.get("prediction_logits"))[0] for one in output]
    for prediction in predictions:
        row = found[prediction.sentence][prediction.position].softmax(-1).topk(7)
        assert_choices(prediction, row.indices.tolist(), row.values.tolist(), "id")


def test_the_next_token_follows_the_last_real_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gpt2", "GPT2LMHeadModel")
    model = minibert.load(folder)
    for text, prediction in zip(TEXTS, model.predict(TEXTS, top=3), strict=True):
        row = logits(folder, "GPT2LMHeadModel", text).logits[0]
        assert prediction.position == len(row) - 1
        values, ids = row[-1].softmax(-1).topk(3)
        names = [model.tokenizer.string(i) for i in ids.tolist()]
        assert_choices(prediction, names, values.tolist())


CLASSIFIERS = (
    ("bert", 1, None), ("roberta", 2, None), ("distilbert", 3, None), ("electra", 2, None),
    ("albert", 3, None), ("gpt2", 2, None), ("bert", 3, "regression"),
    ("bert", 3, "multi_label_classification"),
)  # fmt: skip


@pytest.mark.parametrize(("family", "n_labels", "kind"), CLASSIFIERS)
def test_texts_are_classified_as_the_pipeline_classifies_them(
    family: str, n_labels: int, kind: str | None, tmp_path: Path
) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForSequenceClassification"
    folder = folder_of(tmp_path, family, name, problem_type=kind, **labels(n_labels))
    theirs = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    for prediction, rows in zip(minibert.load(folder).predict(TEXTS), theirs(TEXTS), strict=True):
        assert prediction.position is None
        assert [choice.label for choice in prediction.choices] == [row["label"] for row in rows]
        regression = kind == "regression"
        for choice, row in zip(prediction.choices, rows, strict=True):
            said = choice.value if regression else choice.probability
            assert said == pytest.approx(row["score"], abs=1e-5)
            assert math.isnan(choice.probability) == regression == (choice.value is not None)


@pytest.mark.parametrize(("family", "kind"), [("bert", None), ("gpt2", None), ("bert", "multi")])
def test_tokens_are_classified_as_transformers_classifies_them(
    family: str, kind: str | None, tmp_path: Path
) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForTokenClassification"
    several = {"problem_type": "multi_label_classification"} if kind else {}
    folder = folder_of(tmp_path, family, name, **several, **labels(3))
    special = transformers.AutoTokenizer.from_pretrained(folder).all_special_ids
    model = minibert.load(folder)
    for text in TEXTS:
        rows = logits(folder, name, text).logits[0]
        scores = rows.sigmoid() if kind else rows.softmax(-1)
        ids = model.tokenize(text).ids[0].tolist()
        ours = model.predict(text)
        expected = [place for place, one in enumerate(ids) if one not in special]
        assert [prediction.position for prediction in ours] == expected
        for prediction in ours:
            best = scores[prediction.position].topk(3)
            assert_choices(prediction, best.indices.tolist(), best.values.tolist(), "id")


@pytest.mark.parametrize(
    ("family", "name", "n_labels"),
    [
        ("bert", "BertForNextSentencePrediction", 2),
        ("bert", "BertForPreTraining", 2),
        ("albert", "AlbertForPreTraining", 3),
    ],
)
def test_the_next_sentence_is_judged_as_transformers_judges_it(
    family: str, name: str, n_labels: int, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, family, name, **labels(n_labels))
    texts = "The quick [MASK] fox", "lazy dogs"
    output = logits(folder, name, *texts)
    *masks, last = minibert.load(folder).predict(*texts)
    assert [one.question for one in masks] == ["masked token"] * name.endswith("PreTraining")
    key = next(k for k in ("seq_relationship_logits", "sop_logits", "logits") if k in output)
    got = {choice.id: choice.probability for choice in last.choices}
    assert got == pytest.approx(dict(enumerate(output[key][0].softmax(-1).tolist())), abs=1e-5)
    if not masks:
        # transformers: 0 says that the second text follows the first.
        assert {c.id: c.label for c in last.choices} == {0: "follows", 1: "does not follow"}


def test_replaced_tokens_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "electra", "ElectraForPreTraining")
    predictions = minibert.load(folder).predict(TEXTS)
    for sentence, text in enumerate(TEXTS):
        expected = logits(folder, "ElectraForPreTraining", text).logits[0].sigmoid()
        rows = [p.choices for p in predictions if p.sentence == sentence]
        got = [{c.label: c.probability for c in row}["replaced"] for row in rows]
        assert got == pytest.approx(expected.tolist(), abs=1e-5)
        assert all(row[0].probability >= row[1].probability for row in rows)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_answer_is_the_best_span_of_the_second_text(family: str, tmp_path: Path) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForQuestionAnswering"
    folder = folder_of(tmp_path, family, name)
    question, context = "Who jumps?", "The quick brown fox jumps over the lazy dog, weren't they?"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    read = tokenizer(question, context, return_offsets_mapping=True)
    inside = [i for i, which in enumerate(read.sequence_ids()) if which == 1]
    output = logits(folder, name, question, context)
    start, end = output.start_logits[0].softmax(-1), output.end_logits[0].softmax(-1)
    spans = [(a, b) for a in inside for b in inside if a <= b < a + 30]
    ranked = sorted(spans, key=lambda span: -(start[span[0]] * end[span[1]]).item())[:5]
    offsets = read["offset_mapping"]
    (prediction,) = minibert.load(folder).predict(question, context)
    expected = [context[offsets[a][0] : offsets[b][1]] for a, b in ranked]
    assert_choices(prediction, expected, [(start[a] * end[b]).item() for a, b in ranked])


@pytest.mark.parametrize(("family", "mark"), [("bert", "[SEP]"), ("gpt2", "<|endoftext|>")])
def test_a_separator_in_the_text_with_the_answer_cuts_nothing_away(
    family: str, mark: str, tmp_path: Path
) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForQuestionAnswering"
    model = minibert.load(folder_of(tmp_path, family, name))
    context = f"quick {mark} dog"
    (prediction,) = model.predict("Who jumps over it?", context, top=1000)
    answers = {choice.label.strip() for choice in prediction.choices}
    assert {"quick", "dog", context} <= answers
    assert all(answer in context for answer in answers)


WRONG = {
    "BertModel": ("a quick fox", minibert.MinibertError, r"no task head"),
    "BertForMaskedLM": ("a fox", minibert.TokenizationError, r"no \[MASK\].*Write it where"),
    "BertForNextSentencePrediction": ("a", minibert.TokenizationError, r"second as `pair`"),
    "BertForPreTraining": ("a", minibert.TokenizationError, r"no \[MASK\], and.*second text"),
    "BertForQuestionAnswering": ("a", minibert.TokenizationError, r"two texts.*as `pair`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_question_that_cannot_be_answered_is_an_error_that_says_why(
    name: str, tmp_path: Path
) -> None:
    text, kind, message = WRONG[name]
    model = minibert.load(folder_of(tmp_path, "bert", name))
    with pytest.raises(kind, match=message):
        model.predict(text)
    if name == "BertForQuestionAnswering":
        with pytest.raises(minibert.TokenizationError, match="only token ids were given"):
            model.predict([[5, 7, 11]])
    if name != "BertForMaskedLM":
        return
    for top in (1, 3, 10_000):
        (prediction,) = model.predict("a [MASK]", top=top)
        assert len(prediction.choices) == min(top, model.tokenizer.vocab_size)
    for top in (0, -1):
        with pytest.raises(minibert.MinibertError, match="top="):
            model.predict("a [MASK]", top=top)
    model.tokenizer = None
    with pytest.raises(minibert.TokenizationError, match="no tokenizer with a mask token"):
        model.predict([[5, 7, 11]])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_ids_are_answered_in_ids_and_broken_logits_not_at_all(name: str) -> None:
    model = minibert.load(name)
    if name == "tiny-gpt2":
        best = model([[5, 7, 11]])[0, -1].argmax().item()
        model.tokenizer, tokenizer = None, model.tokenizer
        (prediction,) = model.predict([[5, 7, 11]])
        assert (prediction.choices[0].id, prediction.choices[0].label) == (best, str(best))
        model.tokenizer = tokenizer
    with torch.no_grad():
        model.body.word.weight.fill_(3e38)
    with pytest.raises(minibert.MinibertError, match="NaN, infinity or"):
        model.predict("the horse [MASK]")
