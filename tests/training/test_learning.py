"""Training makes a model that knows the language of its texts."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from minibert.layers.config import Config
from minibert.training import train
from tests.training.small_runs import (
    OBJECTS,
    SUBJECTS,
    TAILS,
    TEXTS,
    UNSEEN,
    VERBS,
    bert,
    gpt2,
    llama,
    recipe,
)


def entropy(counts: Counter[int]) -> float:
    """Nats a token that a model pays which knows how often each token comes, and no more."""
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


@pytest.mark.parametrize(
    ("config", "share", "bfloat16"),
    [(gpt2(), 0.35, True), (llama(), 0.35, True), (bert("masked-lm"), 0.8, False)],
)
def test_a_few_dozen_steps_teach_more_than_the_frequency_of_words(
    config: Config, share: float, bfloat16: bool, tmp_path: Path
) -> None:
    chosen = {"rate": 0.01, "warm_up": 5, "repeated": 0.0, "bfloat16": bfloat16}
    steps = recipe(steps=80, batch=16, log_every=40, save_every=80, **chosen)
    model = train(TEXTS, UNSEEN, tmp_path, config=config, recipe=steps, note=lambda line: None)
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    losses = [line["held_out_loss"] for line in lines]
    assert model.tokenizer is not None
    unseen = [token for text in UNSEEN for token in model.tokenizer.encode(text.text)]
    assert losses[1] < losses[0]
    assert losses[1] < share * entropy(Counter(unseen))
    if config.causal:
        # Nobody can know what the stories leave to chance; less would mean that it sees ahead.
        sentences = sum(text.text.count(end) for text in UNSEEN for end in ".!?")
        choices = len(SUBJECTS) * len(VERBS) * len(OBJECTS) * len(TAILS) * 3
        assert losses[1] > 0.95 * sentences * math.log(choices) / len(unseen)
        text = str(model.generate("The rabbit", max_new_tokens=20, temperature=0.0))
        known = {w for part in (SUBJECTS, VERBS, OBJECTS, TAILS) for p in part for w in p.split()}
        assert set(re.findall(r"[a-z]+(?=[ .!?])", text.lower())) <= known
