"""How much the loss changes with attention: as transformers and autograd give it, and resumable."""

from pathlib import Path

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import SurveyError
from minibert.survey import Document, survey
from minibert.survey.loss_gradients import MASKED, Objective
from minibert.survey.segments import Segmenter

DOCUMENTS = [
    Document("alone", "the horse ran away, and a boat turned slowly near the river. it was late."),
    Document("short", "the boat sank."),
    Document("pair", "the rabbit slept under the old tree.", None, "the old horse saw the tree,"),
]
OFFSETS, TOKEN = (-2,), "the"
EMBEDDED = Path(minibert.__file__).parent / "embedded"


def cells_of(ids, tokens, texts, *, causal):
    """For each measure the weights (query, key) that it is about."""
    n = len(tokens)
    query, key = np.indices((n, n))
    there = key <= query if causal else np.ones((n, n), bool)
    named = {
        "to_cls": [token == "[CLS]" for token in tokens],
        "to_sep": [token == "[SEP]" for token in tokens],
        "to_period_comma": [token in (".", ",") for token in tokens],
        "to_first": [place == 0 for place in range(n)],
        "to_token:the": [token == "the" for token in tokens],
    }
    keys = {name: np.array(kind)[key] for name, kind in named.items()}
    sep = keys["to_sep"]
    text = np.array(texts)
    real = (text[query] >= 0) & (text[key] >= 0)
    same = (np.array(tokens)[query] == np.array(tokens)[key]) & real & (query != key)
    cells = keys | {
        "to_any": there,
        "to_other": ~sep & ~keys["to_period_comma"],
        "to_punctuation": keys["to_period_comma"],
        "sep_to_sep": sep & sep.T,
        "rest_to_sep": sep & ~sep.T,
        "to_self": key == query,
        "to_previous": key == query - 1,
        "to_next": key == query + 1,
        "to_offset_-2": key == query - 2,
        "to_other_text": real & (text[query] != text[key]),
        "to_same_word": same,
        "to_same_word_other_text": same & (text[query] != text[key]),
        "to_duplicate": (np.array(ids)[query] == np.array(ids)[key]) & real & (key < query),
    }
    return {name: one & there for name, one in cells.items()}


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_they_are_what_transformers_and_autograd_give(name):
    import transformers

    kinds = {
        "tiny-bert": transformers.BertForPreTraining,
        "tiny-gpt2": transformers.GPT2LMHeadModel,
    }
    theirs = (
        kinds[name]
        .from_pretrained(EMBEDDED / name, attn_implementation="eager", dtype=torch.float64)
        .eval()
    )
    model = minibert.load(name)
    causal = model.config.causal
    documents = DOCUMENTS[:2] if causal else DOCUMENTS
    expected = {}
    segments, _ = Segmenter(model).segments(documents)
    for segment in segments:
        predicted = Objective.of(model).predicted(segment)
        ids = torch.tensor(predicted.ids)[None]
        kinds_of = {} if causal else {"token_type_ids": torch.tensor(segment.kinds)[None]}
        out = theirs(ids, output_attentions=True, **kinds_of)
        logits = out.logits if causal else out.prediction_logits
        loss = torch.nn.functional.cross_entropy(
            logits[0, predicted.places], torch.tensor(predicted.right), reduction="sum"
        )
        found = torch.autograd.grad(loss, out.attentions)
        sizes = torch.cat(found).abs().numpy()
        # As they are read: what is hidden from the model is in its place for the measures.
        tokens = [model.tokenizer.string(i).strip() for i in segment.ids]
        cells = cells_of(segment.ids, tokens, segment.tokens.text, causal=causal)
        for measure, of in cells.items():
            rows = of.any(1)
            if rows.any():
                means = (sizes * of).sum(-1)[..., rows] / of.sum(1)[rows]
                expected.setdefault(measure, []).append(means.mean(-1))
    made = survey(
        model, documents, offsets=OFFSETS, tokens=(TOKEN,), gradients=True, dtype=torch.float64
    )
    assert len(expected) == (11 if causal else 18)
    assert made.count("gradient_to_any") == len(documents)
    for measure, each in expected.items():
        gradient = f"gradient_{measure}"
        assert made.count(gradient) == len(each), measure
        right = np.mean(each, 0)
        np.testing.assert_allclose(
            made.table(gradient), right, rtol=1e-6, atol=1e-12, err_msg=measure
        )
    assert (made.count("gradient_to_next") == 0) == causal


def test_hidden_tokens_are_drawn_for_each_text_and_are_the_same_in_every_corpus():
    model = minibert.load("tiny-bert")
    objective, segmenter = Objective.of(model), Segmenter(model)
    long = Document("long", "the horse ran away , and a boat turned slowly near the river " * 5)
    (alone,), _ = segmenter.segments([long])
    (_, again), _ = segmenter.segments([DOCUMENTS[0], long])
    (other,), _ = segmenter.segments([Document("other", str(long.text).replace("boat", "horse"))])
    first, second, third = map(objective.predicted, (alone, again, other))
    np.testing.assert_array_equal(first.places, second.places)
    assert first.places.tolist() != third.places.tolist()
    inside = alone.tokens.text >= 0
    assert len(set(first.places)) == len(first.places) == round(MASKED * inside.sum())
    assert inside[first.places].all()
    assert (first.ids[first.places] == model.tokenizer.mask_id).all()
    restored = first.ids.copy()
    restored[first.places] = first.right
    assert restored.tolist() == list(alone.ids)


def test_a_text_of_one_token_has_no_loss_to_differentiate():
    found = survey(minibert.load("tiny-gpt2"), [" a", " the horse ran"], gradients=True)
    assert found.count("to_self") == 2
    assert found.count("gradient_to_self") == 1
    assert (found.table("gradient_to_self") > 0).all()


def test_what_has_no_gradients_is_refused_before_a_document_is_read():
    def never():
        raise AssertionError("was read")
        yield

    bert = minibert.load("tiny-bert")
    config = type(bert.config)(**{**vars(bert.config), "task": "none"})
    encoder = minibert.Model(config, tokenizer=bert.tokenizer, name="an-encoder")
    who = r"an-encoder \(bert, task none\) predicts no tokens.*masked-lm, causal-lm or, of"
    with pytest.raises(SurveyError, match=who):
        survey(encoder, never(), gradients=True)
    with pytest.raises(SurveyError, match=r"gradient_to_sep: not known.*gradients=True those of"):
        survey(bert, never(), measures=("gradient_to_sep",))
    with pytest.raises(SurveyError, match='gradients=True: impl="chunked" cannot do this'):
        survey(bert, never(), gradients=True, impl="chunked")
