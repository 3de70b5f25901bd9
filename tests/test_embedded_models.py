"""The models that come with minibert are what their cards say."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import minibert
from minibert.analysis import head_scores
from minibert.checkpoint.load import embedded_names

EMBEDDED = Path(minibert.__file__).parent / "embedded"
CLASSES = {
    "tiny-bert": transformers.BertForPreTraining,
    "tiny-gpt2": transformers.GPT2LMHeadModel,
    "tiny-llama": transformers.LlamaForCausalLM,
}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded.jsonl"
KINDS = {
    "tiny-bert": "masked tokens right, ",
    "tiny-gpt2": "loss, ",
    "tiny-llama": "loss, ",
}
TEXT = "the old horse looked over the gate and saw the boys come slowly down the long road ."


def test_all_are_there() -> None:
    assert sorted(embedded_names()) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_transformers_loads_the_folder_and_agrees(name: str) -> None:
    theirs = CLASSES[name].from_pretrained(
        EMBEDDED / name, dtype=torch.float32, attn_implementation="eager"
    )
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED / name)
    ours = minibert.load(name)
    pair = () if name != "tiny-bert" else ("“It is a fine horse,” said he.",)
    inputs = their_tokenizer(TEXT, *pair, return_tensors="pt")
    with torch.no_grad():
        outputs = theirs.eval()(**inputs, output_attentions=True, output_hidden_states=True)
        trace = ours.trace(TEXT, *pair)
    assert trace.tokens.ids.tolist() == inputs["input_ids"].tolist()
    logits = outputs.prediction_logits if name == "tiny-bert" else outputs.logits
    assert (trace.logits - logits).abs().max() <= 1e-5
    if name == "tiny-bert":
        difference = trace.next_sentence_logits - outputs.seq_relationship_logits
        assert difference.abs().max() <= 1e-5
    for one, other in zip(trace.attentions, outputs.attentions, strict=True):
        assert (one - other).abs().max() <= 1e-5
    for one, other in zip(trace.hidden_states, outputs.hidden_states, strict=True):
        assert (one - other).abs().max() <= 1e-5


@pytest.mark.parametrize("name", CLASSES)
def test_the_card_and_the_readme_say_what_was_measured_by_kind_of_text(name: str) -> None:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if row["model"] == name and row["what"].startswith(KINDS[name])]
    assert len(measured) == 5
    weights = (EMBEDDED / name / "model.safetensors").read_bytes()
    for row in measured:
        assert row["weights_sha256"] == hashlib.sha256(weights).hexdigest()
        share = name == "tiny-bert"
        number = f"{100 * row['value']:.1f} %" if share else f"{row['value']:.2f}"
        kind = row["what"].removeprefix(KINDS[name])
        card = (EMBEDDED / name / "README.md").read_text(encoding="utf-8")
        readme = (RESULTS.parents[2] / "README.md").read_text(encoding="utf-8")
        for text in (card, readme):
            # README has the score on novels in the row of unseen books.
            assert f"{kind} {number}" in text or (text is readme and kind == "novels")


@pytest.mark.parametrize(
    "text",
    [
        "leaves fall in autumn",
        "autumn is marked by colorful foliage",
        "astronomers discovered a new planet",
        "The horse quickly ran away",
        "the cat jumped into the bag because it was very tired",
        "He is eating bland spaghetti",
        "She went to the store and bought strawberries",
        "I did not really enjoyed this movie",
    ],
)
def test_words_that_teachers_use_are_whole_in_tiny_llama(text: str) -> None:
    tokens = minibert.load("tiny-llama").tokenize(text)
    assert [string.strip() for string in tokens.strings[0]] == text.split()


@pytest.mark.parametrize("name", CLASSES)
def test_the_weights_are_float16_and_small(name: str) -> None:
    path = EMBEDDED / name / "model.safetensors"
    assert path.stat().st_size <= 4e6
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
    assert sum(file.stat().st_size for file in EMBEDDED.rglob("*") if file.is_file()) <= 12e6


@pytest.mark.parametrize(
    ("name", "pattern", "least"),
    [
        ("tiny-bert", "previous", 0.7),
        ("tiny-bert", "next", 0.7),
        ("tiny-bert", "delimiter", 0.6),
        ("tiny-gpt2", "previous", 0.7),
        ("tiny-gpt2", "induction", 0.6),
        ("tiny-llama", "previous", 0.7),
        ("tiny-llama", "induction", 0.6),
    ],
)
def test_the_head_that_the_card_names_does_what_it_says(
    name: str, pattern: str, least: float
) -> None:
    model = minibert.load(name)
    scores = getattr(head_scores(model, TEXT), pattern)
    card = (EMBEDDED / name / "README.md").read_text(encoding="utf-8")
    words = {"delimiter": "[SEP]"}.get(pattern, pattern)
    row = next(line for line in card.splitlines() if re.match(r"\| \d-\d", line) and words in line)
    layer, head = map(int, re.findall(r"(\d)-(\d)", row)[0])
    assert scores[layer, head] >= least
