"""Edits while a text is written: the same tokens as from whole passes, edited without a cache."""

from typing import Any

import pytest
import torch

import minibert
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import Edit, as_edit, hide, noise, replace, zero

PROMPTS = [list(range(3, 10)), list(range(20, 25)), list(range(5, 14))]
NEW = 8
STEERING = 2 * torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
EDITS: dict[str, dict[Any, Any]] = {
    "a head": {("z", 1, 3): zero},
    "a vector": {("resid_post", 0): lambda stream: stream + STEERING},
    "positions": {("mlp_out", 1): replace(0.5, positions=[2, 9, -1]), ("key", 1, 1): zero},
    "a span": {("z", 2): replace(0.0, positions=slice(6, 12))},
    "the ends": {"embed": lambda x: 1.5 * x, "logits": lambda x: x.roll(1, -1)},
}


@pytest.fixture(scope="module")
def model() -> Model:
    """Grouped heads, rotation, and a window that the texts outgrow in one layer."""
    sizes: dict[str, Any] = {"n_positions": 64, "n_layers": 3, "n_heads": 4, "d_model": 32}
    choices: dict[str, Any] = {"n_kv_heads": 2, "rotary": Rotary(8), "windows": (0, 4, 0)}
    config = Config("llama", "causal-lm", 97, d_mlp=48, causal=True, **sizes, **choices)
    model = Model.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


def at_step(edit: Edit, prompt: int, length: int) -> Edit | None:
    """The edit of a whole pass that does what was done to each token when it was the newest."""
    if edit.positions is None:
        return edit
    chosen = edit.positions
    if isinstance(chosen, slice):
        found = set(range(length)[chosen])
    else:
        assert isinstance(chosen, list)
        found = {p for p in chosen if 0 <= p < length}
        if -1 in chosen:
            found |= set(range(prompt - 1, length))
    return edit.at(positions=sorted(found)) if found else None


def written(model: Model, prompt: list[int], edits: dict[Any, Any]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        steps = {key: at_step(as_edit(one), len(prompt), len(ids)) for key, one in edits.items()}
        made = {key: one for key, one in steps.items() if one is not None}
        ids.append(int(model.trace([ids], edit=made).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", EDITS)
def test_a_text_is_edited_as_whole_passes_without_a_cache_are(model: Model, name: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": NEW, "temperature": 0}
    expected = [written(model, prompt, EDITS[name]) for prompt in PROMPTS]
    longest = max(map(len, PROMPTS))
    ids = [prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS]
    mask = torch.tensor([[n < len(prompt) for n in range(longest)] for prompt in PROMPTS])
    together = Tokens.from_ids(ids, mask=mask)
    found = model.generate(together, edit=EDITS[name], **options)
    assert [list(one.new_ids) for one in found] == expected
    alone = model.generate(PROMPTS[0], edit=EDITS[name], **options)
    assert list(alone.new_ids) == expected[0]
    assert [list(one.new_ids) for one in model.generate(together, **options)] != expected


def test_one_text_of_a_batch_is_edited(model: Model) -> None:
    ids, options = [PROMPTS[0], PROMPTS[0]], {"max_new_tokens": NEW, "temperature": 0}
    edits = {("resid_post", 0): as_edit(lambda x: x + STEERING).at(sentences=1)}
    first, second = model.generate(ids, edit=edits, **options)
    assert list(first.new_ids) == list(model.generate(PROMPTS[0], **options).new_ids)
    assert list(second.new_ids) == written(model, PROMPTS[0], EDITS["a vector"])


def test_what_cannot_be_done_token_by_token_is_refused(model: Model) -> None:
    other = model.trace([PROMPTS[0]])
    refused: list[tuple[dict[Any, Any], str]] = [
        ({("probs", 0): zero}, "one row of probs at a time"),
        ({("scores", 0): hide(2)}, "one row of scores at a time"),
        ({("z", 0): noise(0)}, "noise is drawn"),
        ({("z", 0): other}, "tokens that are not written yet"),
        ({("z", 0): replace(other, positions=-1)}, "tokens that are not written yet"),
        ({("z", 7): zero}, "layer"),
        ({("z", 0): torch.zeros(3, 3, dtype=torch.float64)}, "does not fit"),
    ]
    for edits, message in refused:
        with pytest.raises(minibert.EditError, match=message):
            model.generate(PROMPTS[0], edit=edits)
    patched = {("z", 1): replace(other, positions=[0, 3])}
    assert model.generate(PROMPTS[0], edit=patched, max_new_tokens=3, temperature=0).new_ids
