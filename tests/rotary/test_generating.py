"""Greedy generation writes what transformers writes where the angles change while a text grows.

Where they do not, every step is a pass over the text so far (tests/answers/test_generate.py), and
such a pass is that of transformers (tests/test_verification.py).
"""

from typing import Any

import torch

import minibert
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import Drawn, plain
from tests.rotary.theirs import batch, computing, forget, model_of

NEW = 12


def assert_same(chosen: Drawn, length: int) -> None:
    """The tokens that ours adds to a prompt of this length are those of transformers."""
    theirs, prompt = model_of(chosen, LANGUAGE[chosen.family]), batch((length,))["input_ids"]
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    with torch.no_grad(), computing(theirs):
        forget(theirs)
        mask = torch.ones_like(prompt)
        out = theirs.generate(input_ids=prompt, attention_mask=mask, pad_token_id=0, **options)
    (made,) = minibert.load(theirs).generate(prompt, max_new_tokens=NEW, temperature=0)
    assert list(made.new_ids) == out[0, length:].tolist()


def test_frequencies_that_grow_with_the_text_do_so_while_it_is_written() -> None:
    """As in transformers, a key stays turned as it was when its token was written."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    for family in ("llama", "gemma2"):
        options = plain(family).options | {"rope_parameters": dynamic}
        chosen = Drawn(family, options | {"max_position_embeddings": 8}, seed=1)
        assert_same(chosen, 5)


def test_the_factors_of_long_texts_replace_those_of_short_ones_while_a_text_grows() -> None:
    """Phi-3 in transformers computes all keys anew where the text gets longer than n_original."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "partial_rotary_factor": 4 / 6,
        "short_factor": [1.0, 1.5],
        "long_factor": [4.0, 2.0],
        "original_max_position_embeddings": 8,
    }
    options = plain("phi3").options | {"rope_parameters": rope}
    for seed in range(3):
        chosen = Drawn("phi3", options | {"original_max_position_embeddings": 8}, seed)
        for length in (5, 8, 11):
            assert_same(chosen, length)
