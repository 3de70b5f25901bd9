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


def assert_choices(ours: Any, labels: list[str], scores: list[float]) -> None:
    assert [choice.label for choice in ours.choices] == labels
    assert [choice.probability for choice in ours.choices] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "name", "mark"),
    [
        ("bert", "BertForMaskedLM", "[MASK]"),
        ("bert", "BertForPreTraining", "[MASK]"),
        ("roberta", "RobertaForMaskedLM", "<mask>"),
    ],
)
def test_masks_are_filled_as_the_pipeline_fills_them(
    family: str, name: str, mark: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, family, name)
    texts = [f"The quick {mark} fox.", f"{mark} dog and the lazy {mark}, weren't they"]
    predictions = minibert.load(folder).predict(texts, top=7)
    assert [prediction.sentence for prediction in predictions] == [0, 1, 1]
    assert {prediction.question for prediction in predictions} == {"masked token"}
    if name == "BertForPreTraining":
        output = [logits(folder, name, text).prediction_logits[0] for text in texts]
        rows = [output[p.sentence][p.position].softmax(-1).topk(7) for p in predictions]
        expected = [zip(row.values.tolist(), row.indices.tolist(), strict=True) for row in rows]
    else:
        pipeline = transformers.pipeline("fill-mask", model=str(folder), top_k=7)
        first, (second, third) = (pipeline(text) for text in texts)
        expected = [((a["score"], a["token"]) for a in row) for row in (first, second, third)]
    for prediction, row in zip(predictions, expected, strict=True):
        scores, ids = zip(*row, strict=True)
        assert [choice.id for choice in prediction.choices] == list(ids)
        assert [c.probability for c in prediction.choices] == pytest.approx(scores, abs=1e-5)


def test_the_next_token_follows_the_last_real_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gpt2", "GPT2LMHeadModel")
    model = minibert.load(folder)
    predictions = model.predict(TEXTS, top=3)
    assert len(predictions) == len(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        row = logits(folder, "GPT2LMHeadModel", text).logits[0]
        assert prediction.position == len(row) - 1
        values, ids = row[-1].softmax(-1).topk(3)
        assert_choices(
            prediction, [model.tokenizer.string(i) for i in ids.tolist()], values.tolist()
        )


@pytest.mark.parametrize(
    ("family", "n_labels"),
    [("bert", 1), ("roberta", 2), ("distilbert", 3), ("electra", 2), ("albert", 3), ("gpt2", 2)],
)
def test_texts_are_classified_as_the_pipeline_classifies_them(
    family: str, n_labels: int, tmp_path: Path
) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForSequenceClassification"
    labels = {index: LABELS[index] for index in range(n_labels)}
    folder = folder_of(tmp_path, family, name, id2label=labels)
    theirs = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    predictions = minibert.load(folder).predict(TEXTS)
    assert [prediction.position for prediction in predictions] == [None] * 3
    for prediction, rows in zip(predictions, theirs(TEXTS), strict=True):
        assert_choices(prediction, [r["label"] for r in rows], [r["score"] for r in rows])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_tokens_are_classified_as_the_pipeline_classifies_them(family: str, tmp_path: Path) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForTokenClassification"
    folder = folder_of(tmp_path, family, name, id2label=LABELS)
    theirs = transformers.pipeline("token-classification", model=str(folder), ignore_labels=[])
    model = minibert.load(folder)
    for sentence, text in enumerate(TEXTS):
        ours = [p for p in model.predict(TEXTS, top=1) if p.sentence == sentence]
        rows = theirs(text)
        assert [prediction.position for prediction in ours] == [row["index"] for row in rows]
        for prediction, row in zip(ours, rows, strict=True):
            assert_choices(prediction, [row["entity"]], [row["score"]])


def test_the_next_sentence_is_judged_as_transformers_judges_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "bert", "BertForNextSentencePrediction")
    (prediction,) = minibert.load(folder).predict(TEXTS[0], TEXTS[1])
    row = logits(folder, "BertForNextSentencePrediction", TEXTS[0], TEXTS[1]).logits[0].softmax(-1)
    # transformers: 0 says that the second text follows the first.
    expected = {"follows": row[0].item(), "does not follow": row[1].item()}
    got = {choice.label: choice.probability for choice in prediction.choices}
    assert got == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("family", "n_labels"), [("bert", 2), ("albert", 3)])
def test_pre_training_answers_both_questions(family: str, n_labels: int, tmp_path: Path) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForPreTraining"
    labels = {index: LABELS[index] for index in range(n_labels)}
    folder = folder_of(tmp_path, family, name, id2label=labels)
    text, pair = "The quick [MASK] fox", "lazy dogs"
    output = logits(folder, name, text, pair)
    second = output.seq_relationship_logits if family == "bert" else output.sop_logits
    first, last = minibert.load(folder).predict(text, pair)
    assert first.question == "masked token"
    got = {choice.id: choice.probability for choice in last.choices}
    assert got == pytest.approx(dict(enumerate(second[0].softmax(-1).tolist())), abs=1e-5)


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


def test_top_is_how_many_answers_there_are(tmp_path: Path) -> None:
    model = minibert.load(folder_of(tmp_path, "bert", "BertForMaskedLM"))
    for top in (1, 3, 10_000):
        (prediction,) = model.predict("a [MASK]", top=top)
        assert len(prediction.choices) == min(top, model.tokenizer.vocab_size)
    for top in (0, -1):
        with pytest.raises(minibert.MinibertError, match="top="):
            model.predict("a [MASK]", top=top)


def test_a_question_that_cannot_be_answered_is_an_error_that_says_why(tmp_path: Path) -> None:
    cases = {
        "BertModel": (minibert.MinibertError, r"no task head"),
        "BertForMaskedLM": (minibert.TokenizationError, r"no \[MASK\].*Write \[MASK\]"),
        "BertForNextSentencePrediction": (minibert.TokenizationError, r"second one as `pair`"),
        "BertForPreTraining": (minibert.TokenizationError, r"no \[MASK\], and.*second text"),
        "BertForQuestionAnswering": (minibert.TokenizationError, r"two texts.*as `pair`"),
    }
    for name, (kind, message) in cases.items():
        (tmp_path / name).mkdir()
        model = minibert.load(folder_of(tmp_path / name, "bert", name))
        with pytest.raises(kind, match=message):
            model.predict("a quick fox")


def test_a_model_without_a_tokenizer_speaks_in_ids(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gpt2", "GPT2LMHeadModel")
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    model = minibert.load(folder)
    (prediction,) = model.predict([[5, 7, 11]])
    best = model(torch.tensor([[5, 7, 11]]))[0, -1].argmax().item()
    assert (prediction.choices[0].id, prediction.choices[0].label) == (best, str(best))
    masked = minibert.load(folder_of(tmp_path, "bert", "BertForMaskedLM"))
    masked.tokenizer = None
    with pytest.raises(minibert.TokenizationError, match="no tokenizer with a mask token"):
        masked.predict([[5, 7, 11]])


@pytest.mark.parametrize(
    ("task", "n_labels", "kind"),
    [
        ("Sequence", 3, "regression"),
        ("Sequence", 3, "multi_label_classification"),
        ("Token", 3, "multi_label_classification"),
    ],
)
def test_the_config_says_what_a_class_number_means(
    task: str, n_labels: int, kind: str, tmp_path: Path
) -> None:
    name = f"BertFor{task}Classification"
    labels = {index: LABELS[index] for index in range(n_labels)}
    folder = folder_of(tmp_path, "bert", name, id2label=labels, problem_type=kind)
    prediction, *_ = minibert.load(folder).predict(TEXTS[0])
    rows = logits(folder, name, TEXTS[0]).logits[0]
    row = rows if task == "Sequence" else rows[prediction.position]
    values = {choice.id: choice.value for choice in prediction.choices}
    if kind == "regression":
        assert values == pytest.approx(dict(enumerate(row.tolist())), abs=1e-5)
        assert all(math.isnan(choice.probability) for choice in prediction.choices)
        scores = row
    else:
        assert set(values.values()) == {None}
        scores = row.sigmoid()
        got = {choice.id: choice.probability for choice in prediction.choices}
        assert got == pytest.approx(dict(enumerate(scores.tolist())), abs=1e-5)
    if task == "Sequence":
        theirs = transformers.pipeline("text-classification", model=str(folder), top_k=None)
        (expected,) = theirs([TEXTS[0]])
        assert [choice.label for choice in prediction.choices] == [r["label"] for r in expected]
        best = [scores[choice.id].item() for choice in prediction.choices]
        assert best == pytest.approx([r["score"] for r in expected], abs=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_separator_in_the_text_with_the_answer_cuts_nothing_away(
    family: str, tmp_path: Path
) -> None:
    name = CONFIGS[family].removesuffix("Config") + "ForQuestionAnswering"
    model = minibert.load(folder_of(tmp_path, family, name))
    mark = {"roberta": "</s>", "gpt2": "<|endoftext|>"}.get(family, "[SEP]")
    context = f"quick {mark} dog"
    (prediction,) = model.predict("Who jumps over it?", context, top=1000)
    answers = {choice.label.strip() for choice in prediction.choices}
    assert {"quick", "dog", context} <= answers
    assert all(answer in context for answer in answers)


def test_ids_alone_hold_no_answer(tmp_path: Path) -> None:
    model = minibert.load(folder_of(tmp_path, "bert", "BertForQuestionAnswering"))
    with pytest.raises(minibert.TokenizationError, match="only token ids were given"):
        model.predict([[5, 7, 11]])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_logits_that_are_no_numbers_are_no_answer(name: str) -> None:
    model = minibert.load(name)
    with torch.no_grad():
        model.body.word.weight.fill_(3e38)
    with pytest.raises(minibert.MinibertError, match="NaN or infinity"):
        model.predict("the horse [MASK]")
