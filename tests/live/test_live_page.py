"""The file that runs a model: what is in it, and which models it refuses."""

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import run
from live.engines import opened

import minibert
from minibert.errors import MinibertError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.viz import live
from minibert.viz.any_model import any_page
from minibert.viz.live import live_page, story_page
from minibert.viz.stored import STORED_MODELS, stored_any, stored_live, stored_story
from scripts import stored_pages

# Of one of the embedded models; with the script of the page and the two tokenizers.
LARGEST_FILE = 5_500_000


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-llama", "tiny-bert-sentiment"])
def test_the_file_holds_the_weights_as_they_are(name):
    model = minibert.load(name)
    page = live_page(model)
    held, weights = json.loads(page.header)["live"], base64.b64decode(page.weights)
    parameters = dict(model.named_parameters())
    assert {"float16"} == {entry["dtype"] for entry in held["entries"]}
    for entry in held["entries"]:
        size = int(np.prod(entry["shape"]))
        stored = np.frombuffer(weights, "<f2", size, entry["from"]).reshape(entry["shape"])
        assert np.array_equal(stored, parameters[entry["name"]].numpy())
    assert page.size < LARGEST_FILE


def test_weights_that_float16_would_change_are_stored_as_float32():
    model = minibert.load("tiny-gpt2")
    model.body.final_norm.weight[0] = 1 + 2**-20
    entries = json.loads(live_page(model).header)["live"]["entries"]
    assert [e["name"] for e in entries if e["dtype"] == "float32"] == ["body.final_norm.weight"]
    model.body.final_norm.weight[0] = torch.nan
    with pytest.raises(MinibertError, match=r"body\.final_norm\.weight has NaN"):
        live_page(model)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-llama"])
def test_a_large_model_runs_in_eight_bits_and_the_page_says_what_that_changes(name, monkeypatch):
    monkeypatch.setattr(live, "_WHOLE", 0)
    model, rounded = minibert.load(name), minibert.load(name)
    for values in rounded.parameters():
        if values.dim() > 1:
            rows = values.detach().numpy()
            step = np.abs(rows).max(1, keepdims=True) / 127
            values.data = torch.from_numpy(np.round(rows / step) * step)
    text = "The horse pulled the cart up the hill because it was strong."
    trace = rounded.trace(text)
    with opened(model) as engine:
        asked = [("probs", 0), ("resid_post", model.config.n_layers - 1), ("logits", None)]
        _, found, _ = engine.trace({"texts": [text], "edits": []}, asked)
    expected = (trace[0].probs, trace[-1].resid_post, trace.logits)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other[0].numpy(), rtol=0, atol=1e-4)
    # The first of the sentences that the note is about.
    note = live_page(model).note
    pattern = r"weights by at most (.+), the last .* by (.+) % of .*logits by at most (.+), and \d"
    probs, hidden, logits = (float(one) for one in re.findall(pattern, note)[0])
    clean = model.trace(text)
    assert 0 < float((trace.logits - clean.logits).abs().max()) <= logits * 1.06
    for one, other in zip(trace, clean, strict=True):
        assert float((one.probs - other.probs).abs().max()) <= probs * 1.06
    change = (trace[-1].resid_post - clean[-1].resid_post).norm() / clean[-1].resid_post.norm()
    assert 0 < 100 * float(change) <= hidden + 0.06


REFUSED: dict[str, dict[str, Any]] = {
    "its family is granite; it runs bert, roberta, ": {
        "family": "granite", "task": "none", "causal": True,
    },
    "its task head is pre-training": {"family": "electra", "task": "pre-training"},
    "its task head is token-classification; it runs none, ": {"task": "token-classification"},
    "its head answers regression": {
        "task": "sequence-classification", "problem_type": "regression",
    },
    "it has 384 million weights; a page holds 380": {"vocab_size": 3_000_000},
    "its rotary scaling is dynamic": {
        "family": "llama", "task": "causal-lm", "causal": True, "positions": "rotary",
        "rotary": Rotary(8, scaling="dynamic", factor=2.0, n_original=64),
    },
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_the_engine_does_not_run_is_refused(why):
    model: Any = minibert.load("tiny-bert")

    class Other:
        name = "other"
        tokenizer = model.tokenizer
        config: Config = replace(model.config, **REFUSED[why])

        def named_modules(self) -> Any:
            shape = (self.config.d_model, self.config.vocab_size)
            yield "body.word", torch.nn.Linear(*shape, bias=False, device="meta")

    with pytest.raises(MinibertError, match=rf"^A live page cannot run other: {why}"):
        live_page(Other())


def test_two_texts_of_a_model_that_reads_one_are_refused():
    with pytest.raises(MinibertError, match="it takes one text"):
        live_page(minibert.load("tiny-gpt2"), ("One.", "Another."))


def test_the_policy_lets_the_page_run_its_worker_and_ask_nobody():
    html = live_page(minibert.load()).html
    policy = html.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["worker-src"]) == ("'none'", "blob:")
    assert "connect-src" not in rules
    # Programs of WebAssembly in this page, and in no other that is a file.
    assert policy.replace("'wasm-unsafe-eval'", "").count("unsafe") == 0
    assert rules["script-src"].endswith(" 'wasm-unsafe-eval'")
    assert "wasm-unsafe-eval" not in minibert.load().trace("one").view().html


def test_the_command_writes_the_file(tmp_path):
    path = tmp_path / "live.html"
    result = run("live", "-m", "tiny-gpt2", "--text", "Once", "-o", str(path))
    assert result.exit_code == 0, result.output
    assert path.read_text(encoding="utf-8") == live_page(minibert.load("tiny-gpt2"), ["Once"]).html
    assert str(path) in result.stdout


def test_stored_pages_are_those_that_are_made():
    assert stored_pages.FILE.read_text(encoding="utf-8") == stored_pages.stored(), (
        "run python -m scripts.stored_pages"
    )
    bert, gpt2 = (minibert.load(name) for name in STORED_MODELS)
    assert stored_live("tiny-bert").html == live_page(bert).html
    assert stored_live("tiny-gpt2").html == live_page(gpt2).html
    assert stored_story().html == story_page(bert, gpt2).html
    assert stored_any().html == any_page().html
