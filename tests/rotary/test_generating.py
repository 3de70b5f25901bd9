"""Greedy generation writes what transformers writes, across the edges of windows."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from tests.rotary.classes import CAUSAL, LANGUAGE
from tests.rotary.drawn import Drawn, drawn, plain
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of

NEW = 12
PROMPTS = (5, 3)


def written(theirs: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The new tokens of transformers' greedy generation."""
    with torch.no_grad(), computing(theirs):
        forget(theirs)
        out = theirs.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[:, ids.shape[1] :]


def ours(model: minibert.Model, prompts: Any) -> list[list[int]]:
    """The new tokens of ours."""
    made = model.generate(prompts, max_new_tokens=NEW, temperature=0)
    return [list(one.new_ids) for one in made]


def to_the_left(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same texts with their padding before them."""
    lengths = inputs["attention_mask"].sum(1).tolist()
    width = max(lengths)
    return {
        name: torch.stack([row.roll(width - n) for row, n in zip(value, lengths, strict=True)])
        for name, value in inputs.items()
    }


@pytest.mark.parametrize("family", CAUSAL)
@settings(max_examples=3)
@given(data=st.data())
def test_a_prompt_and_a_ragged_batch_go_on_as_in_transformers(
    family: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family).filter(_is_cached_rightly))
    theirs = model_of(chosen, LANGUAGE[family])
    model, inputs = minibert.load(theirs), batch(PROMPTS)
    left = to_the_left(inputs)
    expected = written(theirs, left["input_ids"], left["attention_mask"]).tolist()
    assert ours(model, as_tokens(inputs)) == expected
    for i, length in enumerate(PROMPTS):
        prompt = inputs["input_ids"][i : i + 1, :length]
        alone = written(theirs, prompt, torch.ones_like(prompt)).tolist()
        assert ours(model, prompt) == alone


def _is_cached_rightly(chosen: Drawn) -> bool:
    """transformers' cache for a window of 1 keeps every key (its slice is [-1 + 1:]), and what it
    writes for a text then depends on the padding beside it."""
    return not chosen.depends_on_length and chosen.options.get("sliding_window") != 1


def test_frequencies_that_grow_with_the_text_do_so_while_it_is_written() -> None:
    """As in transformers, a key stays turned as it was when its token was written."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    for family in ("llama", "gemma2"):
        options = plain(family).options | {"rope_parameters": dynamic}
        chosen = Drawn(family, options | {"max_position_embeddings": 8}, seed=1)
        theirs = model_of(chosen, LANGUAGE[family])
        prompt = batch((5,))["input_ids"]
        expected = written(theirs, prompt, torch.ones_like(prompt)).tolist()
        assert ours(minibert.load(theirs), prompt) == expected


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
        theirs = model_of(chosen, LANGUAGE["phi3"])
        for length in (5, 8, 11):
            prompt = batch((length,))["input_ids"]
            expected = written(theirs, prompt, torch.ones_like(prompt)).tolist()
            assert ours(minibert.load(theirs), prompt) == expected
