"""Every measure equals its published formula over whole matrices, for every kind of model."""

import copy
import os
import time
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from data import data_path

import minibert
from minibert.errors import SurveyError
from minibert.survey import Document, read_documents, survey
from tests.survey import oracle
from tests.survey.live_models import (
    attentions,
    bart,
    bert,
    embedded,
    gemma3,
    gpt2,
    gpt_oss,
    modernbert,
    tokenizer_of,
    value_norms,
)
from tests.survey.small_surveys import texts

PAIR = Document(
    "pair", "The strawberries, she said, grow on the hill.", None, "The hill? She ate strawberries."
)
WORDS = [
    "the",
    "king",
    "saw",
    "old",
    "house",
    "and",
    "went",
    "home",
    "boat",
    "horse",
    "ran",
    "away",
]


def drawn() -> tuple[list[Document], dict[str, Any]]:
    """Three texts with words that come again, and which further measures; fresh ones in each run.

    The last is longer than most of the models here, and so several segments.
    """
    seed = 0 if os.environ.get("CI") else time.time_ns() % 10**9
    print(f"seed {seed}")
    draw, words = Random(seed), [word + sign for word in WORDS for sign in ("", "", ",", ".")]
    sizes = draw.randrange(8, 30), draw.randrange(3, 6), draw.randrange(80, 120)
    texts = [" ".join(draw.choices(words, k=size)) for size in sizes]
    further = draw.sample([n for n in range(-9, 10) if abs(n) > 1], 2), draw.sample(WORDS, 2)
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return documents, {"offsets": tuple(further[0]), "tokens": tuple(further[1])}


def mini_lm():
    return transformers.BertModel.from_pretrained(data_path("models", "all-MiniLM-L6-v2"))


# What builds the model, its tokenizer, the stack, whether minibert loads it, and whether the norms
# of its values are recomputed here.
CASES = {
    "tiny-bert": (lambda: embedded("tiny-bert"), "tiny-bert", None, True, True),
    "bert": (lambda: bert(attn_implementation="eager"), "tiny-bert", None, True, True),
    "gpt2": (gpt2, "tiny-gpt2", None, True, True),
    "BART's encoder": (bart, "tiny-bert", "encoder", False, True),
    "BART's decoder": (bart, "tiny-bert", "decoder.self", False, True),
    "sinks and windows": (gpt_oss, "tiny-gpt2", None, False, False),
    "gemma3": (gemma3, "tiny-gpt2", None, True, False),
    "modernbert": (modernbert, "tiny-bert", None, True, False),
    "MiniLM": (mini_lm, "all-MiniLM-L6-v2", None, True, True),
}
# These are surveyed in float64, and are as exact as float64 is.
EXACT = ("bert", "gpt2", "BART's encoder", "BART's decoder")


def pieces_of(words, document, limit):
    """Ids and token types of what the model sees at once: parts of about the same length."""
    given = words(*map(str, document.contents), return_token_type_ids=True)
    ids, kinds = np.array(given["input_ids"]), np.array(given["token_type_ids"])
    ends = int(words.cls_token is not None)
    room = limit - 2 * ends
    inside = np.arange(ends, len(ids) - ends)
    places = [inside] if len(ids) <= limit else np.array_split(inside, -(-len(inside) // room))
    for part in places:
        whole = [*range(ends), *part, *range(len(ids) - ends, len(ids))]
        yield torch.tensor(ids[whole])[None], torch.tensor(kinds[whole])[None]


def recomputed(live, words, documents, stack, limit, options, *, norms):
    """By document the probs of its pieces, and what the oracle says of it, in float64."""
    # Experts multiply in no float64.
    truth = live if "GptOss" in type(live).__name__ else copy.deepcopy(live).double().eval()
    before = live.config._attn_implementation
    truth.set_attn_implementation("eager")
    probs, found = [], []
    for document in documents:
        pieces, parts = [], []
        for ids, kinds in pieces_of(words, document, limit):
            given = {"token_type_ids": kinds} if hasattr(live.config, "type_vocab_size") else {}
            pieces.append(attentions(truth, ids, stack, **given).numpy())
            of_values = value_norms(truth, ids, stack, **given) if norms else None
            tokens = words.convert_ids_to_tokens(ids[0].tolist())
            chosen = {"offsets": options["offsets"], "chosen": options["tokens"]}
            parts.append(oracle.measured(pieces[-1], tokens, norms=of_values, **chosen))
        probs.append(pieces)
        found.append(oracle.document(parts))
    live.set_attn_implementation(before)
    return probs, found


@pytest.mark.parametrize("name", CASES)
def test_every_measure_is_its_published_formula(name, tmp_path):
    build, vocabulary, stack, loads, norms = CASES[name]
    live, longest, exact = build().eval(), None, name in EXACT
    documents, options = drawn()
    live = live.double() if exact else live
    within = {"rtol": 1e-12, "atol": 0} if exact else {}
    words = tokenizer_of(vocabulary) if name != "MiniLM" else None
    if name == "MiniLM":
        words = transformers.AutoTokenizer.from_pretrained(data_path("models", vocabulary))
        path = data_path("text", "wikitext-2", "wiki.valid.tokens")
        documents = list(islice(read_documents([path], unit="line", shortest=100), 12))
        longest = 96
    elif "bert" in name and name != "modernbert":
        documents.append(PAIR)
    limit = longest or live.config.max_position_embeddings
    probs, expected = recomputed(live, words, documents, stack, limit, options, norms=norms)
    if name == "MiniLM":
        # Letters with accents are spelled without them in the tokens.
        expected = [{n: one for n, one in d.items() if "same_word" not in n} for d in expected]
    models = {"attached": minibert.attach(live, tokenizer=words)}
    if loads:
        live.save_pretrained(tmp_path)
        words.save_pretrained(tmp_path)
        models["loaded"] = minibert.load(tmp_path, dtype=torch.float64 if exact else None)
    for kind, model in models.items():
        of_stack = {"stack": stack} if kind == "attached" else {}
        found = survey(model, documents, longest=longest, **options, **of_stack)
        oracle.compare(found, expected, **within)
        missing = {one for one in found.names if one not in expected[0]}
        assert name == "MiniLM" or all(one.endswith("_by_norm") and not norms for one in missing)
        reach = found.manifest["options"]["longest"] - 1
        assert reach == limit - 1
        np.testing.assert_allclose(
            found.profile, oracle.profile(probs, reach), **(within or {"atol": 1e-5})
        )
        corpus = found.manifest["corpus"]
        assert corpus["segments"] == sum(map(len, probs))
        assert corpus["tokens"] == sum(one.shape[-1] for pieces in probs for one in pieces)
    # The model is as it was.
    assert not live._forward_hooks


def test_the_manifest_names_the_stack():
    live = bart()
    attached = minibert.attach(live, tokenizer=tokenizer_of("tiny-bert"))
    for stack, layers in (("encoder", 2), ("decoder.self", 3)):
        found = survey(attached, texts(2), stack=stack)
        told = found.manifest["model"]["stack"]
        assert (told["name"], found.table("entropy").shape) == (stack, (layers, 3))
        assert ("decoder_input_ids" in told) == (stack == "decoder.self")
        assert found.manifest["model"]["config"]["causal"] == (stack == "decoder.self")
        assert found.manifest["options"]["impl"] == live.config._attn_implementation


def never():
    raise AssertionError("a document was read")
    yield ""


def attached_to(build, tokenizer="tiny-bert"):
    words = None if tokenizer is None else tokenizer_of(tokenizer)
    return lambda: minibert.attach(build(), tokenizer=words)


LIVE = attached_to(bert)
REFUSED = {
    "one stack": (minibert.load, {"stack": "encoder"}, "has one stack"),
    "a tokenizer": (attached_to(bert, None), {}, "without a tokenizer"),
    "a stack": (LIVE, {"stack": "decoder"}, "BertForMaskedLM has 'encoder'"),
    "too long": (LIVE, {"longest": 65}, "from 8 to 64"),
    "several": (attached_to(bart), {}, "several stacks; name one with stack=: 'encoder'"),
    "cross": (attached_to(bart), {"stack": "decoder.cross"}, "'decoder.cross' cannot be surveyed"),
    "training": (attached_to(lambda: bert().train()), {}, "training mode"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_surveyed_is_refused_before_a_document_is_read(what):
    build, options, message = REFUSED[what]
    with pytest.raises(SurveyError, match=message):
        survey(build(), never(), **options)


def test_a_model_that_needs_a_picture_is_refused_and_its_text_part_is_surveyed():
    sizes = {
        "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 8,
    }  # fmt: skip
    config = transformers.CLIPConfig(
        text_config={"vocab_size": 6656, "max_position_embeddings": 32} | sizes,
        vision_config=sizes | {"image_size": 8, "patch_size": 4},
    )
    live, words = transformers.CLIPModel(config).eval(), tokenizer_of("tiny-bert")
    with pytest.raises(SurveyError, match="cannot read a text alone"):
        survey(minibert.attach(live, tokenizer=words), texts(2))
    found = survey(minibert.attach(live.text_model, tokenizer=words), texts(2))
    assert found.table("to_next").max() == 0
    assert found.table("to_self").shape == (2, 2)


def test_a_tokenizer_that_is_not_what_its_file_says_is_refused(monkeypatch):
    words = tokenizer_of("tiny-bert")
    tokenize = type(words).__call__

    def other(self, text, *rest, **options):
        return tokenize(self, f"{text} once more", *rest, **options)

    monkeypatch.setattr(type(words), "__call__", other)
    with pytest.raises(SurveyError, match=r"makes .* ids of the text"):
        survey(minibert.attach(bert(), tokenizer=words), texts(2))
